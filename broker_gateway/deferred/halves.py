"""Halves of transactions: messages that nobody receives until their producer says how the transaction ended.

| record | in | says |
|---|---|---|
| half | `RMQ_SYS_TRANS_HALF_TOPIC` | the message, with its topic and queue; a later one of the same message takes its place, with one more `TRANSACTION_CHECK_TIMES` |
| op | `RMQ_SYS_TRANS_OP_HALF_TOPIC` | queue offsets of halves that are done with |
| the message | its topic (or the timer's) | committed: its prepared transaction offset is the half's physical one |

Source: RocketMQ's `TransactionalMessageBridge`, `TransactionalMessageServiceImpl`, `EndTransactionProcessor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_gateway.deferred.due_table import key_of, offset_of
from broker_gateway.deferred.pending import Meaning
from broker_gateway.deferred.put_off import (
    DELIVER_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    PutOff,
    as_timer,
    mark_of,
    real_queue,
)
from broker_gateway.delivery.moves import moved_copy
from store.log.copies import Origin
from store.log.record import SYS_COMMIT, PendingRecord, Record, encode_properties, tags_code

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_TOO_OFTEN_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
PREPARED, TRANSACTION_ID = "TRAN_MSG", "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
WAITS_FROM_PROPERTY = "LB_WAITS_FROM"
"""In a half that was copied without a check: when the one it was copied from was stored, ms since the epoch."""
MOST_IMMUNITY_S = 3600
_OP_TAG = "d"
_OFFSETS = re.compile(rb"\d{1,18}")


class CheckTimes(NamedTuple):
    """When producers are asked: ms after the half was stored, or the first one that it is a copy of, and ms between two times."""

    after_ms: int
    every_ms: int


class Half(NamedTuple):
    """A half that is pending."""

    key: int
    physical_offset: int
    size: int
    """Of its record."""
    topic: str
    waits_from_ms: int
    """When it was stored, or the first one that it is a copy of without a check."""
    immunity_ms: int
    """Of a message that brings its own recovery time: its producer's own end counts until then. 0: it brings none."""
    checks: int


class HalfMeaning(Meaning):
    """Records of the topic of halves, and what ends them."""

    name = "halves"
    topics = frozenset((HALF_TOPIC,))

    def __init__(self, times: CheckTimes) -> None:
        self.times = times

    def queue(self, topic: str, queue_id: int) -> int | None:
        return 0 if topic == HALF_TOPIC and queue_id == 0 else None

    def named(self, queue: int) -> tuple[str, int]:
        return HALF_TOPIC, queue

    def put_off(self, record: Record) -> PutOff | None:
        properties = record.properties_map()
        if real_queue(properties) is None:
            return None
        if checks_of(properties):
            wait_ms = self.times.every_ms
        else:
            wait_ms = immunity_ms_of(properties) or self.times.after_ms
        return PutOff(waits_from(record, properties) + wait_ms, mark_of(properties.get("UNIQ_KEY", "")))

    def ends(self, topic: str) -> bool:
        return topic == OP_TOPIC

    def ended(self, record: Record) -> Iterable[int]:
        if record.queue_id or record.properties_map().get("TAGS") != _OP_TAG:
            return []
        return [key_of(0, int(each)) for each in _OFFSETS.findall(bytes(record.body))]


def half_of(key: int, record: Record) -> Half:
    """What is kept of a half in memory."""
    properties = record.properties_map()
    return Half(
        key,
        record.physical_offset,
        record.size,
        properties.get(REAL_TOPIC, ""),
        waits_from(record, properties),
        immunity_ms_of(properties),
        checks_of(properties),
    )


def as_half(record: PendingRecord, message_id: str, immunity_s: int | None) -> PendingRecord:
    """The half of a message; its producer group is its topic."""
    told = {
        PREPARED: "true",
        TRANSACTION_ID: message_id,
        "PGROUP": record.topic,
        REAL_TOPIC: record.topic,
        REAL_QUEUE: str(record.queue_id),
    }
    if immunity_s is not None:
        told[IMMUNITY_S] = str(immunity_s)
    return PendingRecord(
        HALF_TOPIC,
        0,
        record.body,
        record.properties + encode_properties(told),
        record.born_timestamp,
        record.born_host,
        record.sys_flag,
        record.flag,
        record.reconsume_times,
        0,
        record.tags_code,
    )


