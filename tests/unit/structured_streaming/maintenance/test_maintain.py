"""Maintenance changes no row, whoever commits meanwhile and wherever it is killed; what it cannot do it says."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from broker_gateway.lake.reader import Lake
from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.commit.upkeep_log import add_to_upkeep
from structured_streaming.maintenance import merge, plan
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import TableReport, maintain, maintain_table
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.retention_rules import parsed
from structured_streaming.staging.table_file import GROUP_ROWS, PART, SORTED, StagedFile, TableFile
from structured_streaming.storage.local import LocalFile, LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, QUARANTINE, TABLES
from structured_streaming.upkeep import RETENTION, row
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.dying_calls import DyingCalls
from tests.support.lakes.maintained import ReputLake, assert_same, rows_of
from tests.support.lakes.staged import assert_statistics

TARGET = 64 << 20


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    made = ReputLake(tmp_path_factory.mktemp("filled"), batch_bytes=60_000)
    made.fill()
    return made


@pytest.fixture(scope="module")
def before(filled: ReputLake) -> dict[str, pa.Table]:
    """The rows of each `lake`."""
    return filled.rows()


@pytest.fixture
def lake(filled: ReputLake, tmp_path: Path) -> ReputLake:
    return filled.copied(tmp_path)


@pytest.fixture(scope="module")
def filled_slowly(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    made = ReputLake(tmp_path_factory.mktemp("filled-slowly"))
    made.fill()
    return made


@pytest.fixture
def many_files(filled_slowly: ReputLake, tmp_path: Path) -> ReputLake:
    """More than a window of each table."""
    return filled_slowly.copied(tmp_path)


def run(lake: ReputLake, target: int = TARGET) -> dict[str, TableReport]:
    return {report.table: report for report in maintain(str(lake.lake), target)}


def problems(lake: ReputLake) -> list[str]:
    return [problem for found in check_lake(str(lake.lake), [str(lake.store)]) for problem in found.problems]


@pytest.mark.parametrize("merge_bytes", [merge.MERGE_BYTES, 60_000])
def test_rows_statistics_order_and_transactions_stay(
    lake: ReputLake, before: dict[str, pa.Table], merge_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, and by sorted runs."""
    monkeypatch.setattr(merge, "MERGE_BYTES", merge_bytes)
    monkeypatch.setattr(merge, "GROUP_BYTES", merge_bytes // 4)
    transactions = lake.transactions()
    reports = run(lake)
    assert {name for name, report in reports.items() if report.files_after < report.files_before} >= {
        "messages", "consume_queue", "message_index", "delivery_events", "reput_progress",
    }  # fmt: skip
    assert_same(before, lake.rows())
    assert lake.transactions() == transactions
    for name, table in TABLES.items():
        files = Snapshot(LocalFolder(lake.lake / name)).files.values()
        assert len(files) == reports[name].files_after <= 2
        for file in files:
            rows = pq.read_table(lake.lake / name / file.path)
            assert_statistics(rows, json.loads(file.stats))
            order = [(column, "ascending") for column in table.order or table.key]
            columns = rows.select([column for column, _ in order])
            assert columns.equals(columns.sort_by(order)), f"{name} is not in its order"
            groups = pq.ParquetFile(lake.lake / name / file.path).num_row_groups
            assert groups > 1 or rows.nbytes < 2 * merge_bytes
    assert_exact(lake.lake, lake.store)
    assert problems(lake) == []
    assert [name for name in os.listdir(lake.lake) if name.startswith(".")] == []
    assert not any(report.rewritten_files for report in run(lake).values())


def test_keys_of_one_kind_share_files(lake: ReputLake) -> None:
    run(lake)
    kinds = []
    for file in Snapshot(LocalFolder(lake.lake / "message_index")).files.values():
        stated = file.statistics
        assert stated["minValues"]["key_type"] == stated["maxValues"]["key_type"]
        kinds.append(stated["minValues"]["key_type"])
    assert sorted(kinds) == ["KEYS", "UNIQ_KEY"]


def test_files_of_a_window_are_sorted_together_once(
    many_files: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is then in the range of one of them, and a topic with its time of few: of small ranges in memory, of others by runs."""
    monkeypatch.setattr(merge, "MERGE_BYTES", 20_000)
    lake = many_files
    before, transactions = lake.rows(), lake.transactions()
    windows: dict[str, list[list[StagedFile]]] = {}
    real = MaintainedTable.written_in_ranges

    def written(table: MaintainedTable, files: Sequence[DataFile], target: int) -> list[StagedFile]:
        assert {file.label for file in files} == {PART}, "each row is sorted so once"
        window = real(table, files, target)
        assert {Path(file.path).name.partition("-")[0] for file in window} == {SORTED}
        windows.setdefault(table.table.name, []).append(window)
        return window

    monkeypatch.setattr(MaintainedTable, "written_in_ranges", written)
    target = 4000  # no file of a batch has less than half of it, so none becomes one with others before
    tables = [TABLES[name] for name in ("consume_queue", "message_index", "messages")]
    for table in tables:
        assert maintain_table(LocalFolder(lake.lake), table, target, 0).problems == []
    assert_same(before, lake.rows())
    assert lake.transactions() == transactions
    assert problems(lake) == []
    assert windows.keys() == {table.name for table in tables}
    for name, several in windows.items():
        order = TABLES[name].order or TABLES[name].key
        for window in several:
            ranges = []
            for file in window:
                rows = pq.read_table(lake.lake / name / file.path)
                keys = rows.select(order)
                assert keys.equals(keys.sort_by([(column, "ascending") for column in order]))
                assert_statistics(rows, json.loads(file.stats))
                ends = [tuple(keys.slice(at, 1).to_pylist()[0].values()) for at in (0, len(keys) - 1)]
                ranges.append((ends[0], ends[1]))
            assert len(ranges) > plan.WINDOW // 2
            assert all(first[1] < second[0] for first, second in itertools.pairwise(ranges))
    for table in tables:
        assert not maintain_table(LocalFolder(lake.lake), table, target, 0).rewritten_files


def test_files_of_a_window_that_are_small_become_one_in_the_same_run(
    many_files: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = many_files
    before, target = lake.rows(), 13_500  # a batch's file has more than half of it, a fourth of it has less
    real = MaintainedTable.written_in_ranges
    monkeypatch.setattr(
        MaintainedTable, "written_in_ranges", lambda table, files, size: real(table, files, size // 4)
    )
    maintain_table(LocalFolder(lake.lake), MESSAGES, target, 0)
    assert_same(before, lake.rows())
    assert not maintain_table(LocalFolder(lake.lake), MESSAGES, target, 0).rewritten_files


def test_the_reput_and_the_gateway_go_on(tmp_path: Path) -> None:
    lake = ReputLake(tmp_path, batch_bytes=100_000)
    gateway = Lake(str(lake.lake))
    name = lake.reader.broker, lake.reader.log_id
    while batches := lake.batches():
        lake.fill(1)
        assert gateway.dispatched_to(*name) == batches[0][1]
        run(lake)
        assert gateway.dispatched_to(*name) == batches[0][1]
        progress = LakeProgress(str(lake.lake))
        assert progress.offsets == {name: batches[0][1]}
        assert progress.stops(*name) == []
    assert_exact(lake.lake, lake.store)
    assert problems(lake) == []


def test_who_commits_at_any_instant_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reput commits a batch right before the commit of maintenance to each table, so that its version is taken."""
    lake = ReputLake(tmp_path, batch_bytes=14_000)
    lake.fill(4)
    left = iter([lake.manifest(*batch) for batch in lake.batches()])
    real, reached, taken = TableLog.rewrite, set[TableLog](), []

    def rewrite(log: TableLog, *arguments: Any, **named: Any) -> None:
        if log not in reached:
            reached.add(log)
            lake.sink.commit(next(left))
        try:
            real(log, *arguments, **named)
        except VersionTakenError:
            taken.append(log)
            raise

    monkeypatch.setattr(TableLog, "rewrite", rewrite)
    reports = run(lake)
    several = [report for report in reports.values() if report.files_before > 2]
    assert all(not report.problems and report.rewritten_files for report in several)
    assert len(taken) >= len(several) > 3
    lake.fill()
    assert_exact(lake.lake, lake.store)
    assert problems(lake) == []


def test_of_two_that_rewrite_the_same_files_one_does(
    lake: ReputLake, before: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, inner = TableLog.rewrite, []

    def rewrite(log: TableLog, *arguments: Any, **named: Any) -> None:
        if not inner:
            inner.append(None)
            inner.append(maintain_table(LocalFolder(lake.lake), MESSAGES, TARGET, 86_400))
        real(log, *arguments, **named)

    monkeypatch.setattr(TableLog, "rewrite", rewrite)
    outer = maintain_table(LocalFolder(lake.lake), MESSAGES, TARGET, 86_400)
    assert (outer.rewritten_files, outer.problems, outer.files_after) == (0, [], 1)
    assert inner[1].rewritten_files == inner[1].files_before > 1
    assert_same(before, lake.rows())
    named = {file.path for file in Snapshot(LocalFolder(lake.lake / "messages")).files.values()}
    ours = [path for path in (lake.lake / "messages").glob("*.parquet") if path.name not in named]
    assert len(ours) == inner[1].files_before, "what was not committed is removed at once"


STEPS = ("put_if_absent", "open_new", "derive", "remove", "readable", "make_durable", "read", "names")


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_it_leaves_nothing_but_files_to_remove(
    lake: ReputLake, before: dict[str, pa.Table], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = DyingCalls(monkeypatch, when, STEPS)
    crashes = 0
    for step in range(1, 4000, 3):
        folder = LocalFolder(lake.lake)
        if not dying.kill(step, partial(maintain_table, folder, MESSAGES, TARGET, 86_400)):
            break
        crashes += 1
        assert rows_of(lake.lake, "messages").equals(before["messages"])
    assert crashes > 3
    assert_same(before, lake.rows())
    assert problems(lake) == []


def test_a_full_disk_is_said_and_the_other_tables_have_their_turn(
    lake: ReputLake, before: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalFile.finish

    def finish(file: LocalFile) -> int:
        if Path(file.target).parent.name == "messages":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file)

    monkeypatch.setattr(LocalFile, "finish", finish)
    files = len(list((lake.lake / "messages").glob("*.parquet")))
    reports = run(lake)
    assert "No space left" in reports["messages"].problems[0]
    assert len(list((lake.lake / "messages").glob("*.parquet"))) == files
    assert [name for name, report in reports.items() if report.problems] == ["messages"]
    assert reports["consume_queue"].files_after == 1
    assert_same(before, lake.rows())


def test_decisions_that_cannot_be_read_keep_no_table_from_its_turn(lake: ReputLake) -> None:
    add_to_upkeep(LocalFolder(lake.lake), row(RETENTION, rules=parsed("*=1y")))
    (file,) = (lake.lake / "upkeep").glob("*.parquet")
    before, content = lake.rows(), file.read_bytes()
    file.write_bytes(b"PAR1 damaged")
    reports = run(lake)
    assert [name for name, report in reports.items() if report.problems] == ["erasures", "upkeep"]
    assert file.name in reports["upkeep"].problems[0]
    assert reports["messages"].files_after == 1 < reports["messages"].files_before
    file.write_bytes(content)
    assert_same(before, lake.rows())


def test_a_file_that_cannot_be_read_stays_and_the_others_are_put_together(lake: ReputLake) -> None:
    torn = sorted((lake.lake / "messages").glob("*.parquet"))[1]
    content = torn.read_bytes()
    torn.write_bytes(content[:-100])
    report = run(lake)["messages"]
    assert report.files_after == 2
    assert len(report.problems) == 1
    assert torn.name in report.problems[0]
    torn.write_bytes(content)
    assert_exact(lake.lake, lake.store)


def test_a_table_with_deletion_vectors_is_left_as_it_is(lake: ReputLake) -> None:
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    log = lake.lake / "messages" / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{version + 1:020}.json").write_text(json.dumps(action) + "\n")
    there = sorted(os.listdir(lake.lake / "messages"))
    age(lake.lake / "messages", 30 * 86_400)
    reports = run(lake)
    (problem,) = reports["messages"].problems
    assert "deletionVectors" in problem
    assert "DROP FEATURE" in problem
    assert sorted(os.listdir(lake.lake / "messages")) == there
    assert [name for name, report in reports.items() if report.problems] == ["messages"]
    assert reports["consume_queue"].files_after == 1


def test_a_column_more_is_kept_and_what_lacks_it_is_null(lake: ReputLake) -> None:
    path = str(lake.lake / CONSUME_QUEUE.name)
    DeltaTable(path).alter.add_columns(
        [Field("seen", PrimitiveType("string")), Field("share", PrimitiveType("double"))]
    )
    own = CONSUME_QUEUE.schema.append(pa.field("seen", pa.string())).append(pa.field("share", pa.float64()))
    row = {"broker": "b", "log_id": "l", "physical_offset": 1, "topic": "t", "queue_id": 0, "queue_offset": 0}
    write_deltalake(
        path, pa.Table.from_pylist([{**row, "seen": "yes", "share": float("nan")}], own), mode="append"
    )
    before = DeltaTable(path).to_pyarrow_table()
    report = run(lake)["consume_queue"]
    assert (report.problems, report.files_after) == ([], 1)
    after = DeltaTable(path).to_pyarrow_table()
    assert after.schema == before.schema
    assert after["seen"].drop_null().to_pylist() == ["yes"]
    assert after["share"].null_count == len(after) - 1
    order = [("log_id", "ascending"), ("physical_offset", "ascending")]
    assert after.drop_columns(["share"]).sort_by(order).equals(before.drop_columns(["share"]).sort_by(order))


def test_a_column_added_between_reading_and_commit_is_not_lost(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = str(lake.lake / MESSAGES.name), []
    real = LocalFile.finish

    def finish(file: LocalFile) -> int:
        if Path(file.target).parent.name == MESSAGES.name and not done:
            done.append(file.target)
            DeltaTable(path).alter.add_columns([Field("seen", PrimitiveType("string"))])
            rows = pa.Table.from_pylist([{"topic": "t", "seen": "yes"}])
            write_deltalake(path, rows, mode="append", schema_mode="merge")
        return real(file)

    monkeypatch.setattr(LocalFile, "finish", finish)
    report = run(lake)[MESSAGES.name]
    assert done
    assert (report.problems, report.files_after) == ([], 1)
    assert DeltaTable(path).to_pyarrow_table()["seen"].drop_null().to_pylist() == ["yes"]


def age(folder: Path, seconds: float, *names: str) -> None:
    """Makes files look as if they had been written that long ago."""
    then = time.time() - seconds
    for path in folder.glob("*.parquet"):
        if not names or path.name in names:
            os.utime(path, (then, then))


def test_files_go_when_no_version_within_the_retention_has_them(
    lake: ReputLake, before: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lake.lake / "messages"
    old = {path.name for path in folder.glob("*.parquet")}
    (folder / "orphan.parquet").write_bytes(b"of a batch that failed")
    (folder / "staged.parquet").write_bytes(b"of a batch that will be committed")
    (folder / "notes.txt").write_text("of somebody else")
    age(folder, 8 * 86_400, *old, "orphan.parquet")
    report = run(lake)["messages"]
    assert report.removed.files == 1, (
        "the orphan; what was removed now stays for who reads the version before"
    )
    assert not (folder / "orphan.parquet").exists()
    assert old <= {path.name for path in folder.glob("*.parquet")}
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 0.9 * 86_400)
    assert run(lake)["messages"].removed.files == 0
    monkeypatch.setattr(time, "time", lambda: now() + 1.1 * 86_400)
    age(folder, 60, "staged.parquet")
    report = run(lake)["messages"]
    assert report.removed.files == len(old)
    assert {path.name for path in folder.glob("*.parquet")} == {
        "staged.parquet", *(file.path for file in Snapshot(LocalFolder(folder)).files.values()),
    }  # fmt: skip
    assert (folder / "notes.txt").exists()
    assert_same(before, lake.rows())
    assert_exact(lake.lake, lake.store)


def test_files_that_another_took_for_leftovers_are_not_committed(
    lake: ReputLake, before: dict[str, pa.Table]
) -> None:
    table = MaintainedTable(LocalFolder(lake.lake), MESSAGES)
    files, schema = table.files, table.snapshot.schema_json
    written = table.written(files)
    for each in written:
        (lake.lake / "messages" / each.path).unlink()
    assert not table.replace(files, schema, written)
    assert_same(before, lake.rows())


def test_row_groups_are_as_small_as_a_look_up_wants_them(tmp_path: Path) -> None:
    with TableFile(LocalFolder(tmp_path), QUARANTINE) as file:
        rows = [{"broker": "b", "physical_offset": at} for at in range(2 * GROUP_ROWS + 1)]
        (tmp_path / QUARANTINE.name).mkdir()
        file.write(pa.Table.from_pylist(rows, QUARANTINE.schema))
        staged = file.finish()
    assert staged is not None
    assert pq.ParquetFile(tmp_path / QUARANTINE.name / staged.path).num_row_groups == 3


def test_a_checkpoint_follows_and_everyone_reads_it(many_files: ReputLake) -> None:
    lake = many_files
    before, transactions = lake.rows(), lake.transactions()
    run(lake)
    for name in ("messages", "reput_progress"):
        log = lake.lake / name / "_delta_log"
        (checkpoint,) = log.glob("*.checkpoint.parquet")
        for path in log.glob("*.json"):
            if int(path.stem) < int(checkpoint.name[:20]):
                path.unlink()
    assert_same(before, lake.rows())
    assert lake.transactions() == transactions
    assert problems(lake) == []
