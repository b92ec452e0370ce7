"""How a session reads a lake: its tables as they are or were, and which versions of them one instant has."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from structured_streaming.catalog.lake_tables import check_tables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.catalog.upkeep import read_catalogs_upkeep
from structured_streaming.commit.ends import Ends
from structured_streaming.erased import Erased
from structured_streaming.erasures import COLUMNS, Naming
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import ERASURES, REPUT_PROGRESS
from structured_streaming.typed.declaration import Declaration
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant, Span, instant_of
from structured_streaming.union.past import instant_then, is_there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class ReadableLake(Protocol):
    """Calls raise LakeError, and pyspark's errors where that is said."""

    def __str__(self) -> str:
        """For people."""

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """A table, or a version of it. Raises pyspark's AnalysisException when there is no such version."""

    def has_files(self, name: str, version: int) -> bool:
        """Whether a version of a table and its files are there, as far as that can be told without reading them."""

    def then(self, moment: str) -> Instant:
        """The instant that a batch, by its number, or a time had, as the progress says."""

    def newest(self, tables: Iterable[str]) -> Instant:
        """With the versions of `tables` and of the progress, which is read first."""

    def emptied(self, tables: Iterable[str]) -> Iterable[str]:
        """What is to be said of tables that others emptied, as far as that is known; each once."""

    def committed(self) -> datetime.datetime | None:
        """When the newest batch was committed; None where that is not known."""

    def typed(self) -> list[Declaration]:
        """Its typed topics whose tables can be read."""

    def lacks(self, declared: Declaration, ends: Ends) -> int:
        """Bytes of logs below their ends that are in the lake, and not looked at for a typed table."""

    def retired(self) -> frozenset[str]:
        """Brokers that views and unions leave out."""

    def hidden(self) -> Erased:
        """Erased records that tables may have rows of."""

    def unsettled(self, erased: Erased) -> Erased:
        """Of erased records those that tables may have rows of."""


class FolderLake:
    """A lake in a folder or an object store, followed commit by commit."""

    def __init__(self, session: SparkSession, folder: Folder) -> None:
        self._session = session
        self._folder = folder
        self._followed = FollowedLake(folder)

    def __str__(self) -> str:
        return str(self._folder)

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """See `ReadableLake.frame`."""
        reader = self._session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self._folder.child(name).spark_uri)

    def has_files(self, name: str, version: int) -> bool:
        """See `ReadableLake.has_files`. Spark, which would start jobs for each table, is not asked."""
        return is_there(self._folder.child(name), version)

    def then(self, moment: str) -> Instant:
        """See `ReadableLake.then`. Spark, which would start a job for each look at the progress, is not asked here either."""
        return instant_then(self._folder, moment)

    def newest(self, tables: Iterable[str]) -> Instant:
        """See `ReadableLake.newest`."""
        return self._followed.newest(tables)

    def emptied(self, tables: Iterable[str]) -> Iterable[str]:
        """See `ReadableLake.emptied`."""
        return self._followed.emptied(tables)

    def committed(self) -> datetime.datetime | None:
        """See `ReadableLake.committed`."""
        return self._followed.committed()

    def typed(self) -> list[Declaration]:
        """See `ReadableLake.typed`."""
        return self._followed.typed()

    def lacks(self, declared: Declaration, ends: Ends) -> int:
        """See `ReadableLake.lacks`."""
        return self._followed.lacks(declared, ends)

    def retired(self) -> frozenset[str]:
        """See `ReadableLake.retired`."""
        return self._followed.retired()

    def hidden(self) -> Erased:
        """See `ReadableLake.hidden`."""
        return self._followed.hidden()

    def unsettled(self, erased: Erased) -> Erased:
        """See `ReadableLake.unsettled`."""
        return self._followed.unsettled(erased)


