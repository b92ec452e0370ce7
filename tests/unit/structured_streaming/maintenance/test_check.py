"""What is wrong with a lake is found; of a lake that is whole nothing is said."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.batch import LogSpan, progress_rows
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.sink import STAGED
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.erased import PLACE
from structured_streaming.errors import LakeError
from structured_streaming.maintenance import check_log, windows
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.check_table import CheckedTable
from structured_streaming.staging.table_file import write_file
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, REPUT_PROGRESS
from tests.support.lakes.maintained import ReputLake, rows_of
from tests.support.machines.processes import without_descriptors


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    made = ReputLake(tmp_path_factory.mktemp("filled"), batch_bytes=40_000, damage=50_000)
    made.fill()
    return made


@pytest.fixture
def lake(filled: ReputLake, tmp_path: Path) -> ReputLake:
    return filled.copied(tmp_path / "whole")


def problems(lake: ReputLake) -> list[str]:
    found = check_lake(str(lake.lake), [str(lake.store)])
    return [f"{findings.what}: {problem}" for findings in found for problem in findings.problems]


def first(lake: ReputLake, table: str) -> tuple[TableLog, DataFile]:
    folder = LocalFolder(lake.lake / table)
    return TableLog(folder), min(Snapshot(folder).files.values(), key=lambda file: file.path)


def test_a_whole_lake(filled: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with damage in which batches ended, and by windows of few rows."""
    found = check_lake(str(filled.lake), [str(filled.store)])
    assert [problem for findings in found for problem in findings.problems] == []
    counts = {findings.what: findings.rows for findings in found if not findings.is_log}
    monkeypatch.setattr(windows, "WINDOW_ROWS", 100)
    monkeypatch.setattr(check_log, "WINDOW_ROWS", 100)
    assert problems(filled) == []
    assert counts["quarantine"] > 1, "no batch ends within the damage"
    assert counts == {name: rows.num_rows for name, rows in filled.rows().items()}


@pytest.mark.parametrize("broker", ["broker-b", "broker-a"])
def test_a_log_that_the_lake_knows_nothing_of(filled: ReputLake, tmp_path: Path, broker: str) -> None:
    """Nothing is missing of one without records: its broker is new, or has a new disk."""
    other = tmp_path / "another"
    with LogWriter(other, broker=broker) as writer:
        assert not [each for each in check_lake(str(filled.lake), [str(other)]) if each.problems]
        writer.messages(1)
    (found,) = [each for each in check_lake(str(filled.lake), [str(other)]) if each.problems]
    (problem,) = found.problems
    assert problem.startswith(f"the lake holds nothing of {broker}/")


def test_a_lake_that_went_over_to_sparks_writer(tmp_path: Path) -> None:
    """Its progress is in rows alone from then on."""
    other = ReputLake(tmp_path / "other")
    other.fill(1)
    ((broker, log_id), end), *_ = LakeProgress(other.location).offsets.items()
    rows = progress_rows([LogSpan("store:x", broker, log_id, end, end + 100, end + 100, 1)], {}, 9)
    folder = LocalFolder(other.lake)
    file = write_file(folder, REPUT_PROGRESS, rows)._asdict()
    log = TableLog(folder.child(REPUT_PROGRESS.name))
    log.append([file], {})
    assert [each.what for each in check_lake(other.location) if each.problems] == [REPUT_PROGRESS.name]
    log.append([], {SPARK_APPLICATION: 9})
    assert [each.problems for each in check_lake(other.location) if each.problems] == []


def test_a_lake_that_is_being_filled(tmp_path: Path) -> None:
    other = ReputLake(tmp_path / "other")
    other.fill(3)
    assert problems(other) == []

    class Stop(Exception):
        pass

    def stop(step: str) -> None:
        if step != STAGED:
            raise Stop

    other.sink = DeltaCommitSink(str(other.lake), stop)
    with pytest.raises(Stop):
        other.fill(1)  # one table is ahead of the progress
    assert problems(other) == []


def lost(lake: ReputLake) -> None:
    _, file = first(lake, "messages")
    (lake.lake / "messages" / file.path).unlink()


def cut(lake: ReputLake) -> None:
    _, file = first(lake, "messages")
    path = lake.lake / "messages" / file.path
    path.write_bytes(path.read_bytes()[:-1])


def changed(lake: ReputLake) -> None:
    _, file = first(lake, "messages")
    path = lake.lake / "messages" / file.path
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)


def twice(lake: ReputLake) -> None:
    log, file = first(lake, "messages")
    shutil.copy(lake.lake / "messages" / file.path, lake.lake / "messages" / "copy.parquet")
    log.append([{"path": "copy.parquet", "size": file.size, "stats": file.stats}], {})


def removed(lake: ReputLake) -> None:
    log, file = first(lake, "delivery_events")
    log.rewrite([(file.path, file.size)], [])


def emptied(lake: ReputLake) -> None:
    """As a person does it."""
    DeltaTable(str(lake.lake / "messages")).delete()


def some_deleted(lake: ReputLake) -> None:
    DeltaTable(str(lake.lake / "messages")).delete("queue_offset = 1")


def quarantine_removed(lake: ReputLake) -> None:
    log, file = first(lake, "quarantine")
    log.rewrite([(file.path, file.size)], [])


def restated(lake: ReputLake, table: str, change: Callable[[dict[str, object]], None]) -> None:
    log, file = first(lake, table)
    stated = file.statistics
    change(stated)
    log.append([{"path": file.path, "size": file.size, "stats": json.dumps(stated)}], {})


def count_stated(lake: ReputLake) -> None:
    restated(lake, "consume_queue", lambda stated: stated.update(numRecords=7777))


