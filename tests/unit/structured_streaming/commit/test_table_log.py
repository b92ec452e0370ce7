"""A table's log: exact for every Delta reader, other writers are seen, and a commit costs the same at any length."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from structured_streaming.commit.log_cleaning import remove_checkpoints
from structured_streaming.commit.table_log import CHECKPOINT_COMMITS, TableLog, VersionTakenError
from structured_streaming.errors import LakeError, ObjectError
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import QUARANTINE
from tests.support.lakes.empty import empty_lake


@pytest.fixture
def table(tmp_path: Path) -> Path:
    empty_lake(str(tmp_path))
    return tmp_path / QUARANTINE.name


def rows(*offsets: int) -> pa.Table:
    return pa.Table.from_pylist([{"broker": "b", "physical_offset": at} for at in offsets], QUARANTINE.schema)


def staged(table: Path, *offsets: int) -> list[dict[str, Any]]:
    return [write_file(LocalFolder(table.parent), QUARANTINE, rows(*offsets))._asdict()]


def offsets(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["physical_offset"].to_pylist())


def test_readers_see_rows_statistics_and_transactions(table: Path) -> None:
    log = TableLog(LocalFolder(table))
    log.append(staged(table, 1, 2), {"b/l": 7})
    log.append(staged(table, 3), {"b/l": 8, "c/m": 1})
    opened = DeltaTable(str(table))
    assert (opened.version(), log.version) == (2, 2)
    assert offsets(table) == [1, 2, 3]
    assert opened.transaction_version("b/l") == 8
    actions = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    assert sorted((each["num_records"], each["max.physical_offset"]) for each in actions) == [(1, 3), (2, 2)]
    assert [each["operation"] for each in opened.history()] == ["WRITE", "WRITE", "CREATE TABLE"]
    assert TableLog(LocalFolder(table)).transactions == {"b/l": 8, "c/m": 1}


def test_a_checkpoint_comes_in_time_and_everyone_goes_on_from_it(table: Path) -> None:
    log = TableLog(LocalFolder(table))
    (file,) = staged(table, 1)
    for number in range(2 * CHECKPOINT_COMMITS):
        name = f"{number}.parquet"
        os.link(table / file["path"], table / name)
        log.append([{**file, "path": name}], {"b/l": number})
        log.checkpoint_if_due()
    checkpoints = sorted(path.name[:20] for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(each) for each in checkpoints] == [100, 200]
    assert json.loads((table / "_delta_log" / "_last_checkpoint").read_text())["version"] == 200
    for path in (table / "_delta_log").glob("*.json"):
        if int(path.stem) < 200:
            path.unlink()
    assert len(offsets(table)) == 200
    again = TableLog(LocalFolder(table))
    assert (again.version, again.transactions) == (200, {"b/l": 199})
    again.append(staged(table, 9), {"b/l": 200})
    assert DeltaTable(str(table)).transaction_version("b/l") == 200
    assert sorted(path.name for path in table.parent.iterdir() if path.name.startswith(".")) == []
    (table / "_delta_log" / "_last_checkpoint").unlink()  # a hint only
    assert TableLog(LocalFolder(table)).version == 201


def test_other_writers_are_seen(table: Path) -> None:
    log = TableLog(LocalFolder(table))
    write_deltalake(
        str(table),
        rows(5),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("b/l", 4)]),
    )
    with pytest.raises(VersionTakenError):
        log.append(staged(table, 1), {"b/l": 9})
    log.follow()
    assert (log.version, log.transaction_version("b/l")) == (1, 4)
    log.append(staged(table, 1), {"b/l": 9})
    assert offsets(table) == [1, 5]


def test_a_writer_that_slept_does_not_write_below_the_checkpoint(table: Path) -> None:
    sleeper = TableLog(LocalFolder(table))
    other = TableLog(LocalFolder(table))
    for number in range(CHECKPOINT_COMMITS + 5):
        other.append([], {"b/l": number})
        other.checkpoint_if_due()
    for path in (table / "_delta_log").glob("*.json"):
        if int(path.stem) < CHECKPOINT_COMMITS:
            path.unlink()
    sleeper.follow()
    assert (sleeper.version, sleeper.transaction_version("b/l")) == (other.version, CHECKPOINT_COMMITS + 4)


@pytest.mark.parametrize("commits", ["are there", "are gone"])
def test_what_another_writer_checkpointed_is_made_durable(
    table: Path, monkeypatch: pytest.MonkeyPatch, commits: str
) -> None:
    ours, others = TableLog(LocalFolder(table)), 3
    for number in range(others):
        write_deltalake(str(table), rows(number), mode="append")
    DeltaTable(str(table)).create_checkpoint()
    if commits == "are gone":
        for path in (table / "_delta_log").glob("*.json"):
            path.unlink()
    synced: set[str] = set()
    whole: list[Path] = []
    real, real_whole = LocalFolder.make_durable, LocalFolder.make_all_durable

    def make_durable(folder: LocalFolder, names: Iterable[str]) -> None:
        names = list(names)
        synced.update(names)
        real(folder, names)

    def make_all_durable(folder: LocalFolder) -> None:
        whole.append(folder.path)
        real_whole(folder)

    monkeypatch.setattr(LocalFolder, "make_durable", make_durable)
    monkeypatch.setattr(LocalFolder, "make_all_durable", make_all_durable)
    ours.follow()
    assert ours.version == others
    if commits == "are gone":
        assert whole == [table]
    else:
        assert whole == []
        files = {path.name for path in table.glob("*.parquet")}
        assert len(files) == others
        assert files <= synced
        assert {f"{version:020}.json" for version in (1, 2, 3)} <= synced


def test_a_checkpoint_that_cannot_be_looked_for_is_tried_later(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, real = TableLog(LocalFolder(table)), LocalFolder.read

    def read(folder: LocalFolder, name: str) -> bytes:
        if name == "_last_checkpoint":
            raise OSError(errno.EMFILE, "Too many open files")
        return real(folder, name)

    monkeypatch.setattr(LocalFolder, "read", read)
    log.checkpoint_if_due()
    assert "Too many open files" in capsys.readouterr().err


def test_a_feature_that_an_append_would_break_is_refused(table: Path) -> None:
    action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps(action) + "\n")
    with pytest.raises(LakeError, match="writer version 7"):
        TableLog(LocalFolder(table))


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_table_without_a_column_that_is_written_is_refused(table: Path, from_checkpoint: bool) -> None:
    if from_checkpoint:
        DeltaTable(str(table)).create_checkpoint()
        (table / "_delta_log" / f"{0:020}.json").unlink()
    assert TableLog(LocalFolder(table), QUARANTINE.schema).version == 0
    later = QUARANTINE.schema.append(pa.field("later", pa.string()))
    with pytest.raises(LakeError, match=r"lacks the column later, .*ADD COLUMN"):
        TableLog(LocalFolder(table), later)


def test_a_column_that_is_dropped_meanwhile_is_named(table: Path) -> None:
    log = TableLog(LocalFolder(table), QUARANTINE.schema)
    schema = {"type": "struct", "fields": [{"name": "broker", "type": "string"}]}
    action = {"metaData": {**log.metadata, "schemaString": json.dumps(schema)}}
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps(action) + "\n")
    with pytest.raises(LakeError, match="lacks the column log_id"):
        log.follow()
    assert log.version == 0


@pytest.mark.parametrize("damage", ["{", '"text"', "[]", '{"txn": 1}', '{"metaData": {}}'])
def test_a_torn_log_is_named(table: Path, damage: str) -> None:
    (table / "_delta_log" / f"{1:020}.json").write_text(damage)
    with pytest.raises(LakeError, match=QUARANTINE.name):
        TableLog(LocalFolder(table))
    shutil.rmtree(table / "_delta_log")
    with pytest.raises(LakeError, match="no Delta table"):
        TableLog(LocalFolder(table))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), ObjectError("status code: 403 Forbidden")]
)
def test_a_disk_that_is_full_or_a_store_that_refuses_is_no_fault_of_the_log(
    table: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    log = TableLog(LocalFolder(table))

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(LocalFolder, "put_if_absent", fail)
    monkeypatch.setattr(LocalFolder, "read_each", fail)
    for call in (lambda: log.append([], {"b/l": 1}), log.follow):
        with pytest.raises(LakeError) as failed:
            call()
        assert str(failed.value) == f"table {table}: {error}"


def test_every_commit_is_on_disk_before_it_has_its_name(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            what = arguments[-1]
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
            result = real(*arguments)
            done.append((name, "scratch" if ".lakebroker-" in path else Path(path).name))
            return result

        return call

    log = TableLog(LocalFolder(table))
    for name in ("fsync", "link"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    log.append([], {"b/l": 1})
    assert done == [("fsync", "scratch"), ("link", f"{1:020}.json"), ("fsync", "_delta_log")]


def test_a_crash_within_the_first_checkpoint_ends_no_later_one(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 3)
    hint = table / "_delta_log" / "_last_checkpoint"
    real = os.replace

    def crash_before_the_hint(source: Path, target: Path) -> None:
        if Path(target) == hint:
            raise KeyboardInterrupt
        real(source, target)

    log = TableLog(LocalFolder(table))
    with monkeypatch.context() as crash, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        crash.setattr(os, "replace", crash_before_the_hint)
        for number in range(4):
            log.append(staged(table, number), {"b/l": number})
            log.checkpoint_if_due()
    assert not hint.exists()
    log = TableLog(LocalFolder(table))
    for number in range(3, 9):
        log.append(staged(table, number), {"b/l": number})
        log.checkpoint_if_due()
    assert capsys.readouterr().err == ""
    assert json.loads(hint.read_text())["version"] == 9
    for path in (table / "_delta_log").glob("*.json"):
        if int(path.stem) < 9:
            path.unlink()
    assert offsets(table) == list(range(9))
    assert TableLog(LocalFolder(table)).transactions == {"b/l": 8}


def test_another_ones_checkpoint_that_comes_meanwhile_ends_none(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, other = TableLog(LocalFolder(table)), TableLog(LocalFolder(table))
    for number in range(7):
        if number == 3:
            log.checkpoint()
        if number == 6:
            other.follow()
        log.append(staged(table, number), {"b/l": number})
    real = LocalFolder.names

    def listed_before(folder: LocalFolder) -> Iterable[str]:
        monkeypatch.setattr(LocalFolder, "names", real)
        found = list(real(folder))
        other.checkpoint()
        return found

    monkeypatch.setattr(LocalFolder, "names", listed_before)
    log.checkpoint_if_due(3)
    assert capsys.readouterr().err == ""
    checkpoints = sorted(path.name[:20] for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(each) for each in checkpoints] == [3, 6, 7]
    assert offsets(table) == list(range(7))


def test_the_hint_does_not_go_back(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = TableLog(LocalFolder(table)), TableLog(LocalFolder(table))
    for number in range(4):
        slow.append(staged(table, number), {"b/l": number})
    real = LocalFolder.derive

    def slower(
        folder: LocalFolder, inputs: Iterable[str], make: Callable[[str], None], results: Sequence[str]
    ) -> None:
        def made(uri: str) -> None:
            make(uri)
            monkeypatch.setattr(LocalFolder, "derive", real)
            fast.follow()
            fast.append(staged(table, 4), {"b/l": 4})
            fast.checkpoint()

        real(folder, inputs, made, results)

    monkeypatch.setattr(LocalFolder, "derive", slower)
    slow.checkpoint()
    checkpoints = sorted(path.name[:20] for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(each) for each in checkpoints] == [4, 5]
    assert json.loads((table / "_delta_log" / "_last_checkpoint").read_text())["version"] == 5


HINTS = {
    "ahead": b'{"version": 1000000}',
    "of a huge size": b'{"version": 4, "size": 10000000000000}',
    "of a version that is not there": b'{"version": 3, "size": 9}',
    "endless": b'{"version": 1e999}',
    "negative": b'{"version": -5}',
    "deep": b"[" * 100_000,
    "a list": b"[4]",
    "null": b"null",
    "none": b"\xff",
}


@pytest.mark.parametrize("content", HINTS.values(), ids=HINTS.keys())
def test_a_hint_that_is_none_costs_nothing_but_time(
    table: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log._MOST_COMMITS", 1)
    writer = TableLog(LocalFolder(table))
    for number in range(5):
        if number == 4:
            writer.checkpoint()
        writer.append(staged(table, number), {"b/l": number})
    hint = table / "_delta_log" / "_last_checkpoint"
    hint.write_bytes(content)
    for path in (table / "_delta_log").glob("*.json"):
        if int(path.stem) < 5:
            path.unlink()
    opened = TableLog(LocalFolder(table))
    assert (opened.version, opened.transactions) == (5, {"b/l": 4})
    for log in (writer, opened):
        log.follow()
        log.append([], {"b/l": log.version})
        log.checkpoint_if_due(1)
        assert (log.version, json.loads(hint.read_text())["version"]) == (log.version, log.version)


def test_a_hint_that_stands_back_hides_no_commit(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, writer = TableLog(LocalFolder(table)), TableLog(LocalFolder(table))
    hint = table / "_delta_log" / "_last_checkpoint"
    for number in range(10):
        writer.append(staged(table, number), {"b/l": number})
        if number == 4:
            sleeper.follow()
            writer.checkpoint()
            older = hint.read_bytes()
    writer.checkpoint()
    hint.write_bytes(older)
    for path in (table / "_delta_log").glob("*.json"):
        path.unlink()
    assert TableLog(LocalFolder(table)).version == 10
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 86_400)
    sleeper.follow()
    sleeper.append(staged(table, 10), {"b/l": 10})
    assert offsets(table) == list(range(11))


@pytest.mark.parametrize("hinted", [False, True])
def test_half_a_checkpoint_is_none(table: Path, *, hinted: bool) -> None:
    log = TableLog(LocalFolder(table))
    for number in range(4):
        log.append(staged(table, number), {"b/l": number})
    log.checkpoint()
    folder = table / "_delta_log"
    (whole,) = folder.glob("*.checkpoint.parquet")
    log.append(staged(table, 4), {"b/l": 4})
    half = f"{5:020}.checkpoint.{1:010}.{2:010}.parquet"
    shutil.copyfile(whole, folder / half)
    if hinted:
        (folder / "_last_checkpoint").write_text('{"version": 5, "size": 9, "parts": 2}')
    opened = TableLog(LocalFolder(table))
    assert (opened.version, opened.transactions) == (5, {"b/l": 4})
    assert remove_checkpoints(LocalFolder(table), 5) == 0, "there is none of that version or a later one"
    assert whole.exists()
    opened.append(staged(table, 5), {"b/l": 5})
    opened.checkpoint()
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 6
    assert offsets(table) == list(range(6))


def test_checkpoints_name_the_files_that_went_within_a_day(table: Path) -> None:
    log, now = TableLog(LocalFolder(table)), time.time_ns()
    for hours in (25, 23):
        files = staged(table, hours)
        log.append(files, {"b/l": hours})
        with pytest.MonkeyPatch.context() as then:
            then.setattr(time, "time_ns", lambda hours=hours: now - hours * 3600 * 10**9)
            log.rewrite([(files[0]["path"], files[0]["size"])], staged(table, hours))
    log.checkpoint()
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    removed = pq.read_table(checkpoint)["remove"].drop_null().to_pylist()
    assert [each["path"] for each in removed] == [files[0]["path"]]
    assert offsets(table) == [23, 25]


def test_several_that_remove_old_commits_at_once_leave_none(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = TableLog(LocalFolder(table))
    for number in range(400):
        log.append([], {"b/l": number})
    for path in (table / "_delta_log").iterdir():
        os.utime(path, (0, 0))
    logs = [TableLog(LocalFolder(table)) for _ in range(3)]
    with ThreadPoolExecutor(len(logs)) as threads:
        list(threads.map(lambda each: each.checkpoint_if_due(1), logs))
    log.append([], {"b/l": 400})
    log.checkpoint_if_due(1)
    assert capsys.readouterr().err == ""
    assert [path.name for path in (table / "_delta_log").glob("*.json") if int(path.stem) < 400] == []


def test_a_log_that_cannot_be_read_now_leaves_what_was_known(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 3)
    sleeper, other = TableLog(LocalFolder(table)), TableLog(LocalFolder(table))
    sleeper.append([], {"b/l": 1})
    other.follow()
    for number in range(2, 5):
        other.append([], {"b/l": number})
        other.checkpoint_if_due()
    for version in (2, 3):
        (table / "_delta_log" / f"{version:020}.json").unlink()

    def fail(*arguments: Any, **named: Any) -> Any:
        raise OSError("the disk says no")

    with monkeypatch.context() as broken, pytest.raises(LakeError, match="the disk says no"):  # noqa: PT012
        broken.setattr("structured_streaming.commit.table_log.pq.ParquetFile", fail)
        sleeper.follow()
    assert (sleeper.version, sleeper.transactions) == (1, {"b/l": 1})
    with monkeypatch.context() as broken, pytest.raises(LakeError, match="the disk says no"):  # noqa: PT012
        broken.setattr("structured_streaming.storage.local.sync_folder", fail)
        sleeper.follow()
    assert (sleeper.version, sleeper.transactions) == (1, {"b/l": 1})
    sleeper.follow()
    assert (sleeper.version, sleeper.transactions) == (other.version, {"b/l": 4})
