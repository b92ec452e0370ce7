"""Producing: batches of messages become records of the commit log.

All messages of a batch go to one queue of their topic, in order. What the calls of one tick of the event loop bring is
appended in one go. With SYNC_FLUSH the outcomes wait for the group commit.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError, outcome_of
from broker_gateway.messaging.resources import Resources
from broker_gateway.metadata.catalog import WRITE, Topic
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.tick import Stage
from store.columns import PendingColumns
from store.errors import RecordTooLargeError, StoreError, StoreReadOnlyError
from store.log.record import PendingRecord
from store.message_store import FlushMode

log = structlog.get_logger(__name__)
_BUSY_S = 0.05
"""How long sends are refused after an append that hung: those that queued meanwhile have been read by then."""
_TICK_BYTES = 8 << 20
"""Of bodies; a tick that brings more is appended in several goes."""
_TICK_S = 0.02
"""A tick that reads for longer is appended in several goes too: what was read first must not wait for all of it."""


@dataclass(slots=True, eq=False)
class PendingBatch(ABC):
    """The messages of a call, checked, for one queue; an edge says in `finish` what became of them.

    `size` is the bytes of their bodies, `offsets` their queue offsets once appended. `read_at`: when the call was there
    whole, by `clock.monotonic_s`.
    """

    topic: str
    records: list[PendingRecord] | PendingColumns
    size: int
    read_at: float = 0.0
    offsets: Sequence[int] = ()

    @property
    def messages(self) -> int:
        """As statistics count them."""
        return len(self.records)

    @abstractmethod
    def finish(self, outcome: Outcome) -> None:
        """The call is over: OK, or why not. Called once."""


class Producer:
    """Appends messages of producers."""

    def __init__(self, config: GatewayConfig, core: Core, resources: Resources, bulkhead: Bulkhead) -> None:
        self._store = core.store
        self.topic = resources.topic
        """The topic of a name; created if it may be."""
        self._tick = core.tick
        self._metrics = core.metrics
        self._minutes = core.minutes
        self._sync = config.store.flush_disk_type is FlushMode.SYNC_FLUSH
        self.bulkhead = bulkhead
        """What sends count in."""
        self._next_queue = itertools.count()
        self._batches: list[PendingBatch] = []
        self._tick_bytes = 0
        self._busy = False
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._sync_timeout_s = config.store.sync_flush_timeout / 1000
        self._busy_limit_s = config.store.os_page_cache_busy_time_out_mills / 1000
        self._accept_from_ms = config.broker.start_accept_send_request_time_stamp
        permission = config.broker.broker_permission
        self._forbidden = (
            None
            if permission & WRITE
            else f"the broker takes no messages now (brokerPermission={permission}); send to another"
        )

    def load_compiled(self) -> None:
        """Loads what appends columns. To be called on a thread."""
        self._store.load_compiled()

    def check(self, peer: str, now_ms: int) -> None:
        """Raises ServiceError when no message of `peer` (`host:port`) is taken now."""
        if self.bulkhead.under_way >= self.bulkhead.free:
            self.bulkhead.check_room(peer)
        if self._forbidden is not None:
            raise ServiceError(Reason.FORBIDDEN, self._forbidden)
        if self._busy:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"the broker is busy: an append took more than {self._busy_limit_s:g} s "
                "(osPageCacheBusyTimeOutMills); try again",
            )
        refusal = self._store.refusal
        if refusal is not None:
            raise ServiceError(Reason.INTERNAL_SERVER_ERROR, refusal)
        if now_ms < self._accept_from_ms:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"the broker takes messages from {self._accept_from_ms} ms on (startAcceptSendRequestTimeStamp)",
            )

    def queue(self, topic: Topic) -> int:
        """The queue that the next batch goes to. FORBIDDEN."""
        if not topic.writable or not topic.write_queues:
            raise _not_writable(topic)
        return next(self._next_queue) % topic.write_queues

    def priority_queue(self, topic: Topic, priority: int) -> int:
        """The queue of a priority, as the original has it: of that number, of larger ones the last. Below 0: the first, which
        the batch's check refuses. FORBIDDEN."""
        if not topic.writable or not topic.write_queues:
            raise _not_writable(topic)
        return max(0, min(priority, topic.write_queues - 1))

    def check_queue(self, topic: Topic, queue_id: int) -> None:
        """FORBIDDEN for a queue that must not be written to, or is none."""
        if not topic.writable or not 0 <= queue_id < topic.write_queues:
            raise ServiceError(
                Reason.FORBIDDEN, f"queue {queue_id} of topic {shown(topic.name)} must not be written to"
            )

    def failed(self, topic: str, messages: int) -> None:
        """Counts messages that were not taken."""
        self._metrics.send_failed(topic)
        self._minutes.count(topic, "", messages, 0, None, failed=True)

    def produce(self, batch: PendingBatch) -> None:
        """Has a batch appended with what else comes in this tick of the event loop."""
        batch.read_at = monotonic_s()
        if not self._batches:
            self._tick.add(Stage.APPEND, partial(self._end_tick, self._batches))
        self._batches.append(batch)
        self._tick_bytes += batch.size
        if self._tick_bytes > _TICK_BYTES or batch.read_at - self._batches[0].read_at > _TICK_S:
            self._end_tick(self._batches)

    def _end_tick(self, tick: list[PendingBatch]) -> None:
        """Appends what the calls of a tick brought and finishes them."""
        if tick is not self._batches or not tick:
            return  # it grew so large that it was ended already
        self._batches, self._tick_bytes = [], 0
        began = tick[0].read_at  # the others were read later
        late = self.bulkhead.late(began)
        if late is not None:
            tick = self._in_time(tick, late)
        stored = self._append(tick) if len(tick) == 1 else self._append_kinds(tick)
        if not stored:
            return
        self.when_kept(lambda outcome: self._finish(stored, outcome, monotonic_s() - began))

    def _append_kinds(self, tick: list[PendingBatch]) -> list[PendingBatch]:
        """`_append` for batches of any kind."""
        stored = []
        for kind in (PendingColumns, list):
            batches = [batch for batch in tick if type(batch.records) is kind]
            if batches:
                stored += self._append(batches)
        return stored

    def _in_time(self, tick: list[PendingBatch], late: ServiceError | None) -> list[PendingBatch]:
        """Those batches that have not waited too long; the others, the first because of `late`, are finished."""
        refused = 0
        while late is not None:
            batch = tick[refused]
            _end(batch, late.outcome)
            self.failed(batch.topic, len(batch.records))
            refused += 1
            late = self.bulkhead.late(tick[refused].read_at) if refused < len(tick) else None
        return tick[refused:]

    def _append(self, batches: list[PendingBatch]) -> list[PendingBatch]:
        """Those batches whose messages are in the log; the others are finished. All are of one kind.

        An error that one brings is that one's: the others are appended without it.
        """
        began, end = monotonic_s(), self._store.max_offset
        try:
            self._put(batches)
        except Exception as error:
            concerns_all = isinstance(error, (StoreReadOnlyError, OSError)) or self._store.max_offset != end
            if len(batches) > 1 and not concerns_all:
                middle = len(batches) // 2
                return self._append(batches[:middle]) + self._append(batches[middle:])
            if not isinstance(error, (StoreError, OSError)):
                log.exception("an append failed", topics=sorted({batch.topic for batch in batches}))
            for batch in batches:
                _end(batch, _refused(batch.topic, error))
                self.failed(batch.topic, len(batch.records))
            return []
        if monotonic_s() - began > self._busy_limit_s:
            self._begin_backpressure()
        return batches

    def _put(self, batches: list[PendingBatch]) -> None:
        """Appends all batches or none and sets their offsets."""
        if isinstance(batches[0].records, PendingColumns):
            columns = [each.records for each in batches if isinstance(each.records, PendingColumns)]
            for batch, first in zip(batches, self._store.append_columns(columns), strict=True):
                batch.offsets = range(first, first + len(batch.records))
            return
        records = [record for each in batches if isinstance(each.records, list) for record in each.records]
        offsets = [each.queue_offset for each in self._store.append(records)]
        position = 0
        for batch in batches:
            end = position + len(batch.records)
            batch.offsets = offsets[position:end]
            position = end

    def _begin_backpressure(self) -> None:
        """Sends that waited while an append hung are refused, so that their callers go elsewhere at once."""
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_later(_BUSY_S, self._end_backpressure)

    def _end_backpressure(self) -> None:
        self._busy = False

    def when_kept(self, done: Callable[[Outcome], None]) -> None:
        """Calls `done` once all that was appended is as safe as `flushDiskType` has it: at once, or on disk, or with
        MASTER_PERSISTENCE_TIMEOUT."""
        if not self._sync:
            done(OK)
            return
        loop = asyncio.get_running_loop()
        waiting = [done]

        def finish(outcome: Outcome) -> None:
            timer.cancel()
            if waiting:
                waiting.pop()(outcome)

        def from_flusher(error: BaseException | None) -> None:
            outcome = OK
            if error is not None:
                outcome = Outcome(Reason.MASTER_PERSISTENCE_TIMEOUT, f"the log could not be flushed: {error}")
            loop.call_soon_threadsafe(finish, outcome)

        late = Outcome(
            Reason.MASTER_PERSISTENCE_TIMEOUT,
            f"not on disk after {self._sync_timeout_s:g} s (syncFlushTimeout); it may be later",
        )
        timer = loop.call_later(self._sync_timeout_s, finish, late)
        try:
            self._store.wait_flushed(self._store.max_offset, from_flusher)
        except Exception as error:
            log.exception("a flush could not be asked for")
            from_flusher(error)

    def _finish(self, batches: list[PendingBatch], outcome: Outcome, seconds: float) -> None:
        counted: dict[str, list[int]] = {}
        for batch in batches:
            sums = counted.setdefault(batch.topic, [0, 0, 0])
            sums[0] += 1
            sums[1] += batch.messages
            sums[2] += batch.size
            _end(batch, outcome)
        for topic, (count, messages, size) in counted.items():
            self._metrics.sent(topic, count, messages, size, seconds)
            self._minutes.count(topic, "", messages, size, seconds, calls=count, failed=outcome is not OK)


def _not_writable(topic: Topic) -> ServiceError:
    return ServiceError(Reason.FORBIDDEN, f"topic {shown(topic.name)} must not be written to")


def _end(batch: PendingBatch, outcome: Outcome) -> None:
    """Finishes a batch; an edge that fails to takes no other along."""
    try:
        batch.finish(outcome)
    except Exception:
        log.exception("a batch could not be finished", topic=batch.topic)


def _refused(topic: str, error: Exception) -> Outcome:
    """Why the store did not take messages, or cannot hand them out."""
    if isinstance(error, RecordTooLargeError):
        return Outcome(Reason.MESSAGE_BODY_TOO_LARGE, str(error))
    if isinstance(error, StoreReadOnlyError) or not isinstance(error, (StoreError, OSError)):
        return outcome_of(error)
    return Outcome(Reason.INTERNAL_SERVER_ERROR, f"the message for {shown(topic)} was not stored: {error}")
