"""Instants of a lake: up to where it holds each log, and which version of each table has that.

A version of a table that is as new as the progress row names, or newer, has every row below the row's offsets; what
it has above them is left out by offset. So the newest version serves as well as the one that is named, which may be
gone: versions are kept for a day, and maintenance rewrites files.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq

from structured_streaming.commit.delta_commit import ends_of
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG, commit_name
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ends = dict[tuple[str, str], int]
"""Up to where logs are held, in bytes, by broker and log_id."""


@dataclass(frozen=True, slots=True)
class Instant:
    """What a progress row says. `versions` are those of tables, by name; `batch` None: whatever is there."""

    ends: Ends
    versions: dict[str, int]
    batch: int | None = None
    committed: datetime.datetime | None = None


class LakeVersions:
    """The newest instant of the lake in `folder`, followed commit by commit. Calls raise LakeError."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._logs: dict[str, TableLog] = {}

    def newest(self, tables: Iterable[str]) -> Instant:
        """With the versions of `tables` and of the progress, which is read first."""
        progress = self._followed(REPUT_PROGRESS.name)
        ends, versions = ends_of(progress), {REPUT_PROGRESS.name: progress.version}
        for name in tables:
            if name not in versions:
                versions[name] = self._followed(name).version
        return Instant(ends, versions)

    def _followed(self, name: str) -> TableLog:
        if name in self._logs:
            self._logs[name].follow()
        else:
            self._logs[name] = TableLog(self._folder.child(name), reads=True)
        return self._logs[name]


def committed(folder: Folder) -> datetime.datetime | None:
    """When the newest batch of a lake was committed; None where that is not known. Raises LakeError."""
    progress = folder.child(REPUT_PROGRESS.name)
    version = TableLog(progress, reads=True).version
    times: list[datetime.datetime] = []
    try:
        while not times and version > 0:
            for line in progress.child(LOG).read(commit_name(version)).splitlines():
                if file := json.loads(line).get("add"):
                    found = pq.read_table(
                        progress.readable(unquote(file["path"])), columns=["commit_timestamp"]
                    )
                    times += found["commit_timestamp"].drop_null().to_pylist()
            version -= 1
    except FileNotFoundError:  # maintenance has removed what is that old
        return None
    except (OSError, ValueError) as error:
        raise LakeError(f"table {progress}: {error}; its log cannot be used as it is") from error
    return max(times, default=None)


def age(folder: Folder) -> str:
    """How old a lake's tables are, for people; empty where nothing was committed. Raises LakeError."""
    time = committed(folder)
    if time is None:
        return ""
    seconds = (datetime.datetime.now(datetime.UTC) - time).total_seconds()
    return f"as of {shown(time)} ({max(round(seconds), 0):,} s ago)"


def instant_of(session: SparkSession, folder: Folder, moment: str) -> Instant:
    """The instant of a batch, by its number, or of a time: that of the last batch committed until then.

    Raises LakeError.
    """
    progress = session.read.format("delta").load(folder.child(REPUT_PROGRESS.name).spark_uri)
    first, last, newest = progress.selectExpr("min(batch)", "max(batch)", "max(commit_timestamp)").collect()[
        0
    ]
    if last is None:
        raise LakeError(f"the lake {folder} holds no batch yet; run `lakebroker reput`")
    if moment.isascii() and moment.isdigit():
        batch = int(moment)
        if not first <= batch <= last:
            raise LakeError(f"the lake {folder} has no batch {batch}; it has {first} to {last}")
        chosen = progress.where(progress.batch == batch)
    else:
        time = _time(moment)
        if time > datetime.datetime.now(datetime.UTC):
            raise LakeError(f"{moment} is in the future; the newest batch was committed at {shown(newest)}")
        chosen = progress.where(progress.commit_timestamp <= time)
    row = chosen.orderBy("batch", ascending=False).limit(1).collect()
    if not row:
        oldest = progress.selectExpr("min(commit_timestamp)").collect()[0][0]
        raise LakeError(
            f"at {moment} the lake {folder} held nothing: its first batch is {first}, committed at {shown(oldest)}"
            if not moment.isdigit()
            else f"the lake {folder} has no batch {moment}, though later ones; give another"
        )
    batch = row[0].batch
    rows = progress.where(progress.batch <= batch).groupBy("broker", "log_id").agg({"end_offset": "max"})
    ends = {(each[0], each[1]): each[2] for each in rows.collect()}
    return Instant(ends, dict(row[0].table_versions), batch, row[0].commit_timestamp)


def shown(time: datetime.datetime) -> str:
    """A time for people, UTC."""
    return f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _time(text: str) -> datetime.datetime:
    """ISO 8601, UTC where it names no zone."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise LakeError(
            f"{text} is neither the number of a batch nor a time such as 2026-11-24T03:40:12Z"
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
