"""The reput over real Spark and Delta: exact rows of several brokers, whatever their logs hold, again and again; gaps, and what a broker
may remove. Rows and batches by themselves are in tests/unit/structured_streaming."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.destination import FolderDestination
from structured_streaming.errors import LakeError
from structured_streaming.read_only import Statement
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import run_until_done
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.sql import tables_in
from structured_streaming.stopping import Stopping
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact, rows
from tests.support.lakes.maintained import reput
from tests.support.logs.raw import Raw, log_of, message, poison, properties
from tests.support.machines.processes import descendants, of_process
from tests.support.spark.hosted_driver import state
from tests.support.spark.reput_runs import reput_once
from tests.support.waiting import wait_until

TAG = "a" * 32 + "\U0010ffff" + "b"
BOMBS, LARGE = (34, 6) if EVIDENCE else (2, 2)
MOST_BYTES = 1 << 30


class Filled(NamedTuple):
    """A lake of two brokers. It stays as it is."""

    lake: Path
    stores: tuple[Path, Path]
    good: set[str]
    """Ids of messages as there are many, between those that once stopped the reput."""
    damaged: int
    """Where a record of broker-b is damaged."""
    batches: list[int]
    """Of each of three runs: all there is, nothing new, fifty messages more."""
    memory: list[int]
    """The most that Python processes of Spark had, bytes."""


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("filled")
    lake, stores = folder / "lake", (folder / "broker-a", folder / "broker-b")
    good = write_poison(stores[0])
    with LogWriter(stores[1], "broker-b") as writer:
        writer.everything()
        damaged = writer.store.index.record_starts()[100].item()
    with (stores[1] / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(damaged + 120)
        log.write(b"\xff\xfe")
    batches = [reput_once(spark, lake, *stores, max_bytes=200_000)]
    memory = memory_of_workers()
    batches.append(reput_once(spark, lake, *stores))
    with LogWriter(stores[1], "broker-b") as writer:
        writer.messages(50)
    batches.append(reput_once(spark, lake, *stores))
    return Filled(lake, stores, good, damaged, batches, memory)


def write_poison(store: Path) -> set[str]:
    """A store with every record that is known to have stopped the reput, each behind a good message; ids of these."""
    records = [record for several in poison().values() for record in several]
    bomb = Raw(body=gzip.compress(bytes(64 << 20)), sys_flag=1, properties=properties(UNIQ_KEY="BOMB"))
    large = Raw(body=zlib.compress(bytes(15 << 20)), sys_flag=1, properties=properties(UNIQ_KEY="LARGE"))
    records += [Raw(properties=properties(TAGS=TAG)), *[bomb] * BOMBS, *[large] * LARGE]
    with LogWriter(store, segment_size=1 << 26) as writer:
        for number, record in enumerate(records):
            writer.raw(log_of(message(number), record, base=writer.store.max_offset))
        writer.raw(b"no record at all".ljust(9000, b"?"))
        writer.raw(log_of(message(len(records)), base=writer.store.max_offset))
    return {f"GOOD{number:028d}" for number in range(len(records) + 1)}


def memory_of_workers() -> list[int]:
    """The most that each Python process of Spark had which is still there: Spark keeps one for a minute, and uses it again."""
    workers = [pid for pid in descendants(os.getpid()) if "pyspark.daemon" in of_process(pid, "cmdline")]
    most = [re.search(r"VmHWM:\s+(\d+) kB", of_process(pid, "status")) for pid in workers]
    return [int(found[1]) << 10 for found in most if found]


def test_every_table_is_exact_and_a_second_run_adds_nothing(filled: Filled) -> None:
    first, again, more = filled.batches
    assert first > 1
    assert (again, more) == (0, 1)
    counts = assert_exact(filled.lake, *filled.stores)
    of_b = [
        row for row in rows(filled.lake, "messages", ["broker"]).to_pylist() if row["broker"] == "broker-b"
    ]
    assert len(of_b) == 303 - 1 + 50
    assert counts["delivery_events"] >= 40
    bad = rows(filled.lake, "quarantine").to_pylist()
    assert [row["physical_offset"] for row in bad if row["broker"] == "broker-b"] == [filled.damaged]
    reasons = {row["reason"] for row in bad}
    for part in (
        "journal record that does not decode",
        "the topic is no UTF-8",
        "years 1 to 9999",
        "no record here",
    ):
        assert any(part in reason for reason in reasons), f"{part} is in none of {reasons}"
    for store in filled.stores:
        log = LogReader(store)
        progress = sorted(
            (row for row in rows(filled.lake, "reput_progress").to_pylist() if row["broker"] == log.broker),
            key=lambda row: row["end_offset"],
        )
        assert all(a["end_offset"] == b["start_offset"] for a, b in itertools.pairwise(progress))
        assert progress[-1]["end_offset"] == log.readable_offset
        log.close()


def test_no_worker_takes_a_gibibyte(filled: Filled) -> None:
    assert filled.memory
    assert max(filled.memory) < MOST_BYTES


def test_spark_reads_whatever_the_logs_held(spark: SparkSession, filled: Filled) -> None:
    tables_in(spark, str(filled.lake)).bind(Statement(spark, "TABLE messages"))
    bodies = spark.sql(
        "SELECT message_id, body_encoding, count(*), max(length(body)) FROM messages "
        "WHERE message_id IN ('BOMB', 'LARGE', 'GZIP') GROUP BY ALL ORDER BY ALL"
    ).collect()
    assert [tuple(row)[:3] for row in bodies] == [
        ("BOMB", "zlib", BOMBS),
        ("GZIP", "identity", 1),
        ("LARGE", "identity", LARGE),
    ]
    assert [row[3] for row in bodies][1:] == [len(b"packed"), 15 << 20]
    assert spark.sql(f"SELECT tag, born_timestamp FROM messages WHERE tag = '{TAG}'").collect()
    of_spark = spark.table("messages").drop("body").collect()
    assert sorted(row["physical_offset"] for row in of_spark) == sorted(
        rows(filled.lake, "messages", ["physical_offset"])["physical_offset"].to_pylist()
    )


def test_a_data_frame_of_the_log_has_all_messages_and_can_be_written(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    """The way that rows take to Spark's own writers."""
    spark.dataSource.register(LakebrokerDataSource)
    read = spark.read.format("lakebroker").option("store", ",".join(map(str, filled.stores))).load()
    read.write.format("delta").save(str(tmp_path / "table"))
    written = spark.read.format("delta").load(str(tmp_path / "table")).drop("properties", "body")
    lake = spark.read.format("delta").load(str(filled.lake / "messages")).drop("properties", "body")
    assert_df_equality(
        written,
        lake,
        ignore_row_order=True,
        ignore_nullable=True,
        ignore_metadata=True,
        ignore_column_order=True,
    )
    ids = [row[0] for row in written.select("message_id").collect()]
    assert filled.good <= set(ids)
    assert [ids.count("BOMB"), ids.count("LARGE")] == [BOMBS, LARGE]
    memory = memory_of_workers()
    assert memory
    assert max(memory) < MOST_BYTES


