"""Writing the journal: everything that changed in one tick of the event loop becomes one record.

Owns batching, when snapshots are made, what happens when the log takes nothing, and the callbacks of those who wait.
What there is to write, contributors know (`contributor.py`). Runs on the event loop. A batch is appended at the end of
the tick, or at once when it has grown past `EVENTS_A_RECORD`. A complete snapshot (`snapshot.py`) is begun when the log
has grown enough since the one before, and one part of it is appended a tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import structlog

from broker_gateway.journal.contributor import Contributor
from broker_gateway.journal.record import EVENTS_A_RECORD, EVENTS_TAG, SNAPSHOT_TAG, encode
from broker_gateway.journal.replay import Replayed, replay
from broker_gateway.journal.snapshot import Snapshot, SnapshotPace, retold
from broker_gateway.runtime.clock import monotonic_s
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.errors import StoreError, StoreReadOnlyError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_SNAPSHOT_AGAIN_S, _SNAPSHOT_LONGEST_WAIT_S = 10.0, 600.0
_LOST_AGAIN_S = 0.5
_LONGEST_WAIT_S = 5.0
"""Between attempts to append when one failed, each longer than the one before: they make snapshots."""


class Journal:
    """Appends what its contributors note to the journal topic, and has them apply it at the next start."""

    def __init__(
        self,
        store: MessageStore,
        pace: SnapshotPace,
        schedule: Callable[[Callable[[], None]], None],
        next_tick: Callable[[Callable[[], None]], object],
    ) -> None:
        """`schedule` runs what it is given at the end of the tick, `next_tick` in the next one."""
        self._store = store
        self._pace = pace
        self._schedule = schedule
        self._next_tick = next_tick
        self._contributors: list[Contributor] = []
        self._snapshot: Snapshot | None = None
        """The one under way."""
        self._snapshot_at = 0
        self._snapshot_size = 0
        """Of the newest complete one of this run: where it begins, and its bytes."""
        self._snapshot_not_before = 0.0
        self._snapshot_wait_s = _SNAPSHOT_AGAIN_S
        self._unflushed: list[tuple[int, int]] = []
        self._needed_from = 0
        self._pending = 0
        self._scheduled = False
        self._read_only = False
        self._no_room = False
        self._lost: Exception | None = None
        """Why something noted is in memory only; None when nothing is."""
        self._losses = 0
        self._again_at = 0.0
        self._wait_s = _LOST_AGAIN_S
        self._waiting: list[Callable[[Exception | None], None]] = []

    def register(self, contributor: Contributor) -> None:
        """Adds one behind those that are there: in this order they fill a record, and apply it."""
        self._contributors.append(contributor)

    def replay(self) -> Replayed:
        """Has the contributors apply what the log holds; raises JournalVersionError."""
        replayed = replay(self._store, self._contributors)
        self._snapshot_at = self._needed_from = replayed.snapshot_offset
        return replayed

    def needed_from(self) -> int:
        """Before it a start reads nothing: the newest complete snapshot that is on disk begins there, or the replay of
        a contributor does."""
        self._to_be_flushed()
        snapshot = self._needed_from
        return min((each.starts_at(snapshot) for each in self._contributors), default=snapshot)

    def _to_be_flushed(self) -> bool:
        """Whether a complete snapshot is not on disk yet."""
        while self._unflushed and self._unflushed[0][1] <= self._store.flushed_offset:
            self._needed_from = self._unflushed.pop(0)[0]
        return bool(self._unflushed)

    def make_room(self, count: int) -> None:
        """Writes what is pending when `count` more would make its record too long; raises what the append raised.

        So that what is noted together, and done when it is noted, stands in one record.
        """
        if self._pending and self._pending + count > EVENTS_A_RECORD:
            self.write()

    def noted(self, count: int) -> None:
        """A contributor has something to write at the end of the tick, about `count` events of it."""
        self._pending += count
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._end_of_tick)

    def append_first(self, batches: Iterable[pb.Batch]) -> None:
        """Appends what is not done yet behind all that was noted, all or none; raises what the append raised.

        To be called before it is done. It is in no contributor's hands: what was not appended is not told again.
        """
        self.write(at_once=True)
        self._append([(batch, EVENTS_TAG) for batch in batches])

    def mark(self) -> int:
        """For `after`: before somebody notes what it will wait for."""
        return self._losses

    def after(self, callback: Callable[[Exception | None], None], since: int | None = None) -> None:
        """Calls `callback` when everything noted so far is in the log, or with what the append raised; also with what
        an append raised that has failed already, where that was behind the mark `since`."""
        if self._pending:  # the next record says all that was lost, too
            self._waiting.append(callback)
        elif since is not None and since != self._losses and self._lost is not None:
            callback(_same(self._lost))
        else:
            callback(None)

    def keep(self, roll_back: Callable[[], None]) -> None:
        """Appends what is noted. Else `roll_back` is called, and what the append raised is raised."""
        try:
            self.write(at_once=True)
        except (StoreError, OSError):
            roll_back()
            raise

    def write(self, *, at_once: bool = False) -> None:
        """Appends what is pending now, then begins a snapshot if one is due. The caller and all who wait get an error.

        What could not be appended is in memory only, and later records may build on it: the next one that can be
        appended says how all of that is. It is not tried again for a while, unless `at_once`.
        """
        if not self._pending:
            return
        if self._lost is not None and not at_once and monotonic_s() < self._again_at:
            error = _same(self._lost)
            self._give_up(error)
            raise error
        self._append_pending()
        if self._snapshot is None and self._pace.due(
            self._store.max_offset - self._snapshot_at, self._snapshot_size
        ):
            self.begin_snapshot()

    def begin_snapshot(self) -> None:
        """Begins a complete snapshot, of which a part is appended each tick.

        Not while one is under way or not on disk yet, nor for a while after one failed.
        """
        if self._snapshot is not None or self._to_be_flushed() or monotonic_s() < self._snapshot_not_before:
            return
        self._snapshot = self._begun()
        self._next_tick(self._at_the_end)

    def _begun(self) -> Snapshot:
        """A start reads the journal from the log's end on: what is pending comes behind it."""
        return Snapshot(self._contributors, self._store.max_offset)

    def _at_the_end(self) -> None:
        self._schedule(self._write_part)

    def _write_part(self) -> None:
        """A failure is no error of anybody's call: it is tried again after a while, each time a longer one, since all
        of the parts are written anew."""
        try:
            self._append_part()
        except Exception as error:
            self._snapshot_not_before = monotonic_s() + self._snapshot_wait_s
            self._snapshot_wait_s = min(self._snapshot_wait_s * 2, _SNAPSHOT_LONGEST_WAIT_S)
            known = isinstance(error, (StoreError, OSError))
            log.error(
                "a snapshot could not be written; it is tried again",
                error=str(error),
                exc_info=None if known else error,
            )
        else:
            if self._snapshot is not None:
                self._next_tick(self._at_the_end)

    def _append_part(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:  # one was written at once meanwhile
            return
        try:
            if self._pending:
                self._append_pending()
            self._append([(snapshot.next_part(), SNAPSHOT_TAG)])
        except BaseException:
            self._snapshot = None
            raise
        if snapshot.complete:
            self._snapshot, self._snapshot_wait_s = None, _SNAPSHOT_AGAIN_S
            self._snapshot_at, self._snapshot_size = snapshot.log_offset, snapshot.size
            self._unflushed.append((snapshot.log_offset, self._store.max_offset))

    def write_snapshot(self) -> None:
        """Appends what is pending and the complete state, at once.

        For stops: it takes time in proportion to the state.
        """
        self._snapshot = self._begun()
        while self._snapshot is not None:
            self._append_part()

    def _append_pending(self) -> None:
        """What is pending and, behind it, how everything is that the log was not told of."""
        try:
            records = [(part, EVENTS_TAG) for part in self._taken()]
            if self._lost is not None:
                records += [(part, SNAPSHOT_TAG) for part in retold(self._contributors)]
            self._append(records)
        except Exception as error:
            self._lose(error)
            raise
        if self._lost is not None:
            self._lost, self._wait_s = None, _LOST_AGAIN_S
        for each in self._contributors:
            each.written()
        self._end_pending(None)

    def _lose(self, error: Exception) -> None:
        self._lost = error
        read_only = isinstance(error, StoreReadOnlyError)  # for good
        self._again_at = math.inf if read_only else monotonic_s() + self._wait_s
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """What is pending is not going to be appended."""
        self._losses += 1
        for each in self._contributors:
            each.lost()
        self._end_pending(error)

    def _end_pending(self, error: Exception | None) -> None:
        """Clears what was pending and tells those who waited for it."""
        self._pending = 0
        waiting, self._waiting = self._waiting, []
        _tell(waiting, error)

    def _taken(self) -> list[pb.Batch]:
        """What is pending, as a record; several for more than one holds."""
        batch = pb.Batch()
        records = [batch]
        for each in self._contributors:
            records += each.fill(batch)
        return records

    def _end_of_tick(self) -> None:
        self._scheduled = False
        if not self._pending:
            return
        try:
            self.write()
        except (
            StoreReadOnlyError
        ) as error:  # the waiting calls were refused; a traceback in every tick would delay receives
            if not self._read_only:
                self._read_only = True
                log.error("nothing is journaled any more; what is acknowledged is refused", error=str(error))
        except OSError as error:
            if not self._no_room:
                log.error(
                    "changes cannot be journaled; calls that wait for them are refused", error=str(error)
                )
            self._no_room = True
        else:
            if self._no_room:
                log.info("changes are journaled again")
            self._no_room = False

    def _append(self, batches: Sequence[tuple[pb.Batch, str]]) -> None:
        """All of them or none."""
        host = self._store.store_host.packed
        self._store.append([encode(batch, tag, host) for batch, tag in batches])


def _tell(waiting: Iterable[Callable[[Exception | None], None]], error: Exception | None) -> None:
    """Calls those who waited for an append; what one of them raises is kept from the others."""
    for callback in waiting:
        try:
            callback(error)
        except Exception:
            log.exception("a callback of the journal failed")


def _same(error: Exception) -> Exception:
    """One to raise anew: a raised one keeps its traceback."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror)
    return type(error)(*error.args)
