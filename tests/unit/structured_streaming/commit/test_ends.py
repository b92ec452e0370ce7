"""Up to where a lake holds each log, from the rows of its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.fs import DeltaStorageHandler

from structured_streaming.commit.ends import ends_in_rows
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import REPUT_PROGRESS
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.staged import StagedLake
from tests.support.logs.raw import log_of, message


def test_a_folder_is_read_without_python_in_arrows_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They let go of deltalake's files behind the reading: a process that ends then is aborted by the C++ runtime."""

    def asked(*arguments: Any) -> Any:
        raise AssertionError("Arrow asked Python for a file")

    lake = StagedLake(tmp_path / "lake")
    for name in ("open_input_file", "open_input_stream"):
        monkeypatch.setattr(DeltaStorageHandler, name, asked)
    log = log_of(message(0), message(1))
    lake.take(log)
    ends = ends_in_rows(LocalFolder(tmp_path / "lake" / "reput_progress"))
    assert list(ends.values()) == [len(log)]


def test_rows_of_several_files_reach_to_the_greatest_end_of_any(tmp_path: Path) -> None:
    """Whatever the order that the table's log gives the files: the last file is not the newest, from either side."""
    empty_lake(tmp_path)
    progress = str(tmp_path / REPUT_PROGRESS.name)
    schema = REPUT_PROGRESS.schema
    for end in (10, 30, 20):
        row = {field.name: None for field in schema} | {"broker": "b", "log_id": "l", "end_offset": end}
        write_deltalake(progress, pa.Table.from_pylist([row], schema), mode="append")
    assert ends_in_rows(LocalFolder(Path(progress))) == {("b", "l"): 30}
