"""What the next batch reads of each log: a fair share, up to a fence, or the gap that is next.

A fence is an offset at which some table of the lake stands ahead of its progress, behind a crash between two commits: the
batch has to end there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from store.log.erased import NOTHING, Offsets
from store.log_source import LogState
from structured_streaming.errors import SourceError
from structured_streaming.source.log_watch import START_S, LogWatch, Question
from structured_streaming.source.shares import fair_shares


class Progress(Protocol):
    """What is known of each log where the rows go: it says where batches begin, not Spark."""

    def position(self, broker: str, log_id: str) -> int | None:
        """Up to where a log is held, at the last `refresh`; None when nothing is known of it."""

    def refresh(self) -> None:
        """Makes `position` tell what is held now."""

    def stops(self, broker: str, log_id: str) -> list[int]:
        """Offsets behind that at which a batch has to end, ascending."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next batch reads of a log: the ranges between `cuts`; `missing`: they are gone. `erased`: where records begin that
    are left out, ascending."""

    target: str
    state: LogState
    cuts: list[int]
    missing: bool = False
    erased: Offsets = field(default_factory=lambda: NOTHING, compare=False)


Plans = dict[tuple[str, str], Plan]
"""By broker and log_id."""


class Planner:
    """Plans batches of the logs in `watch`, in ranges of about `partition_bytes`; `progress` is None where none is kept.

    With `over_gaps` what is gone of a log is planned as a batch of its own; `note` tells a person.
    """

    def __init__(
        self,
        watch: LogWatch,
        progress: Progress | None,
        note: Callable[[str], None],
        partition_bytes: int,
        *,
        over_gaps: bool,
    ) -> None:
        self._watch = watch
        self._progress = progress
        self._note = note
        self._partition_bytes = partition_bytes
        self._over_gaps = over_gaps
        self._stops: dict[tuple[str, str], list[int]] = {}
        self._erased: dict[tuple[str, str], tuple[int, Offsets]] = {}
        """By log: the version of the list that was asked for last, and the list."""

    def plan(
        self,
        states: Mapping[str, tuple[str, LogState]],
        firsts: Mapping[str, int],
        ends: Mapping[str, int],
        room: int,
    ) -> Plans:
        """Fair shares of the next batch, cut into ranges by all logs at once; or one log that catches up, or has a gap."""
        questions: dict[str, Question[list[int]]] = {}
        shares: dict[str, int] = {}
        for broker, (target, state) in states.items():
            if self._is_gone(state, firsts[broker]):
                return {(broker, state.log_id): self._gap(target, state, firsts[broker])}
        fences = {broker: self._fence(state, firsts[broker]) for broker, (_, state) in states.items()}
        behind = next((broker for broker, fence in fences.items() if fence > firsts[broker]), None)
        if behind is not None:
            # alone: of several logs a crash may leave a table with some and not the others, which no batch fits
            target, state = states[behind]
            questions[target] = self._cutting(state.log_id, firsts[behind], fences[behind])
        else:
            backlogs = {
                broker: backlog for broker in states if (backlog := ends[broker] - firsts[broker]) > 0
            }
            for broker, share in fair_shares(backlogs, room).items():
                target, state = states[broker]
                shares[target] = share
                questions[target] = self._cutting(state.log_id, firsts[broker], ends[broker], share)
        cuts = {
            target: _within(found, shares.get(target, 0))
            for target, found in self._watch.each(questions).items()
        }
        plans = {
            (state.broker, state.log_id): Plan(target, state, cuts[target])
            for target, state in states.values()
            if target in cuts
        }
        return self._without_erased(plans)

    def planned(self, target: str, state: LogState, first: int, end: int) -> Plan:
        """The plan of a batch that another reader began. Raises SourceError."""
        if self._is_gone(state, first):
            if end > state.start:
                raise SourceError(
                    f"{what_is_gone(state, first, state.start)}; the batch holds more than that"
                )
            return Plan(target, state, [first, end], missing=True)
        cuts = self._watch.each({target: self._cutting(state.log_id, first, end)}, START_S)
        if target not in cuts:
            raise SourceError(self._watch.missing().get(target, f"{target} does not answer"))
        plan = Plan(target, state, cuts[target])
        for found in self._without_erased({(state.broker, state.log_id): plan}, START_S).values():
            return found
        raise SourceError(self._watch.missing().get(target, f"{target} does not answer"))

    def _without_erased(self, plans: Plans, patience_s: float | None = None) -> Plans:
        """Plans that know which records are erased; a log that does not say so in time is left for the next batch."""
        questions: dict[str, Question[Offsets]] = {}
        for key, plan in plans.items():
            version = plan.state.erased_version
            if version and self._erased.get(key, (0, NOTHING))[0] != version:
                questions[plan.target] = _listing(plan.state.log_id, version)
        lists = self._watch.each(questions, patience_s) if questions else {}
        found: Plans = {}
        for key, plan in plans.items():
            version = plan.state.erased_version
            if plan.target in lists:
                self._erased[key] = version, lists[plan.target]
            if not version:
                found[key] = plan
            elif plan.target in lists or plan.target not in questions:
                found[key] = replace(plan, erased=self._erased[key][1])
        return found

    def _is_gone(self, state: LogState, first: int) -> bool:
        """Whether what a batch is to begin with is gone, and the lake goes on without it."""
        return self._over_gaps and self._progress is not None and first < state.start

    def _gap(self, target: str, state: LogState, first: int) -> Plan:
        """What is gone of a log, up to the first table that stands within it; a person is told."""
        fence = self._fence(state, first)
        end = min(state.start, fence) if fence > first else state.start
        self._note(f"{what_is_gone(state, first, end)}; the lake's table quarantine says so, and it goes on")
        return Plan(target, state, [first, end], missing=True)

    def _cutting(self, log_id: str, start: int, end: int, limit: int = 0) -> Question[list[int]]:
        """Asks for the ranges from `start` on; with a limit the end, which moves on, is not part of the question."""
        size = self._partition_bytes
        about = (log_id, start, 0 if limit else end)
        return Question(about, lambda log: log.split(log_id, start, end, size, limit))

    def _fence(self, state: LogState, first: int) -> int:
        """The next offset at which some table stands ahead of the lake's progress; -1 without one."""
        key = (state.broker, state.log_id)
        if key not in self._stops:
            self._stops[key] = self._progress.stops(*key) if self._progress is not None else []
        return next((stop for stop in self._stops[key] if stop > first), -1)


def _listing(log_id: str, version: int) -> Question[Offsets]:
    return Question(("erased", log_id, version), lambda log: log.erased(log_id))


def what_is_gone(state: LogState, first: int, end: int) -> str:
    """Of a log that begins above what the lake has of it, for people."""
    return (
        f"of broker {state.broker}, log {state.log_id}, {end - first} bytes are gone, from {first}, which the lake has "
        f"come to, to {end}: the log begins at {state.start}"
    )


def _within(cuts: list[int], share: int) -> list[int]:
    """Of cuts that were asked for when the share was another: those within it (0: all), but one range at least."""
    return [cut for number, cut in enumerate(cuts) if number < 2 or not share or cut - cuts[0] <= share]
