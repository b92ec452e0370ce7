"""Commits by Spark's own writer: each batch is in the lake exactly once, after crashes and beside other writers, and readers
see it."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession

from broker_gateway.lake.reader import Lake
from lakebroker_testing.logs import LogWriter
from structured_streaming.catalog import lake_tables
from structured_streaming.catalog.lake_tables import FolderTables, SchemaTables, check_tables, make_tables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.places import check_place
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.sink import NUMBERED
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.destination import destination_of
from structured_streaming.errors import ForeignWriterError, LakeError, LocationError
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.lake import create_tables
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.reput_options import ReputOptions
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES, TABLES
from structured_streaming.union.lakes import FolderLake
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.iceberg_readers import assert_mirrored, by_pyiceberg
from tests.support.lakes.iceberg_readers import opened as mirror_of
from tests.support.lakes.maintained import rows_of
from tests.support.lakes.staged import YEAR_1_MS, YEAR_9999_MS
from tests.support.logs.raw import Raw, log_of, message, poison, properties
from tests.support.spark.lake import Crash, SparkLake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SparkLake:
    return SparkLake(spark, tmp_path)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkLake, SparkLake]:
    """A lake with the first batch, and one with both. They stay as they are."""
    folder = tmp_path_factory.mktemp("kept")
    lake = SparkLake(spark, folder)
    first, second, *_, end = lake.cuts()
    sink = lake.sink()
    sink.commit(lake.manifest(first, second))
    begun = lake.copied(folder / "begun")
    sink.commit(lake.manifest(second, end))
    return begun, lake


@pytest.fixture
def begun(kept: tuple[SparkLake, SparkLake], tmp_path: Path) -> SparkLake:
    """With its first batch."""
    return kept[0].copied(tmp_path)


@pytest.fixture
def filled(kept: tuple[SparkLake, SparkLake], tmp_path: Path) -> SparkLake:
    """With all of its log, in two batches."""
    return kept[1].copied(tmp_path)


def test_what_a_crash_left_is_removed_and_read_again_in_other_batches(begun: SparkLake) -> None:
    lake = begun
    _, second, *_, end = lake.cuts()
    crashed = list[str]()

    def crash(table: str) -> None:
        crashed.append(table)
        if table == "messages":
            raise Crash

    dying = lake.sink(crash)
    with pytest.raises(Crash):
        dying.commit(lake.manifest(second, end))
    assert len(crashed) > 1
    again = lake.sink()
    assert lake.end() == second
    halfway = lake.cuts(90_000)[1]
    again.commit(lake.manifest(second, halfway))  # another batch than the one that crashed
    again.commit(lake.manifest(halfway, end))
    assert_exact(lake.lake, lake.store)
    assert [found.problems for found in check_lake(str(lake.lake), [str(lake.store)]) if found.problems] == []


def test_a_writer_that_another_came_after_says_so_and_does_not_take_the_lake_back(lake: SparkLake) -> None:
    first, *_, end = lake.cuts()
    stale = lake.sink(writer="first")
    waiting = lake.manifest(first, end)
    newer = lake.sink(writer="second")
    assert list(lake.staging.rglob("*.parquet")) == []  # what others staged is of no use any more
    starts = {
        DeltaTable(str(lake.lake / table.name)).transaction_version(SPARK_APPLICATION)
        for table in DATA_TABLES
    }
    assert len(starts) == 1
    with pytest.raises(ForeignWriterError, match="another reput writes the same lake"):
        stale.commit(waiting)
    with pytest.raises(ForeignWriterError, match="another reput writes the same lake"):
        lake.sink(writer="first", before=True)
    newer.commit(lake.manifest(first, end))
    assert_exact(lake.lake, lake.store)


@LONG
def test_a_batch_under_the_number_of_the_next_writers_start_is_removed(lake: SparkLake) -> None:
    first, second, *_, end = lake.cuts()
    stale = lake.sink()
    stale.commit(lake.manifest(first, second))

    def go_on(step: str) -> None:
        if step == NUMBERED:
            stale._number = newest_number(lake) - 1  # as many batches were committed meanwhile
            with pytest.raises(ForeignWriterError):
                stale.commit(lake.manifest(second, end))
            assert DeltaTable(str(lake.lake / "messages")).to_pyarrow_table().num_rows > rows

    rows = DeltaTable(str(lake.lake / "messages")).to_pyarrow_table().num_rows
    newer = lake.sink(go_on)
    assert lake.end() == second
    messages = DeltaTable(str(lake.lake / "messages"))
    assert newer._versions["messages"] == messages.version(), "the version without the rows that were removed"
    newer.commit(lake.manifest(second, end))
    assert_exact(lake.lake, lake.store)


def newest_number(lake: SparkLake) -> int:
    number = DeltaTable(str(lake.lake / "reput_progress")).transaction_version(SPARK_APPLICATION)
    assert number is not None
    return number


def test_every_value_is_that_of_the_other_writer_whatever_the_log_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
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
    with LogWriter(store, segment_size=1 << 22) as writer:
        for number, record in enumerate(records):
            writer.raw(log_of(message(number), record, base=writer.store.max_offset))
        writer.raw(b"no record at all".ljust(9000, b"?"))
        writer.everything()
    lake = SparkLake(spark, tmp_path, store)
    sink, start, end = lake.sink(), lake.reader.min_offset, lake.reader.readable_offset
    sink.commit(lake.manifest(start, end))
    other = tmp_path / "other"
    create_tables(str(other))
    DeltaCommitSink(str(other)).commit(lake.manifest(start, end, other))
    counts = assert_exact(lake.lake, lake.store)
    assert counts["quarantine"] >= 5
    for table in DATA_TABLES:
        theirs = rows_of(other, table.name)
        ours = rows_of(lake.lake, table.name).cast(theirs.schema)
        if "found_timestamp" in ours.column_names:
            ours, theirs = ours.drop_columns("found_timestamp"), theirs.drop_columns("found_timestamp")
        assert ours.equals(theirs), table.name
    for column in ("message_id", "tag", "lite_topic", "priority", "born_timestamp"):
        for value in set(rows_of(other, "messages")[column].drop_null()):  # statistics hide no row
            kept = (
                DeltaTable(str(lake.lake / "messages"))
                .to_pyarrow_dataset()
                .to_table(filter=pc.field(column) == value)
            )
            assert kept.num_rows, f"{column} {value}"


@LONG
def test_a_writer_between_two_tables_is_stopped_by_the_next_ones_start(lake: SparkLake) -> None:
    first, *_, end = lake.cuts()
    started: list[SparkCommitSink] = []

    def overtake(table: str) -> None:
        if table == "messages" and not started:
            started.append(lake.sink())

    stale = lake.sink(overtake)
    with pytest.raises(LakeError):
        stale.commit(lake.manifest(first, end))
    started[0].commit(lake.manifest(first, end))
    assert_exact(lake.lake, lake.store)


def test_progress_that_was_removed_costs_no_row(spark: SparkSession, filled: SparkLake) -> None:
    lake = filled
    *_, end = lake.cuts()
    progress = FolderTables(LocalFolder(lake.lake)).table("reput_progress")
    for removed in (f"WHERE end_offset = {end}", ""):
        spark.sql(f"DELETE FROM {progress} {removed}")
        with pytest.raises(LakeError, match=r"reput_progress of lake .* has lost the row of batch"):
            lake.sink()
    assert_exact(lake.lake, lake.store)


@LONG
def test_rows_of_a_log_whose_progress_was_removed_stay(spark: SparkSession, lake: SparkLake) -> None:
    first, second, *_, end = lake.cuts()
    progress = list[str]()

    def crash(step: str) -> None:
        progress.extend([step] if step == "reput_progress" else [])
        if step == "messages" and progress:
            raise Crash

    sink = lake.sink(crash)
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


def test_a_crash_of_the_other_writer_in_a_log_that_is_new_is_not_guessed_at(lake: SparkLake) -> None:
    first, second, *_ = lake.cuts()

    def crash(step: str) -> None:
        if step == "messages":
            raise Crash

    batch = lake.manifest(first, second, lake.lake)
    with pytest.raises(Crash):
        DeltaCommitSink(str(lake.lake), crash).commit(batch)
    with pytest.raises(LakeError, match="without --sink spark run the reput once without it"):
        lake.sink()


def test_readers_find_what_such_a_lake_holds(spark: SparkSession, lake: SparkLake) -> None:
    first, second, *_, end = lake.cuts()
    sink = lake.sink(writer="first")
    gateway = Lake(str(lake.lake))
    log = lake.reader.broker, lake.reader.log_id
    assert gateway.dispatched_to(*log) == 0
    for start, stop in ((first, second), (second, end)):
        report = sink.commit(lake.manifest(start, stop))
        assert report is not None
        assert gateway.dispatched_to(*log) == stop
        newest = FolderLake(spark, LocalFolder(lake.lake)).newest(["messages"])
        assert newest.ends == {log: stop}
    reports = maintain(str(lake.lake))
    assert [report.problems for report in reports if report.problems] == []
    assert_exact(lake.lake, lake.store)
    assert lake.sink(writer="first", before=True).ends == {log: end}


@pytest.mark.timeout(900)
def test_the_iceberg_mirror_shows_what_spark_wrote(filled: SparkLake) -> None:
    """Its files, and statistics of its kind: times cut to ms, also the greatest."""
    lake = filled
    folder = LocalFolder(lake.lake)
    for name in TABLES:
        LakeMirror(folder).update(name, Snapshot(folder.child(name)), time.time())
    assert_mirrored(lake.lake)
    progress = mirror_of(lake.lake, "reput_progress")
    times = by_pyiceberg(progress)["commit_timestamp"].to_pylist()
    for each in times:
        found = by_pyiceberg(progress, EqualTo("commit_timestamp", each.isoformat()))
        assert found.num_rows == times.count(each)


def test_a_lake_has_one_kind_of_writer(spark: SparkSession, lake: SparkLake) -> None:
    first, second, *_, end = lake.cuts()
    ours = DeltaCommitSink(str(lake.lake))
    ours.commit(lake.manifest(first, second, lake.lake))

    def crash(table: str) -> None:
        if table == "messages":
            raise Crash

    dying, unfinished = DeltaCommitSink(str(lake.lake), crash), lake.manifest(second, end, lake.lake)
    with pytest.raises(Crash):
        dying.commit(unfinished)
    sparks = lake.sink()  # goes on where the other ended, and removes what it left
    assert lake.end() == second
    sparks.commit(lake.manifest(second, end))
    assert_exact(lake.lake, lake.store)
    for opened in (DeltaCommitSink, LakeProgress):
        with pytest.raises(LakeError, match="give --sink spark"):
            opened(str(lake.lake))


def test_files_that_are_not_whole_end_the_batch(lake: SparkLake) -> None:
    first, *_, end = lake.cuts()
    sink = lake.sink()
    manifest = lake.manifest(first, end)
    for row in manifest:
        if row["table"] == "messages":
            row["rows"] += 1
    with pytest.raises(LakeError, match=r"got \d+ rows of a batch that has"):
        sink.commit(manifest)
    again = lake.sink()
    assert DeltaTable(str(lake.lake / "messages")).to_pyarrow_table().num_rows == 0
    again.commit(lake.manifest(first, end))
    assert_exact(lake.lake, lake.store)


@pytest.mark.parametrize(
    ("location", "sink", "by_spark"),
    [("./lake", "", False), ("./lake", "spark", True), ("a.b", "", True), ("s3://b/lake", "", False)],
)
def test_the_location_decides_who_commits(location: str, sink: str, by_spark: bool) -> None:
    assert destination_of(ReputOptions(location, sink=sink)).by_spark == by_spark


def test_in_s3_somebody_must_order_the_commits(spark: SparkSession) -> None:
    table = {"location": "s3a://bucket/lake/messages", "tableFeatures": ["appendOnly"]}
    with pytest.raises(LocationError, match="puts its commits over another one's in S3"):
        check_place(spark, "messages", table)
    check_place(spark, "messages", table | {"tableFeatures": ["catalogManaged"]})
    check_place(spark, "messages", table | {"location": "abfss://c@a/messages"})


def test_a_table_of_a_catalog_that_batches_went_to_is_not_made_anew(
    spark: SparkSession, lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_tables, "_check_kept", lambda session, schema: None)  # this one is in memory
    schema = CatalogSchema("spark_catalog", "dropped")
    spark.range(1).createOrReplaceTempView("consume_queue")  # as a session has that was asked in SQL before
    make_tables(spark, schema)
    spark.catalog.dropTempView("consume_queue")
    spark.sql(f"DROP TABLE {schema.table('quarantine')}")
    make_tables(spark, schema)  # nothing is lost yet
    sink = SparkCommitSink(spark, SchemaTables(schema), LocalFolder(lake.staging), lake.told.update, "writer")
    start, *_, end = lake.cuts()
    sink.commit(lake.manifest(start, end))
    spark.sql(f"DROP TABLE {schema.table('quarantine')}")
    for refused in (make_tables, check_tables):
        with pytest.raises(LocationError, match=r"the lake spark_catalog.dropped lost its table quarantine"):
            refused(spark, schema)
    assert not spark.catalog.tableExists(schema.table("quarantine"))
    spark.sql(f"DROP SCHEMA {schema.quoted} CASCADE")
