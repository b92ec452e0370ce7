"""What records of the system topics say: until when a message is put off. Sources: RocketMQ's `HookUtils`,
`ScheduleMessageService`, `TimerMessageStore`, `TransactionalMessageServiceImpl`.

| topic | queue | due |
|---|---|---|
| `rmq_sys_wheel_timer` | 0 | at `TIMER_DELIVER_MS`, else `TIMER_OUT_MS`, the same in whole seconds |
| `SCHEDULE_TOPIC_XXXX` | level - 1 | the level's time after it was stored |
| `RMQ_SYS_TRANS_HALF_TOPIC` | 0 | when its producer is first asked how its transaction ended |

The message itself is in the record, with `REAL_TOPIC` and `REAL_QID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zlib_ng import zlib_ng

from broker_gateway.runtime.clock import LATEST_MS
from store.log.record import PendingRecord, Record, decode_properties, encode_properties

TIMER_TOPIC = "rmq_sys_wheel_timer"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Of topics whose timers are a real broker's POP: `migration/check_points.py` reads them."""
DELIVER_MS, OUT_MS, DELAY_LEVEL = "TIMER_DELIVER_MS", "TIMER_OUT_MS", "DELAY"
REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
RECALL_KEY = "TIMER_DEL_UNIQKEY"
"""In a record of the timer's topic that takes another one back: its id, before 5.5.0 behind its topic and a `+`."""
PRECISION_MS = 1000
"""The original's `timerPrecisionMs`: TIMER_OUT_MS is a multiple of it, earlier than the delivery time."""


class PutOff(NamedTuple):
    """Until when, ms since the epoch, and 32 bits of the message's id."""

    due: int
    mark: int


def mark_of(message_id: str) -> int:
    """What a message's entry may be looked up by."""
    return zlib_ng.crc32(message_id.encode())


def timer_of(properties: Mapping[str, str]) -> PutOff | None:
    """What a record of the timer's topic says; None when nothing is to be delivered for it here."""
    if RECALL_KEY in properties or properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX):
        return None
    due = _milliseconds(properties.get(DELIVER_MS)) or _milliseconds(properties.get(OUT_MS)) or 0
    return PutOff(due, mark_of(properties.get("UNIQ_KEY", "")))


def level_of(record: Record, properties: Mapping[str, str], levels_ms: tuple[int, ...]) -> PutOff:
    """What a record of the delay levels' topic says."""
    level = min(record.queue_id, len(levels_ms) - 1)
    return PutOff(record.store_timestamp + levels_ms[level], mark_of(properties.get("UNIQ_KEY", "")))


def as_timer(record: PendingRecord, deliver_ms: int) -> PendingRecord:
    """The record of the timer's topic for a message that is to be delivered at that time. It keeps its properties."""
    told = {OUT_MS: str(out_ms(deliver_ms)), REAL_TOPIC: record.topic, REAL_QUEUE: str(record.queue_id)}
    return _moved(record, told, TIMER_TOPIC, 0)


def as_delayed(record: PendingRecord, level: int) -> PendingRecord:
    """The record of the delay levels' topic for a message of that level, from 1 on."""
    told = {REAL_TOPIC: record.topic, REAL_QUEUE: str(record.queue_id)}
    return _moved(record, told, SCHEDULE_TOPIC, level - 1)


def out_ms(deliver_ms: int) -> int:
    """TIMER_OUT_MS of a delivery time: an exact multiple goes down by one."""
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue that a message was sent to; None where the record does not say."""
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE, "")
    if not topic or not (queue.isascii() and queue.isdigit() and len(queue) < 10):
        return None
    return topic, int(queue)


def deliver_ms_of(properties: bytes) -> int | None:
    """The delivery time that a message has; None when it has none."""
    return _milliseconds(decode_properties(properties).get(DELIVER_MS))


def _moved(record: PendingRecord, told: Mapping[str, str], topic: str, queue_id: int) -> PendingRecord:
    return PendingRecord(
        topic,
        queue_id,
        record.body,
        record.properties + encode_properties(told),
        record.born_timestamp,
        record.born_host,
        record.sys_flag,
        record.flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.tags_code,
    )


def _milliseconds(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return min(int(text), LATEST_MS)
