"""Commits by Spark's own writer: each batch is in the lake exactly once, after crashes and beside other writers, and readers
see it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession

from broker_gateway.lake.reader import Lake
from lakebroker_testing.logs import LogWriter, written
from structured_streaming.catalog import spark_commit
from structured_streaming.catalog.lake_tables import FolderTables
from structured_streaming.catalog.places import check_place
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.sink import NUMBERED
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.errors import ForeignWriterError, LakeError, LocationError
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES, MESSAGES, REMOVAL_ORDER, TABLES
from structured_streaming.union.lakes import FolderLake
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.iceberg_readers import assert_mirrored, by_pyiceberg
from tests.support.lakes.iceberg_readers import opened as mirror_of
from tests.support.lakes.maintained import rows_of
from tests.support.lakes.staged import YEAR_1_MS, YEAR_9999_MS
from tests.support.logs.raw import Raw, log_of, message, poison, properties
from tests.support.spark.lake import Crash, Manifest, SparkLake

OTHER = "another reput writes the same lake"


class Filled(NamedTuple):
    """A lake that several writers filled, one behind the other, and what was found when each of Spark's had started. It stays as it is."""

    lake: SparkLake
    stale: SparkCommitSink
    """The first of Spark's, after which another one came."""
    waiting: Manifest
    """What it had not committed by then."""
    cuts: list[int]
    """Where the writers began, and the log's end."""
    ends: list[int]
    """What the lake held by its progress, at each start."""
    messages: list[set[int]]
    """Places of the messages that it held."""
    progress_numbers: list[int]
    """Of the table of the progress."""
    numbers: list[set[int]]
    """Of the writer's other tables."""


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Our own writer's first batch, and its second, which is not finished; then one of Spark's writer with whatever a log holds, and one
    that fails; then the rest, by another one.

    A start commits to each table, and removes rows from one after the other: those of messages will do for the second. Only `messages`,
    a table in the middle, has unfinished rows.
    """
    folder = tmp_path_factory.mktemp("filled")
    cuts = [0]
    with LogWriter(folder / "store", segment_size=1 << 22) as writer:
        for part in (few_messages, few_messages, whatever_a_log_holds, *[few_messages] * 2):
            part(writer)
            cuts.append(writer.store.max_offset)
    start, ours, unfinished, whole, failed, end = cuts
    lake = SparkLake(spark, folder, folder / "store")
    DeltaCommitSink(str(lake.lake)).commit(lake.manifest(start, ours, lake.lake))
    with pytest.raises(Crash):
        DeltaCommitSink(str(lake.lake), crash).commit(messages_of(lake.manifest(ours, unfinished, lake.lake)))
    ends, messages, progress_numbers, numbers = list[int](), list[set[int]](), list[int](), list[set[int]]()

    def started(writer: str) -> SparkCommitSink:
        sink = lake.sink(writer=writer)
        ends.append(lake.end())
        messages.append(set(rows_of(lake.lake, "messages")["physical_offset"].to_pylist()))
        progress_numbers.append(newest_number(lake))
        tables = [DeltaTable(str(lake.lake / table.name)) for table in spark_commit.DATA_TABLES]
        numbers.append({table.transaction_version(SPARK_APPLICATION) or 0 for table in tables})
        return sink

    stale = started("first")
    stale.commit(lake.manifest(ours, whole))
    too_few = messages_of(lake.manifest(whole, failed))
    for row in too_few:
        row["rows"] += row["table"] == "messages"
    with pytest.raises(LakeError, match=r"got \d+ rows of a batch that has"):
        stale.commit(too_few)
    waiting = lake.manifest(whole, end)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark_commit, "DATA_TABLES", REMOVAL_ORDER)
        newer = started("second")
        assert list(lake.staging.rglob("*.parquet")) == []  # what others staged is of no use any more
    newer.commit(lake.manifest(whole, end))
    return Filled(lake, stale, waiting, cuts, ends, messages, progress_numbers, numbers)


def messages_of(manifest: Manifest) -> Manifest:
    """Of ranges that have no files of other tables."""
    kept = [row for row in manifest if not row["table"] or row["table"] == "messages"]
    return [row if row["table"] else {**row, "files": 1} for row in kept]


def few_messages(writer: LogWriter) -> None:
    writer.messages(10)


def whatever_a_log_holds(writer: LogWriter) -> None:
    writer.everything()
    records = [record for several in poison().values() for record in several]
    records += [
        Raw(born_timestamp=YEAR_1_MS, store_timestamp=YEAR_9999_MS, properties=properties(UNIQ_KEY="YEARS")),
        Raw(born_timestamp=-12_219_292_800_001, properties=properties(UNIQ_KEY="JULIAN")),
        Raw(properties=properties(UNIQ_KEY="TEXT", TAGS="\0\0", KEYS="k\0 " + "k" * 30_000)),
        Raw(properties=b"UNIQ_KEY\x01\xed\xa0\x80\x02TAGS\x01\xff\x02"),
        Raw(
            properties=properties(
                UNIQ_KEY="LITE", __LITE_TOPIC="l\0" * 300, _SYS_MSG_PRIORITY_=str((1 << 31) - 1)
            )
        ),
    ]
    for number, record in enumerate(records):
        writer.raw(log_of(message(number), record, base=writer.store.max_offset))
    writer.raw(b"no record at all".ljust(9000, b"?"))


def crash(step: str) -> None:
    if step in ("messages", NUMBERED):
        raise Crash


@pytest.fixture
def copied(filled: Filled, tmp_path: Path) -> SparkLake:
    """The lake that was filled, for a test that changes it."""
    return filled.lake.copied(tmp_path)


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkLake:
    """A lake without a batch, of a log of messages alone, whose writers have the tables of messages and no others: a start commits
    to each."""
    monkeypatch.setattr(spark_commit, "DATA_TABLES", REMOVAL_ORDER)
    return SparkLake(spark, tmp_path, written(tmp_path / "store", "broker-a", 40))


def parts(lake: SparkLake) -> tuple[int, int, int]:
    """Where its log begins, may be cut, and ends."""
    first, second, *_, end = lake.cuts(20_000)
    return first, second, end


def test_what_was_left_unfinished_is_removed_and_read_again_in_other_batches(filled: Filled) -> None:
    """By our own writer, which crashed, and by Spark's, which found other rows than were staged."""
    lake, (_, ours, _, whole, *_) = filled.lake, filled.cuts
    assert filled.ends == [ours, whole]
    every = rows_of(lake.lake, "messages")["physical_offset"].to_pylist()
    assert filled.messages == [{place for place in every if place < end} for end in (ours, whole)]
    assert_exact(lake.lake, lake.store)
    assert [found.problems for found in check_lake(str(lake.lake), [str(lake.store)]) if found.problems] == []


