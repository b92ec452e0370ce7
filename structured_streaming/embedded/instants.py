"""What a table has at an instant, in DuckDB's SQL; and instants of the past."""

from __future__ import annotations

from collections.abc import Callable, Collection

import duckdb

from structured_streaming.commit.ends import Ends
from structured_streaming.embedded.quoting import literal, name
from structured_streaming.erased import PLACE, hides
from structured_streaming.erasures import BY_HAND
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, TABLES, UPKEEP, Table
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant, as_of, version_gone
from structured_streaming.union.past import instant_then, is_there

_HIDDEN, _GIVEN = name("erased records"), "erased records as they are given"
_FEW = 8
"""Logs that a condition names one by one."""


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
    instant = instant_then(folder, moment)
    now = lake.newest(tables)
    newest = now.versions
    versions = {REPUT_PROGRESS.name: newest[REPUT_PROGRESS.name]}
    for each in tables:
        if each == REPUT_PROGRESS.name:
            continue
        version = newest[each] if each == UPKEEP.name else instant.versions.get(each, 0)
        if not is_there(folder.child(each), version):
            tell(version_gone(each, instant))
            version = newest[each]
        versions[each] = version
    tell(as_of(instant))
    return Instant(instant.ends, versions, instant.batch, instant.committed, now.retired, now.hidden)


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