class CatalogLake:
    """A lake in a schema of a catalog: what Spark knows of it. Raises LocationError for a schema that is none."""

    def __init__(self, session: SparkSession, schema: CatalogSchema) -> None:
        check_tables(session, schema)
        self._session = session
        self._schema = schema
        self._typed = CatalogTyped(session, schema)

    def __str__(self) -> str:
        return str(self._schema)

    def frame(self, name: str, version: int | None = None) -> DataFrame:
        """See `ReadableLake.frame`."""
        reader = self._session.read
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self._schema.table(name))

    def has_files(self, name: str, version: int) -> bool:
        """See `ReadableLake.has_files`. A catalog's tables may be where only Spark can look."""
        return True

    def then(self, moment: str) -> Instant:
        """See `ReadableLake.then`."""
        return instant_of(_SparkProgress(self.frame(REPUT_PROGRESS.name)), str(self), moment)

    def newest(self, tables: Iterable[str]) -> Instant:
        """See `ReadableLake.newest`."""
        versions = {REPUT_PROGRESS.name: self._version(REPUT_PROGRESS.name)}
        progress = self.frame(REPUT_PROGRESS.name, versions[REPUT_PROGRESS.name])
        rows = progress.groupBy("broker", "log_id").agg({"end_offset": "max"}).collect()
        for name in tables:
            if name not in versions:
                versions[name] = self._version(name)
        ends = {(str(row[0]), str(row[1])): int(row[2]) for row in rows}
        return Instant(ends, versions, retired=self.retired(), hidden=self.hidden())

    def emptied(self, tables: Iterable[str]) -> Iterable[str]:
        """See `ReadableLake.emptied`. Who removes what in a catalog is its business."""
        return []

    def committed(self) -> datetime.datetime | None:
        """See `ReadableLake.committed`."""
        newest = (
            self.frame(REPUT_PROGRESS.name).selectExpr("unix_micros(max(commit_timestamp))").collect()[0][0]
        )
        if newest is None:
            return None
        return datetime.datetime.fromtimestamp(newest / 1_000_000, datetime.UTC)

    def typed(self) -> list[Declaration]:
        """See `ReadableLake.typed`."""
        return self._typed.readable()

    def lacks(self, declared: Declaration, ends: Ends) -> int:
        """See `ReadableLake.lacks`."""
        return self._typed.lacking(declared).below(ends)

    def retired(self) -> frozenset[str]:
        """See `ReadableLake.retired`."""
        return frozenset(read_catalogs_upkeep(self._session, self._schema).retired)

    def hidden(self) -> Erased:
        """See `ReadableLake.hidden`."""
        named = Naming(self.frame(ERASURES.name).select(*COLUMNS).distinct().toArrow())
        return named.unsettled(read_catalogs_upkeep(self._session, self._schema).settled)

    def unsettled(self, erased: Erased) -> Erased:
        """See `ReadableLake.unsettled`."""
        return erased

    def _version(self, name: str) -> int:
        history = self._session.sql(f"DESCRIBE HISTORY {self._schema.table(name)} LIMIT 1")
        return int(history.collect()[0]["version"])


class _SparkProgress:
    """See `Batches`. Spark looks at the rows, and answers with one, or with one for each log."""

    def __init__(self, progress: DataFrame) -> None:
        self._progress = progress

    def span(self) -> Span | None:
        (row,) = self._progress.selectExpr(
            "min(batch)",
            "max(batch)",
            "unix_micros(min(commit_timestamp))",
            "unix_micros(max(commit_timestamp))",
        ).collect()
        return None if row[0] is None else Span(int(row[0]), int(row[1]), _time(row[2]), _time(row[3]))

    def last(self, until: datetime.datetime) -> int | None:
        micros = (until - _EPOCH) // datetime.timedelta(microseconds=1)
        committed = self._progress.where(f"commit_timestamp <= timestamp_micros({micros}L)")
        found: int | None = committed.selectExpr("max(batch)").collect()[0][0]
        return found

    def at(self, batch: int) -> tuple[dict[str, int], datetime.datetime] | None:
        rows = self._progress.where(f"batch = {batch:d}")
        for row in rows.selectExpr("table_versions", "unix_micros(commit_timestamp)").limit(1).collect():
            return dict(row[0]), _time(row[1])
        return None

    def ends(self, batch: int) -> Ends:
        until = self._progress.where(f"batch <= {batch:d}").groupBy("broker", "log_id")
        return {(str(row[0]), str(row[1])): int(row[2]) for row in until.agg({"end_offset": "max"}).collect()}


def _time(micros: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=micros)
