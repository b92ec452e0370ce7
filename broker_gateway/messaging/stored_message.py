"""A record of the log on its way to a consumer."""

from __future__ import annotations

from broker_gateway.messaging.broker_properties import without_brokers
from store.log.record import RecordView, decode_properties, offset_msg_id


class StoredMessage:
    """What a consumer gets of a record; `data` is the whole record. Raises RecordError when it is none."""

    __slots__ = ("body_length", "data", "message_id", "properties", "view")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        view = self.view = RecordView(data)
        self.properties = decode_properties(without_brokers(view.properties))
        self.body_length = len(view.body)
        self.message_id = self.properties.get("UNIQ_KEY") or offset_msg_id(
            view.store_host_bytes, view.physical_offset
        )