def committed(record: Record, origin: Origin, now: int) -> PendingRecord:
    """The message of a half: for its queue or, when it has a delivery time that is to come, for the timer."""
    properties = record.properties_map()
    target = real_queue(properties)
    if target is None:
        raise ValueError(
            f"the half at physical offset {record.physical_offset} does not say which queue it is for"
        )
    for name in (REAL_TOPIC, REAL_QUEUE, WAITS_FROM_PROPERTY):
        properties.pop(name, None)
    copy = moved_copy(record, properties, origin, *target, record.reconsume_times)
    copy.sys_flag |= SYS_COMMIT
    copy.prepared_transaction_offset = record.physical_offset
    due = properties.get(DELIVER_MS, "")
    if due.isascii() and due.isdigit() and len(due) < 19 and int(due) > now:
        return as_timer(copy, int(due))
    return copy


def checked_again(record: Record, origin: Origin) -> PendingRecord:
    """The half that takes a half's place when its producer is asked once more."""
    properties = record.properties_map()
    properties[CHECK_TIMES] = str(checks_of(properties) + 1)
    properties.pop(WAITS_FROM_PROPERTY, None)
    return moved_copy(record, properties, origin, HALF_TOPIC, 0, record.reconsume_times)


def renewed(record: Record, origin: Origin) -> PendingRecord:
    """The half that takes a half's place further on in the log: nobody was asked, and its time goes on."""
    properties = record.properties_map()
    properties[WAITS_FROM_PROPERTY] = str(waits_from(record, properties))
    return moved_copy(record, properties, origin, HALF_TOPIC, 0, record.reconsume_times)


def taken_over(record: Record, origin: Origin) -> PendingRecord:
    """The half that takes the place of a real broker's half.

    A real broker copies a half forward while its own recovery time lasts, and counts that as a check. Nobody was asked: the time
    goes on from when the message was born, as it does there.
    """
    properties = record.properties_map()
    immunity_ms = immunity_ms_of(properties)
    born = min(record.born_timestamp, record.store_timestamp)
    if WAITS_FROM_PROPERTY in properties or record.store_timestamp - born >= immunity_ms:
        return renewed(record, origin)
    properties.pop(CHECK_TIMES, None)
    properties[WAITS_FROM_PROPERTY] = str(born)
    return moved_copy(record, properties, origin, HALF_TOPIC, 0, record.reconsume_times)


def given_up(record: Record, origin: Origin) -> PendingRecord:
    """Where a half goes whose producer never said how the transaction ended."""
    properties = record.properties_map()
    properties.pop(WAITS_FROM_PROPERTY, None)
    return moved_copy(record, properties, origin, CHECKED_TOO_OFTEN_TOPIC, 0, record.reconsume_times)


def done_with(keys: Sequence[int], now: int, host: bytes) -> PendingRecord:
    """The op record that says of halves that they are done with."""
    body = "".join(f"{offset_of(key)}," for key in keys).encode()
    told = encode_properties({"TAGS": _OP_TAG, "WAIT": "true"})
    return PendingRecord(OP_TOPIC, 0, body, told, now, host, tags_code=tags_code(_OP_TAG))


def waits_from(record: Record, properties: Mapping[str, str]) -> int:
    """From when on the time counts until the producer of a half is asked, ms since the epoch; never behind the record's own time."""
    text = properties.get(WAITS_FROM_PROPERTY, "")
    told = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else record.store_timestamp
    return min(told, record.store_timestamp)


def checks_of(properties: Mapping[str, str]) -> int:
    """How often the producer was asked."""
    return _number(properties.get(CHECK_TIMES, ""), 1_000_000)


def immunity_ms_of(properties: Mapping[str, str]) -> int:
    """The message's own recovery time; 0 when it brings none."""
    return _number(properties.get(IMMUNITY_S, ""), MOST_IMMUNITY_S) * 1000


def _number(text: str, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 10 else 0
