"""A table's version as it is read beside others who change its log, or wrote what is none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import SCHEMA_PROPERTY, SCHEMA_VERSION


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions; a checkpoint of the second."""
    folder = tmp_path / "table"
    DeltaTable.create(
        str(folder),
        pa.schema([("a", pa.int64())]),
        configuration={SCHEMA_PROPERTY: str(SCHEMA_VERSION)},
        raise_if_key_not_exists=False,
    )
    for number in range(2):
        write_deltalake(str(folder), pa.table({"a": [number]}), mode="append")
        if not number:
            DeltaTable(str(folder)).create_checkpoint()
    return folder


def test_a_checkpoint_that_goes_after_it_was_listed_is_looked_for_anew(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, listed = LocalFolder.names, 0

    def names(self: LocalFolder) -> list[str]:
        nonlocal listed
        found, listed = real(self), listed + 1
        if listed == 2:
            DeltaTable(str(table)).create_checkpoint()
            (table / "_delta_log" / f"{1:020}.checkpoint.parquet").unlink()
        return found

    monkeypatch.setattr(LocalFolder, "names", names)
    assert Snapshot(LocalFolder(table)).version == 2
    assert listed > 2


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        json.dumps({"add": {"path": {"x": 1}, "size": 1}}),
        json.dumps({"add": {"path": "x", "size": 1, "modificationTime": 1e999}}),
        json.dumps({"txn": {"appId": 7, "version": 1}}),
        json.dumps({"metaData": 7}),
        json.dumps({"add": 7}),
        json.dumps([7]),
    ],
)
def test_a_commit_that_is_none_is_a_lake_error_or_passed_over(table: Path, line: str) -> None:
    (table / "_delta_log" / f"{3:020}.json").write_text(line + "\n")
    for opened in (Snapshot, TableLog):
        with contextlib.suppress(LakeError):
            opened(LocalFolder(table))


def test_a_path_that_one_commit_removes_and_adds_is_a_file_of_the_table(table: Path) -> None:
    """In whatever order the commit names both."""
    before = Snapshot(LocalFolder(table))
    path = min(before.files)
    add = {"add": {"path": path, "size": 7, "partitionValues": {}, "modificationTime": 1, "dataChange": True}}
    remove = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}
    lines = "".join(json.dumps(action) + "\n" for action in (add, remove))
    (table / "_delta_log" / f"{3:020}.json").write_text(lines)
    before.follow()
    for snapshot in (before, Snapshot(LocalFolder(table))):
        assert snapshot.files[path].size == 7
