"""What logs hold beyond a lake: where each is read from. The rule that leaves no gap between the two is here alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from store.log_source import LogState
from structured_streaming.commit.ends import Ends
from structured_streaming.errors import LakeError, SourceError


class Tail(NamedTuple):
    """Target and state of a log, and the offset from which on it is read."""

    target: str
    state: LogState
    start: int


def tails_of(logs: Iterable[tuple[str, LogState]], ends: Ends) -> list[Tail]:
    """Of logs (target and state) those parts that a lake has not, which holds each up to `ends`. Raises SourceError."""
    found = [Tail(target, state, _start(state, ends)) for target, state in logs]
    return [tail for tail in found if tail.start < tail.state.end]


def not_filled(table: str, size: int) -> LakeError:
    """A typed table of which the lake has more of the logs than the table."""
    return LakeError(
        f"table {table} lacks {size:,} bytes of the logs that the lake has: a reput that runs fills it soon, where it was declared "
        "lately; where `lakebroker typed list` says filling, `lakebroker maintain` does, or `lakebroker typed fill`; ask again then, or read "
        "the tables alone"
    )


def without_log(broker: str) -> str:
    """For people: of a broker there is no log to read."""
    return f"of broker {broker} there is only what the lake holds: its log is not among those read"


def _start(state: LogState, ends: Ends) -> int:
    """Where the lake ends in a log. Raises SourceError when the two do not meet."""
    reached = ends.get((state.broker, state.log_id))
    if reached is None:
        return state.start
    if reached < state.start:
        raise SourceError(
            f"the log of broker {state.broker} begins at {state.start}, the lake holds it up to {reached}: "
            f"{state.start - reached} bytes are in neither; restore the segments, or read the tables alone"
        )
    if reached > state.end:
        raise SourceError(
            f"the lake holds broker {state.broker} up to offset {reached}, its log {state.log_id} ends at "
            f"{state.end}: data were lost, or this is an older copy; restore what is missing, or read the tables "
            "alone"
        )
    return reached
