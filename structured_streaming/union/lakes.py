"""How a session reads a lake: its tables as they are or were, and which versions of them one instant has."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import pyarrow.parquet as pq

from structured_streaming.catalog.lake_tables import check_tables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.commit.ends import FollowedEnds
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG, commit_name
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS
from structured_streaming.union.instants import Instant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReadableLake(Protocol):
    """Calls raise LakeError, and pyspark's errors where that is said."""

    def __str__(self) -> str:
        """For people."""

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """A table, or a version of it. Raises pyspark's AnalysisException when there is no such version."""

    def has_files(self, name: str, frame: DataFrame) -> bool:
        """Whether the files of a version are there, as far as that can be told without reading them."""

    def newest(self, tables: Iterable[str]) -> Instant:
        """With the versions of `tables` and of the progress, which is read first."""

    def committed(self) -> datetime.datetime | None:
        """When the newest batch was committed; None where that is not known."""


class FolderLake:
    """A lake in a folder or an object store, followed commit by commit."""

    def __init__(self, session: SparkSession, folder: Folder) -> None:
        self._session = session
        self._folder = folder
        self._logs: dict[str, TableLog] = {}
        self._ends = FollowedEnds(folder)

    def __str__(self) -> str:
        return str(self._folder)

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """See `ReadableLake.frame`."""
        reader = self._session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self._folder.child(name).spark_uri)

    def has_files(self, name: str, frame: DataFrame) -> bool:
        """See `ReadableLake.has_files`."""
        files = {unquote(uri.rpartition("/")[2]) for uri in frame.inputFiles()}
        return files.issubset(self._folder.child(name).names())

    def newest(self, tables: Iterable[str]) -> Instant:
        """See `ReadableLake.newest`."""
        progress = self._followed(REPUT_PROGRESS.name)
        ends, versions = self._ends.at(progress), {REPUT_PROGRESS.name: progress.version}
        for name in tables:
            if name not in versions:
                versions[name] = self._followed(name).version
        return Instant(ends, versions)

    def committed(self) -> datetime.datetime | None:
        """See `ReadableLake.committed`."""
        return committed(self._folder)

    def _followed(self, name: str) -> TableLog:
        if name in self._logs:
            self._logs[name].follow()
        else:
            self._logs[name] = TableLog(self._folder.child(name), reads=True)
        return self._logs[name]


class CatalogLake:
    """A lake in a schema of a catalog: what Spark knows of it. Raises LocationError for a schema that is none."""

    def __init__(self, session: SparkSession, schema: CatalogSchema) -> None:
        check_tables(session, schema)
        self._session = session
        self._schema = schema

    def __str__(self) -> str:
        return str(self._schema)

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """See `ReadableLake.frame`."""
        reader = self._session.read
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self._schema.table(name))

    def has_files(self, name: str, frame: DataFrame) -> bool:
        """See `ReadableLake.has_files`. A catalog's tables may be where only Spark can look."""
        return True

    def newest(self, tables: Iterable[str]) -> Instant:
        """See `ReadableLake.newest`."""
        versions = {REPUT_PROGRESS.name: self._version(REPUT_PROGRESS.name)}
        progress = self.frame(REPUT_PROGRESS.name, versions[REPUT_PROGRESS.name])
        rows = progress.groupBy("broker", "log_id").agg({"end_offset": "max"}).collect()
        for name in tables:
            if name not in versions:
                versions[name] = self._version(name)
        return Instant({(str(row[0]), str(row[1])): int(row[2]) for row in rows}, versions)

    def committed(self) -> datetime.datetime | None:
        """See `ReadableLake.committed`."""
        newest = (
            self.frame(REPUT_PROGRESS.name).selectExpr("unix_micros(max(commit_timestamp))").collect()[0][0]
        )
        if newest is None:
            return None
        return datetime.datetime.fromtimestamp(newest / 1_000_000, datetime.UTC)

    def _version(self, name: str) -> int:
        history = self._session.sql(f"DESCRIBE HISTORY {self._schema.table(name)} LIMIT 1")
        return int(history.collect()[0]["version"])


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
