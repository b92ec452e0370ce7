"""Records on their way to a consumer: of the log or, where that has them no more, of the lake."""

from __future__ import annotations

import structlog

from broker_gateway.messaging.broker_properties import without_brokers
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.reading_line import Waiter
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.errors import OffsetOutOfRangeError, RecordError
from store.log.record import decode_properties, offset_msg_id
from store.log.record_view import RecordView
from store.message_store import MessageStore

log = structlog.get_logger(__name__)


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

    def detached(self) -> StoredMessage:
        """The same, of a copy: one that is kept for a while holds nothing of the log."""
        return StoredMessage(memoryview(bytes(self.data)))

    @property
    def message_group(self) -> str:
        """The unit of ordered delivery; '' for messages without one."""
        return self.properties.get("__SHARDINGKEY", "")


class MessageReader:
    """Reads messages of the log; of the lake those that `old` gives, where there is a lake."""

    def __init__(self, store: MessageStore, old: OldMessages | None = None) -> None:
        self._store = store
        self.old = old
        self._unread = RateLimitedLog("messages")

    def at(
        self, topic: str, queue_id: int, queue_offset: int, waiter: Waiter | None = None
    ) -> StoredMessage | None:
        """The message at an offset of a queue; None when there is none, or none to be read.

        Raises InLakeError where it has to be read from the lake first; then `waiter` is told when to try again.
        """
        if self.old is not None and self.old.end(topic, queue_id, queue_offset) > queue_offset:
            return self.made_of(self.old.record(topic, queue_id, queue_offset, waiter), queue_offset)
        physical, sizes, _ = self._store.index.entries(topic, queue_id, queue_offset, 1)
        return self.read(int(physical[0]), int(sizes[0])) if len(physical) else None

    def read(self, physical: int, size: int) -> StoredMessage | None:
        """The message at a physical offset; None when there is none to be read, which is logged, with a limit on the rate."""
        if not size:
            return None
        try:
            return StoredMessage(self._store.read(physical, size))
        except (RecordError, OffsetOutOfRangeError) as error:
            self._unread.happened(
                log.error,
                "messages that cannot be read are passed over; `lakebroker store verify` finds what is damaged",
                physical_offset=physical,
                error=str(error),
            )
            return None

    def made_of(self, record: bytes | None, queue_offset: int) -> StoredMessage | None:
        """The message of a record of the lake; None when it is none, which is logged."""
        if record is None:
            return None
        try:
            return StoredMessage(memoryview(record))
        except RecordError as error:
            self._unread.happened(
                log.error,
                "messages of the lake that cannot be read are passed over; `lakebroker lake check` finds what is damaged",
                queue_offset=queue_offset,
                error=str(error),
            )
            return None
