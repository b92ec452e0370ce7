"""Transactions: halves are stored, ended by their producers, and asked about when nobody ends them.

| a half | becomes | by |
|---|---|---|
| pending | committed: its message goes to its queue | its producer, within its own recovery time if it has one, or the answer to a check |
| pending | rolled back | the same |
| pending | pending, checked once more | nobody ended it in time: a producer that publishes the topic is asked |
| pending | given up: a copy in `TRANS_CHECK_MAX_TIME_TOPIC` | it was checked `transactionCheckMax` times |

Each is one append, of the copy and of the op record that says that the half is done with. The half's entry goes when that is in
the log.
"""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.deferred.due_loop import DueLoop
from broker_gateway.deferred.halves import (
    HALF_TOPIC,
    CheckTimes,
    Half,
    HalfMeaning,
    as_half,
    checked_again,
    committed,
    done_with,
    given_up,
    half_of,
    renewed,
)
from broker_gateway.deferred.pending import Pending
from broker_gateway.deferred.put_off import REAL_TOPIC
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.client_commands import ClientCommands, RecoverTransaction
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.messaging.produce import PendingBatch, Producer
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.errors import OffsetOutOfRangeError, RecordError
from store.log.record import PendingRecord, Record

log = structlog.get_logger(__name__)
_ENDED = 100_000
"""Transactions that ended whose end is remembered: the same end again is OK."""
A_CARRY = 256
"""Halves that are copied forward in a go."""
Done = Callable[[Outcome], None]


class Resolution(enum.Enum):
    """How a producer ends a transaction."""

    COMMIT = enum.auto()
    ROLLBACK = enum.auto()
    UNKNOWN = enum.auto()
    """It does not: it is asked again."""


@dataclass(slots=True, eq=False)
class _End(PendingBatch):
    """The end of a transaction, on its way into the log."""

    keys: Sequence[int] = field(kw_only=True)
    """Of the half; several when the send was repeated."""
    resolution: Resolution = field(kw_only=True)
    waiting: list[Done] = field(kw_only=True)
    ended: Callable[[], None] = field(kw_only=True)
    """The halves are done with."""
    done: Done = field(kw_only=True)

    @property
    def messages(self) -> int:
        """An op record is none."""
        return len(self.records) - 1

    @property
    def is_appended(self) -> bool:
        """Whether it is in the log, if perhaps not on disk."""
        return bool(self.offsets)

    def finish(self, outcome: Outcome) -> None:
        if self.is_appended:
            self.ended()
        self.done(outcome)


class _Id(NamedTuple):
    """A transaction: its topic, and the id that its producer gave the message."""

    topic: str
    message_id: str


