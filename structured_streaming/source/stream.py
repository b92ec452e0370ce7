"""Micro-batches of the logs: where they begin, what each holds, and what Spark of which version is told.

| | Spark 4.2 and later | Spark 4.0 and 4.1 |
|---|---|---|
| asks with | `latestOffset(start, limit)` | `latestOffset()` |
| a stream's batch | at most `maxBytesPerTrigger` | all there is: the reader cannot know where the last batch ended |
| `Trigger.AvailableNow` | batches up to the end at the start | one batch |
| the reput's batch | at most `maxBytesPerTrigger` | the same: the lake says where the last batch ended |
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from store.log_source import LogState
from structured_streaming.errors import GapError, LostDataError, SourceError, UnreachableError
from structured_streaming.source.log_watch import PATIENCE_S, START_S, LogWatch
from structured_streaming.source.logs import by_broker
from structured_streaming.source.membership import Membership
from structured_streaming.source.notes import Notes
from structured_streaming.source.options import SourceOptions
from structured_streaming.source.pacing import Pacing
from structured_streaming.source.partition import LogPartition
from structured_streaming.source.planning import Plan, Planner, Plans, Progress, what_is_gone
from structured_streaming.source.reading import Reading

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL = True
except ImportError:  # Spark 4.0 and 4.1
    ADMISSION_CONTROL = False
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

UNLIMITED = 1 << 62
_IDLE_WAIT_MS = 250
_NOBODY_WAIT_S = 0.25
Offsets = dict[str, dict[str, Any]]


class _StreamReading(Reading):
    """The reader, whatever Spark's version.

    Where `progress` is given, it says where each batch begins. What is held ahead of it (tables of a lake, behind a
    crash between two of their commits) is caught up with by first batches of one log each, which end exactly at a stop.

    A log that begins above the progress raises GapError; with `over_gaps`, what is gone is a batch of its own, which ends
    where the log began when it was planned.
    """

    def __init__(
        self,
        options: SourceOptions,
        progress: Progress | None = None,
        pacing: Pacing | None = None,
        *,
        over_gaps: bool = False,
    ) -> None:
        super().__init__(options)
        self._over_gaps = over_gaps
        # a run that ends by itself is in no hurry: it waits for every log's answer
        patience_s = PATIENCE_S if options.ending is None else START_S
        self._note = Notes(options.notes)
        self._told_up_to_date = False
        self._watch = LogWatch(options.targets, options.access, self._note, patience_s)
        self._membership = Membership(
            options.name_servers, self._watch, self._note, fixed=options.ending is not None
        )
        self._until = options.ending
        self._last: Offsets = {}
        """What `latestOffset` gave last, or Spark told since."""
        self._plans: Plans = {}
        self._begun: Plans = {}
        self._appeared: dict[tuple[str, str], int] = {}
        """Where logs begin that no batch began with."""
        self._progress = progress
        self._ahead: set[str] = set()
        """Brokers whose logs the lake is ahead of, as they were asked last."""
        self._pacing = pacing or Pacing(0, 0)
        self._planner = Planner(
            self._watch, progress, self._note, options.partition_bytes, over_gaps=over_gaps
        )

    def initialOffset(self) -> Offsets:
        """Where the logs that answer begin; raises SourceError when none does."""
        states = self._first_states()
        if not states:
            nobody = self._watch.nobody()
            raise LostDataError(str(nobody)) if self._ahead else nobody
        self._last = {
            broker: {"log_id": state.log_id, "offset": self._first(state)}
            for broker, (_, state) in states.items()
        }
        return self._last

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[LogPartition]:
        """The ranges of a batch; only what was not planned by this reader is asked for now."""
        found = []
        self._begun = {}
        for broker, to in end.items():
            key = (broker, to["log_id"])
            begin = self._begin(broker, to["log_id"], start.get(broker))
            begin = self._appeared.get(key) if begin is None else begin
            plan = self._plans.get(key)
            if begin is not None and begin >= to["offset"]:
                continue
            if begin is None and plan is None and start.get(broker) == to:
                continue  # Spark makes its first batch also of a log that was too slow to be looked at
            if plan is None or plan.cuts[-1] != to["offset"] or begin not in (None, plan.cuts[0]):
                plan = self._planned(broker, to["log_id"], begin, to["offset"])
            self._begun[key] = plan
            found += self.parts(plan.target, plan.state, plan.cuts, missing=plan.missing, erased=plan.erased)
        return found

    def commit(self, end: Offsets) -> None:
        """Its own progress counts, or Spark's, not this."""

    def stop(self) -> None:
        """Of a query that ends."""
        self._membership.stop()

    def _present(
        self, wait_ms: int = 0, after: Mapping[str, int] | None = None
    ) -> dict[str, tuple[str, LogState]]:
        """Targets and states of the logs that answer, by broker. Raises SameBrokerError.

        A log that the lake is ahead of is left alone: it may be restored.
        """
        states = by_broker(self._membership.accepted(self._watch.states(wait_ms, after)))
        self._ahead = set[str]()
        for broker, (target, state) in states.items():
            known = self._position(broker, state.log_id)
            if known is not None and known > state.end:
                self._ahead.add(broker)
                self._watch.rest(target, _what_was_lost(state, known))
        return {broker: found for broker, found in states.items() if broker not in self._ahead}

    def _first_states(self, everyone: bool = False) -> dict[str, tuple[str, LogState]]:
        """States of the logs that answer, once one does (or all did or failed); empty when none can be reached."""
        until = time.monotonic() + START_S
        self._membership.update()
        states = self._present()
        while self._watch.unanswered and (everyone or not states) and time.monotonic() < until:
            time.sleep(_NOBODY_WAIT_S)
            states = self._present()
        return states

    def _latest(self, start: Offsets, room: int) -> Offsets:
        """The end of the next batch, of at most `room` bytes; it is planned here."""
        self._last = {broker: dict(value) for broker, value in start.items()}
        self._pacing.begun()
        self._look_back()
        self._membership.update()
        states, firsts = self._look()
        if states and not self._backlog(states, firsts):
            if not self._watch.missing():
                self._tell_up_to_date()
            self._pacing.nothing_there()
            after = {target: state.end for target, state in states.values()}
            states, firsts = self._look(_IDLE_WAIT_MS, after)
        if not states:
            time.sleep(_NOBODY_WAIT_S)
        elif self._backlog(states, firsts):
            states, firsts = self._gathered(states)
        for broker, (_, state) in states.items():
            unread = self._progress is not None and self._position(broker, state.log_id) is None
            if unread or self._last.get(broker, {}).get("log_id") != state.log_id:
                self._appeared[broker, state.log_id] = firsts[broker]
            self._last[broker] = {"log_id": state.log_id, "offset": firsts[broker]}
        ends = {broker: self._end(state) for broker, (_, state) in states.items()}
        self._plans = self._planner.plan(states, firsts, ends, room)
        for (broker, log_id), plan in self._plans.items():
            self._last[broker] = {"log_id": log_id, "offset": plan.cuts[-1]}
        if self._plans:
            took_all = all(plan.cuts[-1] >= self._end(plan.state) for plan in self._plans.values())
            self._pacing.planned(took_all=took_all)
        return self._last

    def _gathered(
        self, states: dict[str, tuple[str, LogState]]
    ) -> tuple[dict[str, tuple[str, LogState]], dict[str, int]]:
        """As `_look`, when the batch should begin; a log that is slow to answer need not answer to every look."""

        def waiting_bytes() -> int:
            states.update(self._look()[0])
            return self._backlog(states, self._firsts(states))

        self._pacing.gather(waiting_bytes)
        return states, self._firsts(states)

    def _look(
        self, wait_ms: int = 0, after: Mapping[str, int] | None = None
    ) -> tuple[dict[str, tuple[str, LogState]], dict[str, int]]:
        """States of the logs that are present by broker, and where the next batch begins in each."""
        self._pacing.looking()
        states = self._present(wait_ms, after)
        return states, self._firsts(states)

    def _backlog(self, states: Mapping[str, tuple[str, LogState]], firsts: Mapping[str, int]) -> int:
        """Bytes that are behind where the next batch begins."""
        return sum(max(self._end(state) - firsts[broker], 0) for broker, (_, state) in states.items())

    def _tell_up_to_date(self) -> None:
        """Once, to who watches a reput that goes on."""
        if self._progress is not None and self.options.ending is None and not self._told_up_to_date:
            self._told_up_to_date = True
            self._note("the lake is up to date; waiting for more")

    def _look_back(self) -> None:
        """What became of the last batch; offsets of the lake count, whatever Spark believes."""
        if self._progress is not None:
            self._progress.refresh()
        for (broker, log_id), plan in self._begun.items():
            reached = self._position(broker, log_id)
            if self._progress is None or (reached is not None and reached > plan.cuts[0]):
                self._watch.read(plan.target)
            if self._progress is not None and (reached is None or reached < plan.cuts[-1]):
                self._watch.rest(plan.target, f"{plan.target} could not be read", told=True)
        self._begun = {}
        for broker, known in self._last.items():
            reached = self._position(broker, known["log_id"])
            if reached is None and self._progress is not None:  # nothing was read of what was planned
                reached = self._appeared.get((broker, known["log_id"]))
            if reached is not None:
                known["offset"] = reached

    def _planned(self, broker: str, log_id: str, begin: int | None, end: int) -> Plan:
        """The plan of a batch that another reader began. Raises SourceError."""
        target, state = self._awaited(broker)
        if state is None or state.log_id != log_id:
            raise UnreachableError(
                f"log {log_id} of broker {broker} cannot be reached now; start its gateway"
            )
        first = begin if begin is not None else self._first(state)
        return self._planner.planned(target, state, first, end)

    def _awaited(self, broker: str) -> tuple[str, LogState | None]:
        """A broker's log, also when it is slow to answer."""
        until = time.monotonic() + START_S
        self._membership.update()
        states = self._present()
        while broker not in states and self._watch.asking and time.monotonic() < until:
            time.sleep(_NOBODY_WAIT_S)
            states = self._present()
        return states.get(broker, ("", None))

    def _end(self, state: LogState) -> int:
        """Where reading ends; a log that appears in a run that ends by itself is read up to its end then."""
        if self._until is None:
            return state.end
        return min(state.end, self._until.setdefault(state.broker, state.end))

    def _firsts(self, states: dict[str, tuple[str, LogState]]) -> dict[str, int]:
        """Where the next batch begins in each log. Raises SourceError."""
        firsts = {}
        for broker, (_, state) in states.items():
            begin = self._begin(broker, state.log_id, self._last.get(broker))
            if begin is None or self._progress is not None:
                begin = self._first(state)
            firsts[broker] = begin
        return firsts

    def _begin(self, broker: str, log_id: str, known: dict[str, Any] | None) -> int | None:
        """Where a batch of a log begins: by the lake, and by Spark only where none is written to; None when it knows nothing of the log.

        Spark counts what was planned as read, also where a broker died before its log's first batch had anything of it.
        """
        if self._progress is not None:
            return self._position(broker, log_id)
        return known["offset"] if known is not None and known["log_id"] == log_id else None

    def _position(self, broker: str, log_id: str) -> int | None:
        """Up to where the lake holds a log; None when it knows nothing of it, or none is written to."""
        return self._progress.position(broker, log_id) if self._progress is not None else None

    def _first(self, state: LogState) -> int:
        """Where a log that no offset names yet begins. Raises SourceError."""
        known = self._position(state.broker, state.log_id)
        if known is not None:
            if known < state.start and not self._over_gaps:
                raise GapError(
                    f"{what_is_gone(state, known, state.start)}; restore the segments, or give `--on-gap continue` to "
                    "record the gap in the lake's table quarantine and go on"
                )
            return known
        starting = self.options.starting
        if self._progress is not None or starting == "earliest":
            return state.start
        if isinstance(starting, dict):
            return starting.get(state.broker, state.start)
        return state.end


