"""What a table has at an instant, in DuckDB's SQL; and instants of the past."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.commit.ends import Ends
from structured_streaming.embedded.quoting import literal, name
from structured_streaming.erased import PLACE, hides
from structured_streaming.erasures import BY_HAND
from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, TABLES, UPKEEP, Table
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant, Span, as_of, instant_of, version_gone

_HIDDEN, _GIVEN = name("erased records"), "erased records as they are given"
_FEW = 8
"""Logs that a condition names one by one."""
_ROWS = 1 << 14
"""Of `reput_progress`, in memory at a time."""


def hidden_records(cursor: duckdb.DuckDBPyConnection, instant: Instant) -> str | None:
    """A temporary table of the records that an instant leaves out, for `table_view`; None where there are none."""
    if not len(records := instant.left_out):
        return None
    cursor.register(_GIVEN, records.table())
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE {_HIDDEN} AS FROM {name(_GIVEN)}")
    cursor.unregister(_GIVEN)
    return _HIDDEN


def table_view(table: Table, pinned: str, instant: Instant, tail: str | None, hidden: str | None) -> str:
    """The statement that makes a table's view: rows of `pinned` that the instant has, but of `hidden` records, and of `tail`, which
    may lack columns."""
    columns = ", ".join(name(each) for each in table.schema.names)
    if instant.batch is not None and table.name not in TABLES:
        columns = "*"  # a typed table had the fields that its schema had then
    rows = f"SELECT {columns} FROM {pinned} AS t WHERE ({_below(table, instant)})"
    if hidden is not None and hides(table.name):
        same = " AND ".join(f"e.{column} = t.{column}" for column in PLACE)
        rows += f" AND NOT EXISTS (SELECT 1 FROM {hidden} AS e WHERE {same})"
    if tail is not None:
        rows += f" UNION ALL BY NAME SELECT * FROM {tail}"
    return f"CREATE TEMP VIEW {name(table.name)} AS {rows}"


def past_instant(
    folder: Folder,
    lake: FollowedLake,
    moment: str,
    tell: Callable[[str], None],
    tables: Collection[str] = TABLES,
) -> Instant:
    """The instant that a batch, or a time, had, of some tables; of one whose version is gone the newest one. Raises LakeError."""
    progress = folder.child(REPUT_PROGRESS.name)
    try:
        instant = instant_of(_Batches(progress), str(folder), moment)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LakeError(f"table {progress}: {error}") from error
    now = lake.newest(tables)
    newest = now.versions
    versions = {REPUT_PROGRESS.name: newest[REPUT_PROGRESS.name]}
    for each in tables:
        if each == REPUT_PROGRESS.name:
            continue
        version = newest[each] if each == UPKEEP.name else instant.versions.get(each, 0)
        if not _is_there(folder.child(each), version):
            tell(version_gone(each, instant))
            version = newest[each]
        versions[each] = version
    tell(as_of(instant))
    return Instant(instant.ends, versions, instant.batch, instant.committed, now.retired, now.hidden)


class _Batches:
    """See `Batches`. Calls raise DeltaError, OSError, Arrow's errors."""

    def __init__(self, progress: Folder) -> None:
        self._rows = DeltaTable(progress.uri).to_pyarrow_dataset(filesystem=progress.arrow_filesystem())

    def span(self) -> Span | None:
        spans = [
            Span(*pc.min_max(rows["batch"]).as_py().values(), *pc.min_max(rows["commit_timestamp"]).as_py().values())
            for rows in self._some(["batch", "commit_timestamp"])
        ]  # fmt: skip
        if not spans:
            return None
        first, last, oldest, newest = zip(*spans, strict=True)
        return Span(min(first), max(last), min(oldest), max(newest))

    def last(self, until: datetime.datetime) -> int | None:
        time = pa.scalar(until, pa.timestamp("us", "UTC"))
        some = self._some(["batch", "commit_timestamp"], pc.field("commit_timestamp") <= time)
        return max((pc.max(rows["batch"]).as_py() for rows in some), default=None)

    def at(self, batch: int) -> tuple[dict[str, int], datetime.datetime] | None:
        columns = ["batch", "table_versions", "commit_timestamp"]
        for rows in self._some(columns, pc.field("batch") == batch):
            row = rows.slice(0, 1).to_pylist()[0]
            return dict(row["table_versions"]), row["commit_timestamp"]
        return None

    def ends(self, batch: int) -> Ends:
        ends: Ends = {}
        columns = ["batch", "broker", "log_id", "end_offset"]
        for rows in self._some(columns, pc.field("batch") <= batch):
            last = rows.group_by(["broker", "log_id"], use_threads=False).aggregate([("end_offset", "max")])
            for row in last.to_pylist():
                log, end = (row["broker"], row["log_id"]), row["end_offset_max"]
                ends[log] = max(end, ends.get(log, end))
        return ends

    def _some(self, columns: list[str], condition: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Some rows at a time, as the files have them; none without any. `columns` are also those of the condition."""
        for fragment in self._rows.get_fragments(condition):
            groups = fragment if condition is None else fragment.subset(condition)
            with fragment.open() as file:
                # a dataset's own scan takes a row group at once; Spark's times have nanoseconds, of which 64 bits end in 2262
                opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=False)
                for batch in opened.iter_batches(
                    _ROWS, [each.id for each in groups.row_groups], columns, use_threads=False
                ):
                    rows = pa.Table.from_batches([batch])
                    rows = rows if condition is None else rows.filter(condition)
                    if rows.num_rows:
                        yield rows


def _below(table: Table, instant: Instant) -> str:
    """A condition on the rows that an instant has."""
    wanted = instant.rows_of(table.name)
    if wanted.to_batch is not None:
        return f"batch <= {wanted.to_batch:d}"
    if wanted.below is None:
        return "true"
    below = _below_ends(wanted.below)
    return f"broker = {literal(BY_HAND[0])} OR ({below})" if wanted.by_hand else below


def _below_ends(ends: Ends) -> str:
    logs = [(literal(broker), literal(log_id), end) for (broker, log_id), end in ends.items()]
    if not logs:
        return "false"
    if len(logs) <= _FEW:
        return " OR ".join(
            f"(broker = {broker} AND log_id = {log_id} AND physical_offset < {end:d})"
            for broker, log_id, end in logs
        )
    rows = ", ".join(f"({broker}, {log_id}, {end:d})" for broker, log_id, end in logs)
    return (
        f"EXISTS (SELECT 1 FROM (VALUES {rows}) AS e(broker, log_id, end_offset) WHERE e.broker = t.broker AND "
        "e.log_id = t.log_id AND t.physical_offset < e.end_offset)"
    )


def _is_there(folder: Folder, version: int) -> bool:
    """Whether a version of a table and its files are there."""
    try:
        files = DeltaTable(folder.uri, version=version).file_uris()
    except (DeltaError, OSError):
        return False
    names = set(folder.names())
    return all(each.rpartition("/")[2] in names for each in files)