class Transactions:
    """The halves of this broker. Runs on the event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        producer: Producer,
        clients: ClientRegistry,
        commands: ClientCommands,
    ) -> None:
        self._store = core.store
        self._producer = producer
        self._clients = clients
        self._commands = commands
        self._meaning = HalfMeaning(_times(config))
        self.pending = Pending(core.store, self._meaning, core.pace, core.taken_over)
        self.pending.on_added(self._added)
        self.pending.on_saving(self._ends_in_log)
        self.loop = DueLoop(core.store, self.pending, core.tick, self._check, self._ends_under_way)
        self._halves: dict[_Id, dict[int, Half]] = {}
        """By their keys, the latest last: a send that is repeated leaves several, which end as one."""
        self._ending: dict[_Id, _End] = {}
        """Those whose end is on its way into the log."""
        self._ended: OrderedDict[_Id, Resolution] = OrderedDict()
        """The latest last."""
        self._given_up, self._not_asked = RateLimitedLog("transactions"), RateLimitedLog("transactions")
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._meaning.times = _times(config)
        self._check_max = config.broker.transaction_check_max
        self._rejected = config.broker.reject_transaction_message
        self._most = config.lake.lake_max_pending_transactions
        self._most_bytes = config.lake.lake_max_pending_transaction_bytes

    @property
    def count(self) -> int:
        """Transactions that have not ended."""
        return len(self.pending.table)

    @property
    def bytes(self) -> int:
        """Of their records."""
        return self.pending.table.bytes

    def check_room(self, count: int, size: int) -> None:
        """FORBIDDEN where the broker takes no transactions, TOO_MANY_REQUESTS for more, or more bytes, than may be pending."""
        if self._rejected:
            raise ServiceError(
                Reason.FORBIDDEN,
                "the broker takes no transactional messages (rejectTransactionMessage=true); send others, or to another broker",
            )
        if self.count + count > self._most:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{self.count} transactions are pending, at most {self._most} (lakeMaxPendingTransactions) may be; end some first",
            )
        waits = self.bytes
        if waits + size > self._most_bytes:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"messages of {waits} bytes belong to pending transactions, at most {self._most_bytes} "
                f"(lakeMaxPendingTransactionBytes) may, and this call has {size}; end some first",
            )

    def half(self, record: PendingRecord, message_id: str, recovery_s: int | None) -> PendingRecord:
        """What is stored of a message until its transaction ends. `recovery_s`: its own time until it is asked about."""
        return as_half(record, message_id, recovery_s)

    def end(
        self,
        topic: str,
        transaction_id: str,
        resolution: Resolution,
        done: Done,
        *,
        from_check: bool = False,
    ) -> None:
        """Ends a transaction; `done` is called when that is in the log. INVALID_TRANSACTION_ID, and what keeps it from the log."""
        which = _Id(topic, transaction_id)
        under_way = self._ending.get(which)
        if under_way is not None:
            if resolution not in (under_way.resolution, Resolution.UNKNOWN):
                raise _ended_otherwise(transaction_id, under_way.resolution)
            under_way.waiting.append(done)
            return
        halves = self._halves.get(which)
        if halves is None:
            self._end_again(which, resolution, done)
            return
        if resolution is Resolution.UNKNOWN or (not from_check and self._is_late(_latest(halves))):
            done(OK)
            return
        self._end(which, halves, resolution, done)

    def _end_again(self, which: _Id, resolution: Resolution, done: Done) -> None:
        ended = self._ended.get(which)
        if ended is None:
            raise ServiceError(
                Reason.INVALID_TRANSACTION_ID,
                f"transaction {shown(which.message_id)} of topic {shown(which.topic)} is not pending on this broker; it may have ended, "
                "or been given up after transactionCheckMax checks",
            )
        if resolution not in (ended, Resolution.UNKNOWN):
            raise _ended_otherwise(which.message_id, ended)
        self._producer.when_kept(done)  # its end may not be on disk, if that took too long before

    def _is_late(self, half: Half) -> bool:
        """Whether a half's own recovery time is over: its producer is asked then, and what it says by itself does not count."""
        return half.immunity_ms > 0 and (half.checks > 0 or now_ms() - half.waits_from_ms > half.immunity_ms)

    def _end(self, which: _Id, halves: dict[int, Half], resolution: Resolution, done: Done) -> None:
        now, keys, size = now_ms(), list(halves), sum(each.size for each in halves.values())
        records = [done_with(keys, now, self._store.store_host.packed)]
        if resolution is Resolution.COMMIT:
            refusal = self._store.refusal
            if refusal is not None:
                raise ServiceError(Reason.INTERNAL_SERVER_ERROR, refusal)
            record = self._record(_latest(halves))
            if record is None:
                raise ServiceError(
                    Reason.INTERNAL_SERVER_ERROR,
                    f"the half of transaction {shown(which.message_id)} cannot be read; `lakebroker store verify` finds what is damaged",
                )
            records.insert(0, committed(record, self.pending.origin(keys[-1]), now))
        waiting = [done]

        def ended() -> None:
            self.pending.remove(keys, size)
            self._forget(which, keys)
            self._ended[which] = resolution
            self._ended.move_to_end(which)
            if len(self._ended) > _ENDED:
                self._ended.popitem(last=False)

        def tell(outcome: Outcome) -> None:
            self._ending.pop(which, None)
            for each in waiting:
                each(outcome)

        end = _End(
            which.topic,
            records,
            len(records[0].body) if len(records) > 1 else 0,
            keys=keys,
            resolution=resolution,
            waiting=waiting,
            ended=ended,
            done=tell,
        )
        self._ending[which] = end
        self._producer.produce(end)

    def _record(self, half: Half) -> Record | None:
        """A half's record; None when it cannot be read, which is logged."""
        with contextlib.suppress(RecordError, OffsetOutOfRangeError):
            return self._store.record(half.physical_offset, half.size)
        return self.pending.record(half.key)

    def _ends_under_way(self) -> set[int]:
        return {key for end in self._ending.values() for key in end.keys}

    def _ends_in_log(self) -> set[int]:
        """Keys of halves that are done with, which the table has until their ends are on disk."""
        return {key for end in self._ending.values() if end.is_appended for key in end.keys}

    def _added(self, key: int, record: Record) -> None:
        """A half is pending: the latest of a message stands for its transaction."""
        half = half_of(key, record)
        self._halves.setdefault(_id_of(half, record), {})[key] = half

    def _forget(self, which: _Id, keys: Iterable[int]) -> None:
        """These halves of a transaction are pending no more."""
        halves = self._halves.get(which, {})
        for key in keys:
            halves.pop(key, None)
        if not halves:
            self._halves.pop(which, None)

    def _check(self, keys: Sequence[int], now: int) -> None:
        """Has producers asked about halves that nobody ended; gives those up that were asked about often enough. Of several of one
        transaction only the latest is kept."""
        copies: list[tuple[int, PendingRecord]] = []
        found: dict[int, tuple[_Id, Record]] = {}
        doubles: list[int] = []
        given: set[int] = set()
        some, unread = self.pending.some(keys)
        for key, record in some:
            half = half_of(key, record)
            which = _id_of(half, record)
            found[key] = which, record
            known = self._halves.get(which)
            if known is not None and _latest(known).key != key:
                doubles.append(key)
            elif half.checks >= self._check_max:
                copies.append((key, given_up(record, self.pending.origin(key))))
                given.add(key)
            else:
                copies.append((key, checked_again(record, self.pending.origin(key))))
        if doubles:
            self._store.append([self._closing(doubles)])
            self._drop(doubles, found)
        self._drop_unread(unread)
        done = self.pending.replace(copies, lambda some: [self._closing(some)])
        for key in done:
            which, record = found[key]
            self._forget(which, [key])
            if key in given:
                self._given_up.happened(
                    log.warning,
                    "transactions were given up, since no producer said how they ended; they are in TRANS_CHECK_MAX_TIME_TOPIC",
                    transaction_id=which.message_id,
                )
            else:
                self._ask(which, record)

    def _closing(self, keys: Sequence[int]) -> PendingRecord:
        return done_with(keys, now_ms(), self._store.store_host.packed)

    def _drop(self, keys: Sequence[int], found: Mapping[int, tuple[_Id, Record]]) -> None:
        self.pending.remove(keys)
        for key in keys:
            self._forget(found[key][0], [key])

    def _drop_unread(self, keys: Sequence[int]) -> None:
        """Nothing can be done for halves that cannot be read, which is logged already."""
        if not keys:
            return
        self.pending.remove(keys)
        gone = set(keys)
        for which in [each for each, halves in self._halves.items() if not gone.isdisjoint(halves)]:
            self._forget(which, gone)

    def _ask(self, which: _Id, record: Record) -> None:
        """Asks a producer that publishes the topic; without one that can be asked now, the next check is for it."""
        session = self._clients.publisher_of(which.topic)
        if session is None:
            return
        try:
            message = StoredMessage(self._store.read(record.physical_offset, record.size)).detached()
            self._commands.send(session, RecoverTransaction(which.topic, which.message_id, message))
        except (ServiceError, RecordError, OffsetOutOfRangeError) as error:
            self._not_asked.happened(
                log.warning,
                "a producer could not be asked about transactions; that is tried again (transactionCheckInterval)",
                topic=which.topic,
                client_id=session.client_id,
                error=str(error),
            )

    def erased(self, record: Record) -> None:
        """A record was erased: where it was a half, its transaction is as one that never was. An end that is under way does that
        itself."""
        if record.topic != HALF_TOPIC:
            return
        properties = record.properties_map()
        which = _Id(properties.get(REAL_TOPIC, ""), properties.get("UNIQ_KEY", ""))
        if which in self._ending:
            return
        for half in list(self._halves.get(which, {}).values()):
            if half.physical_offset == record.physical_offset:
                self.pending.remove([half.key], half.size)
                self._forget(which, [half.key])

    def carry_forward(self, physical_offset: int) -> int:
        """Copies a number of halves that stand below a physical offset to the end of the log; how many. Raises StoreError, OSError."""
        leave_out = self._ends_under_way() | self.pending.unfit
        below = self.pending.below(physical_offset, A_CARRY)
        keys = sorted(
            key for key in below if key not in leave_out
        )  # the latest of a transaction stays the latest
        some, unread = self.pending.some(keys)
        copies = [(key, renewed(record, self.pending.origin(key))) for key, record in some]
        done = self.pending.replace(copies, lambda some: [self._closing(some)])
        found = {key: (_id_of(half_of(key, record), record), record) for key, record in some}
        for key in done:
            self._forget(found[key][0], [key])
        self._drop_unread(unread)
        return len(done) + len(unread)


def _latest(halves: dict[int, Half]) -> Half:
    return next(reversed(halves.values()))


def _id_of(half: Half, record: Record) -> _Id:
    return _Id(half.topic, record.properties_map().get("UNIQ_KEY", ""))


def _times(config: GatewayConfig) -> CheckTimes:
    return CheckTimes(config.broker.transaction_time_out, config.broker.transaction_check_interval)


def _ended_otherwise(transaction_id: str, resolution: Resolution) -> ServiceError:
    how = "committed" if resolution is Resolution.COMMIT else "rolled back"
    return ServiceError(
        Reason.INVALID_TRANSACTION_ID,
        f"transaction {shown(transaction_id)} was {how}; it cannot be ended otherwise",
    )
