"""Instants of a lake: up to where it holds each log, and which version of each table has that.

A version of a table that is as new as the progress row names, or newer, has every row below the row's offsets; what
it has above them is left out by offset. So the newest version serves as well as the one that is named, which may be
gone: versions are kept for a day, and maintenance rewrites files.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from structured_streaming.commit.ends import Ends
from structured_streaming.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Instant:
    """What a progress row says. `versions` are those of tables, by name; `batch` None: whatever is there."""

    ends: Ends
    versions: dict[str, int]
    batch: int | None = None
    committed: datetime.datetime | None = None


def age_of(time: datetime.datetime | None) -> str:
    """How old tables are whose newest batch was committed then, for people; empty where nothing was."""
    if time is None:
        return ""
    seconds = (datetime.datetime.now(datetime.UTC) - time).total_seconds()
    return f"as of {shown(time)} ({max(round(seconds), 0):,} s ago)"


def instant_of(progress: DataFrame, lake: str, moment: str) -> Instant:
    """The instant of a batch, by its number, or of a time: that of the last batch committed until then.

    `progress` has the rows of `reput_progress`, `lake` is its location for people. Raises LakeError.
    """
    first, last, newest = progress.selectExpr("min(batch)", "max(batch)", "max(commit_timestamp)").collect()[
        0
    ]
    if last is None:
        raise LakeError(f"the lake {lake} holds no batch yet; run `lakebroker reput`")
    asked = batch_or_time(moment)
    if isinstance(asked, int):
        batch = asked
        if not first <= batch <= last:
            raise LakeError(f"the lake {lake} has no batch {batch}; it has {first} to {last}")
        chosen = progress.where(progress.batch == batch)
    else:
        time = asked
        if time > datetime.datetime.now(datetime.UTC):
            raise LakeError(f"{moment} is in the future; the newest batch was committed at {shown(newest)}")
        chosen = progress.where(progress.commit_timestamp <= time)
    row = chosen.orderBy("batch", ascending=False).limit(1).collect()
    if not row:
        oldest = progress.selectExpr("min(commit_timestamp)").collect()[0][0]
        raise LakeError(
            f"at {moment} the lake {lake} held nothing: its first batch is {first}, committed at {shown(oldest)}"
            if not isinstance(asked, int)
            else f"the lake {lake} has no batch {moment}, though later ones; give another"
        )
    batch = row[0].batch
    rows = progress.where(progress.batch <= batch).groupBy("broker", "log_id").agg({"end_offset": "max"})
    ends = {(each[0], each[1]): each[2] for each in rows.collect()}
    return Instant(ends, dict(row[0].table_versions), batch, row[0].commit_timestamp)


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