def _what_was_lost(state: LogState, known: int) -> str:
    return (
        f"the lake holds broker {state.broker} up to offset {known}, its log {state.log_id} ends at {state.end}: data "
        "were lost, or this is an older copy of the log; restore what is missing"
    )


if ADMISSION_CONTROL:

    class LogStreamReader(_StreamReading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """The reader for Spark 4.2 and later."""

        def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
            room = UNLIMITED if isinstance(limit, ReadAllAvailable) else self.options.max_bytes
            return self._latest(start, room)

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxBytes(self.options.max_bytes)

        def prepareForTriggerAvailableNow(self) -> None:
            self._until = {} if self._until is None else self._until
            self._watch.patience_s = START_S  # it ends by itself
            for _, state in self._first_states().values():
                self._end(state)

else:

    class LogStreamReader(_StreamReading, DataSourceStreamReader):  # type: ignore[misc,no-redef]
        """The reader for Spark 4.0 and 4.1, which ask for the latest offset without saying where they are."""

        def __init__(
            self,
            options: SourceOptions,
            progress: Progress | None = None,
            pacing: Pacing | None = None,
            *,
            over_gaps: bool = False,
        ) -> None:
            super().__init__(options, progress, pacing, over_gaps=over_gaps)
            if options.max_bytes_given and progress is None:
                raise SourceError(
                    "option maxBytesPerTrigger needs Spark 4.2 or later; leave it out and batches hold all there is"
                )

        def latestOffset(self) -> Offsets:  # type: ignore[override]
            if self._progress is not None:
                return self._latest(self._last, self.options.max_bytes)
            states = self._first_states(everyone=True)
            if states and all(
                self._last.get(broker) == self._offset(state) for broker, (_, state) in states.items()
            ):
                after = {target: state.end for target, state in states.values()}
                states = self._present(_IDLE_WAIT_MS, after)
            if never := self._watch.never_seen():
                # with its place missing in the offset, it would be read from its beginning again
                raise SourceError("; ".join(never))
            self._last = self._last | {broker: self._offset(state) for broker, (_, state) in states.items()}
            return self._last

        def _offset(self, state: LogState) -> dict[str, Any]:
            return {"log_id": state.log_id, "offset": self._end(state)}
