"""Delivery times and delay levels: when a message is due, a copy of it goes to the queue it was sent to.

The copy says where it came from, and that alone settles the record of the timer's topic: see `pending.py`. What was due while
the broker was down goes at the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broker_gateway.deferred.due_loop import DueLoop
from broker_gateway.deferred.pending import Meaning, Pending
from broker_gateway.deferred.put_off import (
    DELAY_LEVEL,
    DELIVER_MS,
    OUT_MS,
    PRECISION_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    RECALL_KEY,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    PutOff,
    level_of,
    mark_of,
    out_ms,
    real_queue,
    timer_of,
)
from broker_gateway.delivery.moves import moved_copy
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.journal.taken_over import TakenOver
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from broker_gateway.runtime.tick import Tick
from store.log.record import PendingRecord, Record, encode_properties, tags_code
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
A_CARRY = 1024
"""Messages that are copied forward in a go."""
_FIRST_LEVEL_QUEUE = 16
_MOST_ALIKE = 32
"""Messages of one second whose ids have the same mark that are looked at for a recall: clients choose ids."""
_RECALL_TAG = "_RECALL_TAG_"


class TimerMeaning(Meaning):
    """Records of the timer's topic, and of the delay levels'; `levels_ms` are those of `messageDelayLevel`."""

    name = "timers"
    topics = frozenset((TIMER_TOPIC, SCHEDULE_TOPIC))

    def __init__(self, levels_ms: tuple[int, ...]) -> None:
        self._levels_ms = levels_ms

    def queue(self, topic: str, queue_id: int) -> int | None:
        if topic == TIMER_TOPIC:
            return queue_id if 0 <= queue_id < _FIRST_LEVEL_QUEUE else None
        return _FIRST_LEVEL_QUEUE + queue_id if topic == SCHEDULE_TOPIC and queue_id >= 0 else None

    def named(self, queue: int) -> tuple[str, int]:
        if queue < _FIRST_LEVEL_QUEUE:
            return TIMER_TOPIC, queue
        return SCHEDULE_TOPIC, queue - _FIRST_LEVEL_QUEUE

    def put_off(self, record: Record) -> PutOff | None:
        properties = record.properties_map()
        if record.topic == SCHEDULE_TOPIC:
            return level_of(record, properties, self._levels_ms)
        return timer_of(properties)


class Timers:
    """Has messages go when they are due. Runs on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        tick: Tick,
        pace: SnapshotPace,
        taken_over: TakenOver,
        levels_ms: tuple[int, ...],
    ) -> None:
        self._store = store
        self.pending = Pending(store, TimerMeaning(levels_ms), pace, taken_over)
        self.loop = DueLoop(store, self.pending, tick, self._go)
        self._unfit = RateLimitedLog("messages")

    @property
    def count(self) -> int:
        """Messages that wait."""
        return len(self.pending.table)

    @property
    def bytes(self) -> int:
        """Of their records."""
        return self.pending.table.bytes

    def find(self, topic: str, out: int, message_id: str) -> int | None:
        """The key of a message that waits, by its TIMER_OUT_MS and its id."""
        found = self.pending.table.find(out, out + PRECISION_MS, mark_of(message_id))
        for key in found[:_MOST_ALIKE]:
            record = self.pending.record(key)
            if record is None:
                continue
            properties = record.properties_map()
            if properties.get(REAL_TOPIC) == topic and properties.get("UNIQ_KEY") == message_id:
                return key
        return None

    def recall(self, key: int, topic: str, out: int, message_id: str) -> None:
        """Takes a message back: by a record as the original makes it, which a real broker obeys too. Raises StoreError, OSError."""
        now = now_ms()
        told = {
            RECALL_KEY: message_id,
            "UNIQ_KEY": message_id,
            "TAGS": _RECALL_TAG,
            DELIVER_MS: str(out + 1),
            OUT_MS: str(out),
            REAL_TOPIC: topic,
            REAL_QUEUE: "0",
            "BORN_TIMESTAMP": str(now),
            "LB_ORIGIN": self.pending.origin(key).encode(),
        }
        host = self._store.store_host.packed
        code = tags_code(_RECALL_TAG)
        record = PendingRecord(TIMER_TOPIC, 0, b"0", encode_properties(told), now, host, tags_code=code)
        self._store.append([record])
        self.pending.remove([key])

    def erased(self, record: Record) -> None:
        """A record was erased: where it waited, no copy of it is made."""
        self.pending.erased(record)

    def _go(self, keys: Sequence[int], now: int) -> None:
        """Appends copies of those that are due. Raises StoreError, OSError."""
        copies: list[tuple[int, PendingRecord]] = []
        some, unread = self.pending.some(keys)
        for key, record in some:
            copy = self._copy(key, record, now)
            if copy is None:
                unread.append(key)
            else:
                copies.append((key, copy))
        self.pending.remove(unread)
        self.pending.replace(copies)

    def _copy(self, key: int, record: Record, now: int) -> PendingRecord | None:
        """The message for the queue it was sent to; None where the record does not say which, which is logged."""
        properties = record.properties_map()
        target = real_queue(properties)
        if target is None:
            self._unfit.happened(
                log.error,
                "a message that is due does not say which queue it is for",
                offset=record.physical_offset,
            )
            return None
        if record.topic == SCHEDULE_TOPIC:
            for name in (DELAY_LEVEL, DELIVER_MS, "TIMER_DELAY_SEC"):
                properties.pop(name, None)
        else:
            properties["TIMER_ENQUEUE_MS"] = str(record.store_timestamp)
            properties["TIMER_DEQUEUE_MS"] = str(now)
        return moved_copy(record, properties, self.pending.origin(key), *target, record.reconsume_times)

    def carry_forward(self, physical_offset: int) -> int:
        """Copies a number of those that wait and stand below a physical offset to the end of the log; how many. Raises
        StoreError, OSError."""
        copies: list[tuple[int, PendingRecord]] = []
        keys = self.pending.below(physical_offset, A_CARRY)
        some, unread = self.pending.some([key for key in keys if key not in self.pending.unfit])
        for key, record in some:
            put_off = self.pending.put_off(record)
            if put_off is None:
                unread.append(key)
                continue
            kept = record.properties_map()
            if record.topic == SCHEDULE_TOPIC:  # its time would begin anew there
                kept.pop(DELAY_LEVEL, None)
                kept[DELIVER_MS] = str(put_off.due)
                kept[OUT_MS] = str(out_ms(put_off.due))
            origin = self.pending.origin(key)
            copies.append((key, moved_copy(record, kept, origin, TIMER_TOPIC, 0, record.reconsume_times)))
        self.pending.remove(unread)
        self.pending.replace(copies)
        return len(some) + len(unread)
