"""A lake that stores are committed into range by range without Spark, also as a crash leaves it, and all its row keys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from store.log_source import FolderLog
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.tables import DATA_TABLES, Table


class CrashError(Exception):
    """A driver that dies."""


def cuts(store: Path, parts: int) -> list[int]:
    """Boundaries of so many ranges of about as many records each, from the log's beginning to its end."""
    log = FolderLog(store)
    state = log.describe()
    records = log.split(state.log_id, state.start, state.end, 1)
    log.close()
    return [records[(len(records) - 1) * part // parts] for part in range(parts + 1)]


def manifest(
    lake: Path, store: Path, start: int, end: int, wanted: Wanted = EVERYTHING
) -> list[dict[str, Any]]:
    """What executors stage of a range."""
    log = FolderLog(store)
    state = log.describe()
    part = LogRange(
        f"store:{store}", state.broker, state.log_id, start, end, state.end, None, state.segment_size
    )
    chunks = [(offset, bytes(data)) for offset, data in log.read(state.log_id, start, end)]
    log.close()
    return [row for batch in stage(str(lake), part, chunks, wanted) for row in batch.to_pylist()]


def commit(
    lake: Path, rows: list[dict[str, Any]], crash_after: str = "", wanted: Wanted = EVERYTHING
) -> None:
    """Commits manifests as a batch; up to a table, where that is named."""

    def after(table: str) -> None:
        if table == crash_after:
            raise CrashError

    try:
        DeltaCommitSink(str(lake), after, wanted).commit(rows)
    except CrashError:
        return
    assert not crash_after, f"{crash_after} has no rows in this batch"


def every_key(tables: Iterable[Table] = DATA_TABLES) -> str:
    """A statement for the row keys of tables, as text, with the table's name."""
    keys = []
    for table in tables:
        columns = ", ".join(f"CAST({name} AS STRING)" for name in table.key)
        keys.append(f"SELECT '{table.name}' AS name, concat_ws('|', {columns}) AS key FROM {table.name}")
    return " UNION ALL ".join(keys)
