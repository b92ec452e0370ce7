"""Instants of a lake: up to where it holds each log, and which version of each table has that.

A version of a table that is as new as the progress row names, or newer, has every row below the row's offsets; what
it has above them is left out by offset. So the newest version serves as well as the one that is named, which may be
gone: versions are kept for a day, and maintenance rewrites files.
"""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from structured_streaming.commit.ends import Ends
from structured_streaming.erased import NOTHING_ERASED, Erased
from structured_streaming.errors import LakeError
from structured_streaming.tables import ERASURES, REPUT_PROGRESS, UPKEEP


@dataclass(frozen=True, slots=True)
class Instant:
    """What a progress row says. `versions` are those of tables, by name; `batch` None: whatever is there. `retired`: brokers that
    views and unions leave out; `hidden`: erased records that tables may have rows of, which are left out."""

    ends: Ends
    versions: dict[str, int]
    batch: int | None = None
    committed: datetime.datetime | None = None
    retired: frozenset[str] = frozenset()
    hidden: Erased = NOTHING_ERASED

    @property
    def left_out(self) -> Erased:
        """Of the hidden records those that rows of the instant may be of: none beyond its ends, or of a log that it has nothing of."""
        return self.hidden.below(self.ends)

    def rows_of(self, table: str) -> Rows:
        """Which rows of a table are its: a crash, or a later batch, left others above."""
        if table == UPKEEP.name:
            return Rows()
        if table == REPUT_PROGRESS.name:
            return Rows(to_batch=self.batch)
        return Rows(self.ends, by_hand=table == ERASURES.name)

    def without_retired(self) -> Instant:
        """For a union: nothing of brokers that are retired."""
        ends = {log: end for log, end in self.ends.items() if log[0] not in self.retired}
        return dataclasses.replace(self, ends=ends)

    def without(self, erased: Erased) -> Instant:
        """With further records that are left out."""
        return dataclasses.replace(self, hidden=self.hidden.together(erased)) if len(erased) else self


class Rows(NamedTuple):
    """Rows of a table, for who says it in an engine's words: those below the ends of their logs, and with `by_hand` those that no batch
    brought (`BY_HAND`); those of batches up to one. None: all."""

    below: Ends | None = None
    to_batch: int | None = None
    by_hand: bool = False


def age_of(time: datetime.datetime | None) -> str:
    """How old tables are whose newest batch was committed then, for people; empty where nothing was."""
    if time is None:
        return ""
    seconds = (datetime.datetime.now(datetime.UTC) - time).total_seconds()
    return f"as of {shown(time)} ({max(round(seconds), 0):,} s ago)"


class Batches(Protocol):
    """The rows of `reput_progress`, of which a lake has one for each batch and log for as long as it lives: what is asked of them is
    told without all of them in memory. Calls raise what reading a table raises."""

    def span(self) -> Span | None:
        """None of a lake without batches."""

    def last(self, until: datetime.datetime) -> int | None:
        """The greatest batch of those committed until then."""

    def at(self, batch: int) -> tuple[dict[str, int], datetime.datetime] | None:
        """Versions of tables that hold it, and when it was committed; None where there is no such batch."""

    def ends(self, batch: int) -> Ends:
        """Up to where it, and those before it, hold each log."""


class Span(NamedTuple):
    """Least and greatest batch, first and last time of a commit."""

    first: int
    last: int
    oldest: datetime.datetime
    newest: datetime.datetime


def instant_of(batches: Batches, lake: str, moment: str) -> Instant:
    """The instant of a batch, by its number, or of a time: that of the last batch committed until then.

    `lake` is its location for people. Raises LakeError.
    """
    span = batches.span()
    if span is None:
        raise LakeError(f"the lake {lake} holds no batch yet; run `lakebroker reput`")
    asked = batch_or_time(moment)
    batch: int | None
    if isinstance(asked, int):
        batch = asked
        if not span.first <= asked <= span.last:
            raise LakeError(f"the lake {lake} has no batch {asked}; it has {span.first} to {span.last}")
    else:
        if asked > datetime.datetime.now(datetime.UTC):
            raise LakeError(
                f"{moment} is in the future; the newest batch was committed at {shown(span.newest)}"
            )
        batch = batches.last(asked)
    found = None if batch is None else batches.at(batch)
    if batch is None or found is None:
        raise LakeError(
            f"at {moment} the lake {lake} held nothing: its first batch is {span.first}, committed at {shown(span.oldest)}"
            if not isinstance(asked, int)
            else f"the lake {lake} has no batch {moment}, though later ones; give another"
        )
    versions, committed = found
    return Instant(batches.ends(batch), versions, batch, committed)


def as_of(instant: Instant) -> str:
    """For people, of a batch's instant."""
    assert instant.committed is not None
    return f"tables as of batch {instant.batch}, committed at {shown(instant.committed)}"


def version_gone(table: str, instant: Instant) -> str:
    """For people, of a table whose version of a batch's instant is not there any more."""
    return (
        f"version {instant.versions.get(table, 0)} of {table} is gone; its newest is read up to batch {instant.batch}, without "
        "what was deleted since"
    )


def shown(time: datetime.datetime) -> str:
    """A time for people, UTC."""
    return f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def batch_or_time(text: str) -> int | datetime.datetime:
    """The number of a batch, or a time: ISO 8601, UTC where it names no zone. Raises LakeError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise LakeError(
            f"{text} is neither the number of a batch nor a time such as 2026-11-24T03:40:12Z"
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
