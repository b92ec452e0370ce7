"""Rows that no finished batch has, and when they are not removed: Spark is asked, and answers what a table may hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from structured_streaming.catalog.lake_tables import FolderTables
from structured_streaming.catalog.marks import BATCH, History, Mark
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.errors import LakeError
from structured_streaming.storage.local import LocalFolder


def test_nothing_is_removed_where_more_rows_are_uncovered_than_unfinished_batches_added(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def sql(statement: str) -> Any:
        asked.append(statement)
        return SimpleNamespace(collect=lambda: [(5, 0)])

    conf = SimpleNamespace(set=lambda name, value: None, unset=lambda name: None)
    begun: Any = SimpleNamespace(
        _tables=FolderTables(LocalFolder(tmp_path)),
        _session=SimpleNamespace(sql=sql, conf=conf),
        _number=12,
        _writer="w",
        _note_version=lambda name, mark: None,
        ends={("broker-a", "log"): 100},
    )
    added = History([(1, Mark(BATCH, 9, "w", 1, 4)), (0, None)])
    with pytest.raises(
        LakeError, match="has 5 rows that no row of reput_progress covers, and at most 4 of them are what"
    ):
        SparkCommitSink._remove_unfinished(begun, "messages", added, 8)
    (counted,) = asked
    assert counted.startswith("SELECT count(*)")