def test_a_writer_goes_on_under_its_name_and_does_not_take_the_lake_back_from_one_that_came_after_it(
    filled: Filled, copied: SparkLake
) -> None:
    lake = filled.lake
    for begun, numbers in zip(filled.progress_numbers, filled.numbers, strict=True):
        # of its start, whose number in the progress a batch of another writer may have, and of rows that were removed
        assert sorted(numbers) == [begun + 1, begun + 2]
    assert filled.progress_numbers[1] > max(filled.numbers[0])
    with pytest.raises(ForeignWriterError, match=OTHER):
        filled.stale.commit(filled.waiting)
    with pytest.raises(ForeignWriterError, match=OTHER):
        lake.sink(writer="first", before=True)
    with pytest.raises(Crash):  # it was let in
        copied.sink(crash, writer="second", before=True)
    assert_exact(lake.lake, lake.store)


def test_every_value_is_that_of_the_other_writer_whatever_the_log_holds(
    filled: Filled, tmp_path: Path
) -> None:
    lake, other = filled.lake, tmp_path / "other"
    empty_lake(str(other))
    DeltaCommitSink(str(other)).commit(lake.manifest(0, filled.cuts[-1], other))
    assert rows_of(lake.lake, "quarantine").num_rows >= 5
    for table in DATA_TABLES:
        theirs = rows_of(other, table.name)
        ours = rows_of(lake.lake, table.name).cast(theirs.schema)
        if "found_timestamp" in ours.column_names:
            ours, theirs = ours.drop_columns("found_timestamp"), theirs.drop_columns("found_timestamp")
        assert ours.equals(theirs), table.name
    messages = DeltaTable(str(lake.lake / "messages")).to_pyarrow_dataset()
    for column in ("message_id", "tag", "lite_topic", "priority", "born_timestamp"):
        values = rows_of(other, "messages")[column].drop_null().unique()
        for value in values if len(values) < 50 else values.slice(len(values) - 50):
            kept = messages.count_rows(filter=pc.field(column) == value)
            assert kept, f"statistics hide the row of {column} {value}"


def test_progress_that_was_removed_costs_no_row(filled: Filled, copied: SparkLake) -> None:
    progress = DeltaTable(str(copied.lake / "reput_progress"))
    for removed in (f"end_offset = {filled.cuts[-1]}", None):
        progress.delete(removed)
        with pytest.raises(LakeError, match=r"reput_progress of lake .* has lost the row of batch"):
            copied.sink()
    assert_exact(copied.lake, copied.store)


def test_readers_find_what_such_a_lake_holds(spark: SparkSession, filled: Filled, copied: SparkLake) -> None:
    log, end = (copied.reader.broker, copied.reader.log_id), filled.cuts[-1]
    assert Lake(str(copied.lake)).dispatched_to(*log) == end
    assert FolderLake(spark, LocalFolder(copied.lake)).newest(["messages"]).ends == {log: end}
    reports = maintain(str(copied.lake))
    assert [report.problems for report in reports if report.problems] == []
    assert_exact(copied.lake, copied.store)


