"""What the gateway reads of the lake's progress, for which it deletes segments."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.errors import StartError
from structured_streaming.commit.batch import LogSpan, progress_rows
from structured_streaming.commit.table_log import TableLog
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import REPUT_PROGRESS
from tests.support.lakes.empty import empty_lake


def commit(lake: Path, *ends: int) -> None:
    log = TableLog(LocalFolder(lake / "reput_progress"))
    for end in ends:
        log.append([], {"b/l": end})
        log.checkpoint_if_due()


def test_it_follows_the_progress(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert lake.dispatched_to("b", "l") == 0
    empty_lake(str(tmp_path))
    assert lake.dispatched_to("b", "l") == 0
    for end in range(1, 125):
        commit(tmp_path, end)
        if end % 7 == 0:
            assert lake.dispatched_to("b", "l") == end
            assert lake.dispatched_to("b", "other") == 0
    assert lake.dispatched_to("b", "l") == Lake(str(tmp_path)).dispatched_to("b", "l") == 124


def test_another_lake_in_its_place_is_read_anew(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    empty_lake(str(folder))
    commit(folder, *range(1, 10))
    lake = Lake(str(folder))
    assert lake.dispatched_to("b", "l") == 9
    for ends in ([], [2, 3], list(range(1, 9)), [1] * 20):
        shutil.rmtree(folder)
        empty_lake(str(folder))
        commit(folder, *ends)
        assert lake.dispatched_to("b", "l") == (ends[-1] if ends else 0)


def test_a_lake_that_is_gone_cannot_be_read_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    lake = Lake(str(folder))
    assert lake.dispatched_to("b", "l") == 0
    empty_lake(str(folder))
    commit(folder, 1, 2)
    assert lake.dispatched_to("b", "l") == 2
    away = folder.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(LakeUnreachableError, match="was there and is not any more: mount or restore"):
            lake.dispatched_to("b", "l")
    away.rename(folder)
    assert lake.dispatched_to("b", "l") == 2


def test_commits_that_are_gone_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    empty_lake(str(tmp_path))
    commit(tmp_path, *range(1, 5))
    lake = Lake(str(tmp_path))
    assert lake.dispatched_to("b", "l") == 4
    commit(tmp_path, *range(5, 300))
    for path in sorted((tmp_path / "reput_progress" / "_delta_log").glob("*.json"))[:100]:
        path.unlink()
    assert lake.dispatched_to("b", "l") == 299


def test_what_is_no_lake_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="is a file"):
        Lake(str(tmp_path / "file"))
    empty_lake(str(tmp_path / "lake"))
    (tmp_path / "lake" / "reput_progress" / "_delta_log" / f"{0:020}.json").write_text("torn")
    with pytest.raises(LakeUnreachableError, match="reput_progress"):
        Lake(str(tmp_path / "lake")).dispatched_to("b", "l")


def test_a_package_that_is_missing_comes_with_a_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(StartError) as refused:
        Lake("lake")
    assert str(refused.value) == (
        "lakeLocation=lake needs deltalake, which is not installed: pip install 'lakebroker[broker]'"
    )


def test_a_commit_is_believed_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one cannot be read; when that is mended, what came before it is made durable all the same."""
    empty_lake(str(tmp_path))
    commit(tmp_path, 5)
    lake, synced, real = Lake(str(tmp_path)), list[str](), LocalFolder.make_durable
    assert lake.dispatched_to("b", "l") == 5
    commit(tmp_path, 9)
    torn = tmp_path / "reput_progress" / "_delta_log" / f"{3:020}.json"
    torn.write_text("[]\n")
    for _ in range(2):
        with pytest.raises(LakeUnreachableError):
            lake.dispatched_to("b", "l")
    torn.unlink()

    def make_durable(folder: LocalFolder, names: Iterable[str]) -> None:
        names = list(names)
        synced.extend(names)
        real(folder, names)

    monkeypatch.setattr(LocalFolder, "make_durable", make_durable)
    assert lake.dispatched_to("b", "l") == 9
    assert f"{2:020}.json" in synced


def test_so_are_the_rows_of_sparks_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves its files to the system, and a progress whose file is cut by a power cut frees no segment."""
    empty_lake(str(tmp_path))
    synced, real = list[str](), LocalFolder.make_durable

    def make_durable(folder: LocalFolder, names: Iterable[str]) -> None:
        names = list(names)
        synced.extend(names)
        real(folder, names)

    def commit_rows(batch: int, end: int) -> list[str]:
        rows = progress_rows([LogSpan("store:-", "b", "l", end - 1, end, end, 1)], {}, batch)
        folder = LocalFolder(tmp_path)
        file = write_file(folder, REPUT_PROGRESS, rows)
        TableLog(folder.child("reput_progress")).append([file._asdict()], {SPARK_APPLICATION: batch})
        return [file.path, f"{batch:020}.json"]

    lake = Lake(str(tmp_path))
    for batch, end in ((1, 5), (2, 9)):
        expected = commit_rows(batch, end)
        with monkeypatch.context() as patched:
            patched.setattr(LocalFolder, "make_durable", make_durable)
            synced.clear()
            assert lake.dispatched_to("b", "l") == end
        assert synced == expected
