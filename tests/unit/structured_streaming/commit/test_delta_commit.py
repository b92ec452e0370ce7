"""Batches become table versions exactly once, whoever else writes the lake."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.report import BatchReport
from structured_streaming.commit.sink import STAGED
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import CutShortError, ForeignWriterError, LakeError
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import manifest
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, REPUT_PROGRESS, Table
from tests.support.lakes.empty import empty_lake
from tests.support.waiting import LIMIT_S


def staged(lake: Path, start: int, end: int, broker: str = "b") -> list[dict[str, Any]]:
    """A batch of one message."""
    row = {"broker": broker, "log_id": "l", "physical_offset": start, "topic": "t"}
    file = write_file(LocalFolder(lake), MESSAGES, pa.Table.from_pylist([row], MESSAGES.schema))
    part = LogRange("store:x", broker, "l", start, end, end)
    return manifest(part, 1, [(MESSAGES.name, file)]).to_pylist()


def offsets(lake: Path) -> list[int]:
    return sorted(DeltaTable(str(lake / MESSAGES.name)).to_pyarrow_table()["physical_offset"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


def test_one_of_two_writers_of_a_batch_wins(lake: Path) -> None:
    for number in range(5):
        sinks = [DeltaCommitSink(str(lake)) for _ in range(4)]
        batches = [staged(lake, number, number + 1) for _ in sinks]
        ends: list[BatchReport | ForeignWriterError] = []
        together = threading.Barrier(len(sinks))

        def commit(sink: DeltaCommitSink, batch: list[dict[str, Any]]) -> None:
            together.wait(LIMIT_S)  # noqa: B023
            try:
                report = sink.commit(batch)
                assert report is not None
                ends.append(report)  # noqa: B023
            except ForeignWriterError as error:
                ends.append(error)  # noqa: B023

        threads = [threading.Thread(target=commit, args=each) for each in zip(sinks, batches, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert len(ends) == len(sinks)
        assert sum(isinstance(each, BatchReport) for each in ends) == 1
        assert offsets(lake) == list(range(number + 1))
        assert LakeProgress(str(lake)).offsets == {("b", "l"): number + 1}


def test_a_range_of_which_files_are_missing_is_no_batch(lake: Path) -> None:
    """Spark's JVM died while it returned them. Whole ranges that came before are one."""
    sink = DeltaCommitSink(str(lake))
    whole = [*staged(lake, 0, 1), *staged(lake, 1, 2)]
    for came in (1, 3):
        with pytest.raises(CutShortError, match=r"of the 1 files of b/l .* Spark returned 0"):
            sink.commit(whole[:came])
        assert (offsets(lake), LakeProgress(str(lake)).offsets) == ([], {})
    for part in (whole[:2], whole[2:]):
        sink.commit(part)
    assert (offsets(lake), LakeProgress(str(lake)).offsets) == ([0, 1], {("b", "l"): 2})


def test_compaction_in_between_is_no_foreign_writer(lake: Path) -> None:
    sink = DeltaCommitSink(str(lake))
    for number in range(4):
        sink.commit(staged(lake, number, number + 1))
    DeltaTable(str(lake / MESSAGES.name)).optimize.compact()
    report = sink.commit(staged(lake, 4, 5))
    assert report is not None
    assert report.batch == 5
    assert offsets(lake) == [0, 1, 2, 3, 4]
    (newest,) = (
        row
        for row in DeltaTable(str(lake / REPUT_PROGRESS.name)).to_pyarrow_table().to_pylist()
        if row["batch"] == 5
    )
    assert dict(newest["table_versions"])[MESSAGES.name] == DeltaTable(str(lake / MESSAGES.name)).version()


def test_a_lake_from_before_batches_were_counted_goes_on(lake: Path) -> None:
    row = {"broker": "b/with/slashes", "log_id": "l", "end_offset": 70, "batch": 41}
    write_deltalake(
        str(lake / REPUT_PROGRESS.name),
        pa.Table.from_pylist([row], REPUT_PROGRESS.schema),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("b/with/slashes/l", 70)]),
    )
    assert LakeProgress(str(lake)).offsets == {("b/with/slashes", "l"): 70}
    for number in (42, 43):
        report = DeltaCommitSink(str(lake)).commit(staged(lake, 28 + number, 29 + number, "b/with/slashes"))
        assert report is not None
        assert report.batch == number


def test_tables_ahead_of_progress_are_left_alone(lake: Path) -> None:
    def die(step: str) -> None:
        if step == MESSAGES.name:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DeltaCommitSink(str(lake), die).commit(staged(lake, 0, 10))
    assert LakeProgress(str(lake)).offsets == {}
    assert LakeProgress(str(lake)).stops("b", "l") == [10]
    DeltaCommitSink(str(lake)).commit(staged(lake, 0, 10))
    assert offsets(lake) == [0]
    with pytest.raises(ForeignWriterError, match="up to 10"):
        DeltaCommitSink(str(lake)).commit(staged(lake, 0, 20))


@pytest.mark.parametrize("start", [0, 20])
def test_a_batch_that_begins_elsewhere_than_the_progress_ends_is_refused(lake: Path, start: int) -> None:
    """Its bytes are in the lake already, or those before it are not."""
    sink = DeltaCommitSink(str(lake))
    DeltaCommitSink(str(lake)).commit(staged(lake, 0, 10))
    with pytest.raises(
        ForeignWriterError,
        match=rf"holds b/l up to 10, this batch begins at {start}.*another reput writes the same lake",
    ):
        sink.commit(staged(lake, start, start + 10))
    assert offsets(lake) == [0]
    assert DeltaTable(str(lake / REPUT_PROGRESS.name)).to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("table", ["", STAGED, MESSAGES.name])
@pytest.mark.parametrize("started", [[REPUT_PROGRESS], [REPUT_PROGRESS, MESSAGES]])
def test_a_lake_that_sparks_writer_takes_over_gets_no_progress(
    lake: Path, table: str, started: list[Table]
) -> None:
    """Whenever it begins: with an empty commit to the progress, then to every other table."""

    def take_over(step: str) -> None:
        if step == table:
            for each in started:
                TableLog(LocalFolder(lake / each.name)).append([], {SPARK_APPLICATION: 4})

    sink = DeltaCommitSink(str(lake), take_over)
    take_over("")
    with pytest.raises(ForeignWriterError, match="give --sink spark"):
        sink.commit(staged(lake, 0, 10))
    assert DeltaTable(str(lake / REPUT_PROGRESS.name)).to_pyarrow_table().num_rows == 0
    assert offsets(lake) == ([0] if table == MESSAGES.name or (table and len(started) == 1) else [])


def test_a_staged_file_that_is_gone_is_named(lake: Path) -> None:
    batch = staged(lake, 0, 10)
    path = lake / MESSAGES.name / batch[1]["path"]
    path.unlink()
    with pytest.raises(LakeError, match=path.name):
        DeltaCommitSink(str(lake)).commit(batch)


@pytest.mark.parametrize("name", ["a b", "100%", "a*b?[c]{d,e}", "a#b:c", "ü漢'\""])
def test_odd_names_hold_a_lake_that_grows(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 2)
    lake = empty_lake(str(tmp_path / name)).path
    sink = DeltaCommitSink(str(lake))
    for number in range(5):
        sink.commit(staged(lake, number, number + 1))
    assert len(list((lake / MESSAGES.name / "_delta_log").glob("*.checkpoint.parquet"))) == 2
    assert offsets(lake) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