def test_the_iceberg_mirror_shows_what_spark_wrote(copied: SparkLake) -> None:
    """Its files, and statistics of its kind: times cut to ms, also the greatest."""
    folder = LocalFolder(copied.lake)
    for name in TABLES:
        LakeMirror(folder).update(name, Snapshot(folder.child(name)), time.time())
    assert_mirrored(copied.lake)
    progress = mirror_of(copied.lake, "reput_progress")
    times = by_pyiceberg(progress)["commit_timestamp"].to_pylist()
    for each in times:
        found = by_pyiceberg(progress, EqualTo("commit_timestamp", each.isoformat()))
        assert found.num_rows == times.count(each)


def test_such_a_lake_has_no_other_kind_of_writer(filled: Filled) -> None:
    for opened in (DeltaCommitSink, LakeProgress):
        with pytest.raises(LakeError, match="give --sink spark"):
            opened(str(filled.lake.lake))


def test_a_crash_of_the_other_writer_in_a_log_that_is_new_is_not_guessed_at(
    small: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = parts(small)
    monkeypatch.setattr(spark_commit, "DATA_TABLES", (MESSAGES,))  # which it would remove rows from
    with pytest.raises(Crash):
        DeltaCommitSink(str(small.lake), crash).commit(small.manifest(first, second, small.lake))
    with pytest.raises(LakeError, match="without --sink spark run the reput once without it"):
        small.sink()


@LONG
def test_a_batch_under_the_number_of_the_next_writers_start_is_removed(small: SparkLake) -> None:
    lake, (first, second, end) = small, parts(small)
    stale = lake.sink()
    stale.commit(lake.manifest(first, second))

    def go_on(step: str) -> None:
        if step == NUMBERED:
            stale._number = newest_number(lake) - 1  # as many batches were committed meanwhile
            with pytest.raises(ForeignWriterError):
                stale.commit(lake.manifest(second, end))
            assert rows_of(lake.lake, "messages").num_rows > rows

    rows = rows_of(lake.lake, "messages").num_rows
    newer = lake.sink(go_on)
    assert lake.end() == second
    assert rows_of(lake.lake, "messages").num_rows == rows
    newer.commit(lake.manifest(second, end))
    (newest,) = [row for row in rows_of(lake.lake, "reput_progress").to_pylist() if row["end_offset"] == end]
    assert dict(newest["table_versions"])["messages"] == DeltaTable(str(lake.lake / "messages")).version()
    assert_exact(lake.lake, lake.store)


def newest_number(lake: SparkLake) -> int:
    number = DeltaTable(str(lake.lake / "reput_progress")).transaction_version(SPARK_APPLICATION)
    assert number is not None
    return number


@LONG
def test_a_writer_between_two_tables_is_stopped_by_the_next_ones_start(small: SparkLake) -> None:
    first, _, end = parts(small)
    started: list[SparkCommitSink] = []

    def overtake(table: str) -> None:
        if table == "messages" and not started:
            started.append(small.sink())

    stale = small.sink(overtake)
    with pytest.raises(LakeError):
        stale.commit(small.manifest(first, end))
    started[0].commit(small.manifest(first, end))
    assert_exact(small.lake, small.store)


@LONG
def test_rows_of_a_log_whose_progress_was_removed_stay(spark: SparkSession, small: SparkLake) -> None:
    lake, (first, second, end) = small, parts(small)
    progress = list[str]()

    def crash_later(step: str) -> None:
        progress.extend([step] if step == "reput_progress" else [])
        if step == "messages" and progress:
            raise Crash

    sink = lake.sink(crash_later)
    sink.commit(lake.manifest(first, second))
    with pytest.raises(Crash):
        sink.commit(lake.manifest(second, end))
    messages = FolderTables(LocalFolder(lake.lake)).table("messages")
    spark.sql(f"UPDATE {messages} SET log_id = 'gone' WHERE physical_offset < {second}")
    before = rows_of(lake.lake, "messages").num_rows
    with pytest.raises(
        LakeError, match=r"rows that no row of reput_progress covers, and at most \d+ of them"
    ):
        lake.sink()
    assert rows_of(lake.lake, "messages").num_rows == before


def test_in_s3_somebody_must_order_the_commits(spark: SparkSession) -> None:
    table = {"location": "s3a://bucket/lake/messages", "tableFeatures": ["appendOnly"]}
    with pytest.raises(LocationError, match="puts its commits over another one's in S3"):
        check_place(spark, "messages", table)
    check_place(spark, "messages", table | {"tableFeatures": ["catalogManaged"]})
    check_place(spark, "messages", table | {"location": "abfss://c@a/messages"})
