"""Up to where a lake holds each log, from the rows of its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake.fs import DeltaStorageHandler

from structured_streaming.commit.ends import ends_in_rows
from structured_streaming.storage.local import LocalFolder
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