def test_a_gap_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    lake, store = tmp_path / "lake", tmp_path / "store"
    with LogWriter(store, segment_size=1 << 16) as writer:
        writer.messages(300)
    reput(store, str(lake))
    with LogWriter(store, segment_size=1 << 16) as writer:
        writer.messages(1000)
    for segment in sorted((store / "commitlog").iterdir())[:-1]:
        segment.unlink()
    options = ReputOptions(str(lake), store=str(store))
    with pytest.raises(LakeError, match="bytes are gone"):
        run_until_done(spark, options, lambda report: None, FolderDestination(options), Stopping())


def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(LakebrokerDataSource)
    with pytest.raises(Exception, match=r"no log to read|option store"):
        spark.read.format("lakebroker").load().collect()
    with pytest.raises(Exception, match=r"lakebroker\.json"):
        spark.read.format("lakebroker").option("store", str(tmp_path)).load().collect()


def test_segments_go_once_the_lake_has_them_and_the_session_stays_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    options = {
        **OPTIONS,
        "mappedFileSizeCommitLog": str(1 << 20),
        "flushDiskType": "SYNC_FLUSH",  # a reput that ends by itself reads what is flushed
        "fileReservedTime": "0",
        "deleteWhen": ";".join(str(hour) for hour in range(24)),
        "cleanResourceInterval": "100",
        "lakeLocation": str(lake),
    }
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        for _ in range(40):
            assert client.send("bulk", b"x" * 100_000).status.code == pb.OK

        def first_segment() -> int:
            return min(int(path.name) for path in (gateway.store / "commitlog").iterdir())

        def bulk() -> int:
            return rows(lake, "messages", ["topic"])["topic"].to_pylist().count("bulk")

        assert first_segment() == 0
        before, told = state(spark), list[str]()
        once = ReputOptions(str(lake), brokers=gateway.address, once=True)
        run_reput(once, tell=told.append)
        assert told[0] == f"reading 1 log from {gateway.address}"
        assert told[-1].startswith(f"done; the lake {lake} is at ")
        assert state(spark) == before
        assert bulk() == 40
        wait_until(lambda: first_segment() >= 3 << 20, lambda: gateway.log.read_text()[-2000:])
        assert client.send("bulk", b"later").status.code == pb.OK
        run_reput(once)
        assert bulk() == 41
        client.channel.close()