def least_stated(lake: ReputLake) -> None:
    restated(lake, "consume_queue", lambda stated: stated["minValues"].update(topic="zzz"))  # type: ignore[attr-defined]


def greatest_stated(lake: ReputLake) -> None:
    restated(
        lake,
        "consume_queue",
        lambda stated: stated["maxValues"].update(store_timestamp="2001-01-01T00:00:00.000Z"),  # type: ignore[attr-defined]
    )


def type_stated(lake: ReputLake) -> None:
    restated(lake, "consume_queue", lambda stated: stated["maxValues"].update(queue_id="many"))  # type: ignore[attr-defined]


def nulls_stated(lake: ReputLake) -> None:
    restated(lake, "consume_queue", lambda stated: stated["nullCount"].update(topic=1))  # type: ignore[attr-defined]


def gap(lake: ReputLake) -> None:
    folder = LocalFolder(lake.lake / "reput_progress")
    files = sorted(
        Snapshot(folder).files.values(), key=lambda file: file.statistics["minValues"]["end_offset"]
    )
    TableLog(folder).rewrite([(files[1].path, files[1].size)], [])


def progress_alone(lake: ReputLake) -> None:
    TableLog(LocalFolder(lake.lake / "reput_progress")).append([], {"b/other": 5})


def beyond(lake: ReputLake) -> None:
    log, _ = first(lake, "messages")
    log.append([], {f"{lake.reader.broker}/{lake.reader.log_id}": 1000})


def deletions(lake: ReputLake) -> None:
    log = lake.lake / "messages" / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json"))
    action = {
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    }
    (log / f"{version + 1:020}.json").write_text(json.dumps(action) + "\n")


def torn(lake: ReputLake) -> None:
    (lake.lake / "messages" / "_delta_log" / f"{0:020}.json").write_text("{")


HARMS: tuple[dict[Callable[[ReputLake], None], str], ...] = (
    {
        lost: "messages: .* it is not there",
        removed: "delivery_events: .* rows are missing",
        quarantine_removed: "quarantine: .* damaged extents are missing",
        count_stated: "consume_queue: .* the table's log says 7,?777",
        gap: "reput_progress: a batch of .* begins at",
    },
    {
        cut: "messages: .* bytes, the table's log says",
        least_stated: "consume_queue: .* the least topic is stated as 'zzz'",
        progress_alone: "reput_progress: b/other was committed up to 5, but no batch",
    },
    {
        changed: "messages: .* cannot be read",
        greatest_stated: "consume_queue: .* the greatest store_timestamp is stated",
    },
    {
        twice: "messages: .* row keys are there more than once",
        type_stated: "consume_queue: .* of other types than its columns",
    },
    {
        beyond: "messages: there is a row of .*, the table was committed up to 1,000",
        nulls_stated: "consume_queue: .* 1 nulls of topic are stated, 0 are there",
    },
    {deletions: "messages: not checked: .*deletionVectors"},
    {torn: "messages: .*its log cannot be read"},
)
"""What is done to a lake, each to another table, and what is said of it."""


@pytest.mark.parametrize("harms", HARMS, ids=lambda harms: "-".join(harm.__name__ for harm in harms))
def test_harm_is_found(lake: ReputLake, harms: dict[Callable[[ReputLake], None], str]) -> None:
    for harm in harms:
        harm(lake)
    found = problems(lake)
    for said in harms.values():
        assert any(re.search(said, problem) for problem in found), (said, found)


def test_files_that_are_away_for_now_are_not_damaged(lake: ReputLake) -> None:
    """A mount that is gone with the table, and a process without descriptors."""
    folder, away = LocalFolder(lake.lake / "messages"), lake.lake / "away"
    checked = CheckedTable(folder, MESSAGES, Snapshot(folder))
    folder.path.rename(away)
    with pytest.raises(LakeError, match=f"file {folder}/.* cannot be read now: .*No such file"):
        list(checked.files())
    away.rename(folder.path)
    with (
        without_descriptors(),
        pytest.raises(LakeError, match=r"cannot be read now: .*Too many open files"),
    ):
        list(checked.files())
    assert list(checked.files()) == []


def places(rows: pa.Table) -> set[tuple[str, str, int]]:
    return {tuple(row.values()) for row in rows.select(PLACE).to_pylist()}


@pytest.mark.parametrize("harm", [emptied, some_deleted])
def test_messages_that_are_lost_are_found_without_the_log(
    filled: ReputLake, lake: ReputLake, harm: Callable[[ReputLake], None]
) -> None:
    before = places(rows_of(filled.lake, "messages"))
    harm(lake)
    indexed = places(rows_of(filled.lake, "consume_queue"))
    lost = len((before - places(rows_of(lake.lake, "messages"))) & indexed)
    said = {findings.what: findings.problems for findings in check_lake(str(lake.lake))}
    assert len(said["messages"]) == 2
    assert f"{lost:,} rows are missing, to which rows of consume_queue point, such as" in said["messages"][0]
    assert "RESTORE TABLE" in said["messages"][0]
    assert not any(problems for table, problems in said.items() if table != "messages")


def test_tables_that_were_left_out_for_a_time_lack_nothing(tmp_path: Path) -> None:
    lake = ReputLake(tmp_path, batch_bytes=40_000)
    lake.fill(2)
    lake.sink = DeltaCommitSink(lake.location, wanted=Wanted(frozenset(["consume_queue"])))
    lake.fill(2)
    lake.sink = DeltaCommitSink(lake.location)
    lake.fill()
    assert problems(lake) == []
    removed(lake)
    (said,) = problems(lake)
    assert "rows are missing: the log has their records" in said


def test_a_log_that_is_not_there_is_an_error(filled: ReputLake, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="nowhere"):
        check_lake(str(filled.lake), [str(tmp_path / "nowhere")])
