"""Moves: copies of a message that settle the original.

The copy carries `LB_ORIGIN`, `queueId:queueOffset:attempt:characters of group:group topic` (group and topic
run together), and `LB_REASON`, why it was moved. Replay takes the copy as the settlement of the original.
"""

from __future__ import annotations

from collections.abc import Mapping

from store.log.copies import ORIGIN_PROPERTY, Origin
from store.log.record import (
    PROPERTY_CRC32,
    SYS_HOSTS_V6,
    PendingRecord,
    Record,
    encode_properties,
    tags_code,
)

REASON_PROPERTY = "LB_REASON"
ORIGIN_MARK = f"{ORIGIN_PROPERTY}\x01".encode()
"""How the property begins in a record."""


def moved_copy(
    record: Record,
    properties: Mapping[str, str],
    origin: Origin,
    topic: str,
    queue_id: int,
    reconsume_times: int,
    reason: str | None = None,
) -> PendingRecord:
    """The copy of a record, with these properties of it, for a queue of `topic`."""
    kept = {name: value for name, value in properties.items() if name != PROPERTY_CRC32}
    kept[ORIGIN_PROPERTY] = origin.encode()
    if reason is not None:
        kept[REASON_PROPERTY] = reason
    return PendingRecord(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(kept),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host.packed,
        sys_flag=record.sys_flag & ~SYS_HOSTS_V6,
        flag=record.flag,
        reconsume_times=reconsume_times,
        tags_code=tags_code(kept.get("TAGS")),
    )
