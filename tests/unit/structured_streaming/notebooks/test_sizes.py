"""Files and bytes of a lake's tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from structured_streaming import sql
from structured_streaming.errors import LocationError
from structured_streaming.notebooks import sizes as module
from structured_streaming.notebooks.sizes import sizes
from structured_streaming.tables import TABLES
from tests.support.lakes.staged import StagedLake
from tests.support.logs.views import first_log, other_log

NO_SESSION: Any = None
"""A folder is read without Spark."""


def test_a_folder_s_tables_have_the_files_of_their_newest_version(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(first_log(), broker="a")
    lake.take(other_log(), broker="b")
    (lake.folder / "messages" / "of-no-version.parquet").write_bytes(b"left by a writer that was killed")
    found = {each.table: each[1:] for each in sizes(NO_SESSION, str(lake.folder))}
    assert found.keys() == TABLES.keys()
    assert found["messages"] != (0, 0)
    for name, paths in lake.files.items():
        assert found[name] == (len(paths), sum(path.stat().st_size for path in paths)), name
    assert found["reput_progress"][0] == 2
    assert found["upkeep"] == (0, 0)


def test_a_catalog_s_tables_are_described_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(typed=lambda: [SimpleNamespace(table="typed_orders")])
    monkeypatch.setattr(sql, "lake_in", lambda session, location: there)
    monkeypatch.setattr(module, "detail", lambda session, name: {"numFiles": 1, "sizeInBytes": len(name)})
    names = [*TABLES, "typed_orders"]
    expected = [(name, 1, len(f"`main`.`lake`.`{name}`")) for name in names]
    session: Any = SimpleNamespace(sparkContext=object())
    copies: list[object] = []

    def inheritable(of: object) -> Callable[[Callable[[], object]], Callable[[], object]]:
        assert of is session
        copies.append(object())
        return lambda work: work

    monkeypatch.setattr("pyspark.inheritable_thread_target", inheritable)
    assert list(sizes(session, "main.lake")) == expected
    assert len(copies) == len(names), "a platform cancels the jobs by what each thread has"


def test_what_is_no_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="does not exist"):
        list(sizes(NO_SESSION, str(tmp_path / "none")))
