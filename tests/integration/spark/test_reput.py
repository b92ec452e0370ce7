"""The reput over real Spark and Delta: exact rows, again and again, from folders and for several brokers."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.sink import Sink
from structured_streaming.destination import FolderDestination
from structured_streaming.errors import ForeignWriterError, LakeError
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import run_until_done, start_reput
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.sql import register
from structured_streaming.stopping import Stopping
from tests.support.lakes.checks import assert_exact, rows
from tests.support.logs.written import written
from tests.support.spark.reput_runs import reput_once, to_the_end


def test_every_table_is_exact_and_a_second_run_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    writer = LogWriter(tmp_path / "store")
    writer.everything()
    writer.close()
    assert reput_once(spark, lake, writer.folder, max_bytes=40_000) > 1
    counts = assert_exact(lake, writer.folder)
    assert counts["messages"] == 303
    assert counts["consume_queue"] == 323
    assert counts["delivery_events"] == 40
    assert reput_once(spark, lake, writer.folder) == 0
    writer = LogWriter(tmp_path / "store")
    writer.messages(50)
    writer.close()
    assert reput_once(spark, lake, writer.folder) == 1
    assert assert_exact(lake, writer.folder)["messages"] == 353
    progress = sorted(rows(lake, "reput_progress").to_pylist(), key=lambda row: row["batch"])
    assert all(a["end_offset"] == b["start_offset"] for a, b in itertools.pairwise(progress))
    assert progress[-1]["end_offset"] == LogReader(writer.folder).readable_offset

    register(spark, str(lake))
    packed = spark.sql("SELECT body, body_encoding FROM messages WHERE message_id = 'GZIP'").collect()
    assert [(bytes(row.body), row.body_encoding) for row in packed] == [(b"packed", "identity")]
    dead = spark.sql("SELECT * FROM dead_letters").collect()
    assert [(d.topic, d.consumer_group, d.queue_offset, d.attempts, d.reason) for d in dead] == [
        ("topic-1", "g", 7, 3, "because")
    ]
    for view in (
        "consumer_lag",
        "retries",
        "message_trace",
        "delayed_messages",
        "transactions",
        "topic_stats",
    ):
        spark.sql(f"SELECT * FROM {view}").collect()
    assert spark.sql("SELECT count(*) FROM retries").first()[0] == 20
    spark.dataSource.register(LakebrokerDataSource)
    read = spark.read.format("lakebroker").option("store", str(writer.folder)).load()
    assert_df_equality(
        read.drop("properties"),
        spark.table("messages").drop("properties"),
        ignore_row_order=True,
        ignore_nullable=True,
        ignore_metadata=True,
    )


def test_two_brokers_in_one_query_and_damage_in_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    stores = []
    for broker in ("broker-a", "broker-b"):
        writer = LogWriter(tmp_path / broker, broker)
        writer.everything()
        placed = writer.store.index.record_starts()[100].item()
        writer.close()
        stores.append(writer.folder)
    with (stores[0] / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(placed + 120)
        log.write(b"\xff\xfe")
    reput_once(spark, lake, *stores)
    counts = assert_exact(lake, *stores)
    assert counts["quarantine"] == 1
    assert counts["messages"] == 2 * 303 - 1
    (bad,) = rows(lake, "quarantine").to_pylist()
    assert (bad["broker"], bad["physical_offset"]) == ("broker-a", placed)


def test_a_stale_second_writer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    writer = LogWriter(tmp_path / "store")
    writer.messages(20)
    writer.close()
    stolen: list[list[dict[str, Any]]] = []

    class Spy(FolderDestination):
        """Keeps the manifests, which are committed."""

        def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
            self.sink, places = super().open(session, scratch)
            return self, places

        def commit(self, manifest: list[dict[str, Any]]) -> Any:
            stolen.append(manifest)
            return self.sink.commit(manifest)

    from structured_streaming.lake import create_tables

    create_tables(str(lake))
    stale = DeltaCommitSink(str(lake))
    chosen = ReputOptions(str(lake), store=str(writer.folder), once=True)
    to_the_end(lambda: start_reput(spark, chosen, destination=Spy(chosen)))
    before = assert_exact(lake, writer.folder)
    for manifest in stolen:
        with pytest.raises(ForeignWriterError, match="another reput"):
            stale.commit(manifest)
    assert assert_exact(lake, writer.folder) == before


def test_two_brokers_of_one_name_end_the_job(spark: SparkSession, tmp_path: Path) -> None:
    stores = [LogWriter(tmp_path / name, "broker-a") for name in ("one", "two")]
    for each in stores:
        each.messages(1)
        each.close()
    options = ReputOptions(str(tmp_path / "lake"), store=",".join(str(each.folder) for each in stores))
    with pytest.raises(LakeError, match="both broker 'broker-a': brokers that share a lake each need"):
        run_until_done(spark, options, lambda report: None, FolderDestination(options), Stopping())


def test_a_gap_ends_the_job_or_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with LogWriter(tmp_path / "store", segment_size=1 << 16) as writer:
        writer.messages(300)
    reput_once(spark, lake, writer.folder)
    with LogWriter(tmp_path / "store", segment_size=1 << 16) as writer:
        writer.messages(1000)
    for segment in sorted((writer.folder / "commitlog").iterdir())[:-1]:
        segment.unlink()
    options = ReputOptions(str(lake), store=str(writer.folder))
    with pytest.raises(LakeError, match="bytes are gone"):
        run_until_done(spark, options, lambda report: None, FolderDestination(options), Stopping())
    reput_once(spark, lake, writer.folder, on_gap="continue")
    (row,) = rows(lake, "quarantine").to_pylist()
    log = LogReader(writer.folder)
    assert (row["reason"], row["physical_offset"] + row["length"]) == ("missing", log.min_offset)
    assert max(rows(lake, "reput_progress")["end_offset"].to_pylist()) == log.readable_offset


def test_a_session_that_is_there_is_used_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 200)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    before, told = settings(spark), list[str]()
    options = ReputOptions(str(tmp_path / "lake"), store=str(store), once=True)
    run_reput(options, tell=told.append)
    assert told[0] == f"reading 1 log from {store}"
    assert settings(spark) == before
    assert spark.range(3).count() == 3
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert assert_exact(tmp_path / "lake", store)["messages"] == 200


def settings(spark: SparkSession) -> dict[str, str]:
    """Of the context and of the session."""
    own = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    return dict(spark.sparkContext.getConf().getAll()) | own


def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path) -> None:
    from structured_streaming.storage.location import lake_folder

    with pytest.raises(LakeError, match="no kind of object store"):
        lake_folder("ftp://bucket/lake")
    spark.dataSource.register(LakebrokerDataSource)
    with pytest.raises(Exception, match=r"no log to read|option store"):
        spark.read.format("lakebroker").load().collect()
    with pytest.raises(Exception, match=r"lakebroker\.json"):
        spark.read.format("lakebroker").option("store", str(tmp_path)).load().collect()


def test_segments_go_once_the_lake_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """The first time by the command, then in a session that is there."""
    lake = tmp_path / "lake"
    options = {
        **OPTIONS,
        "mappedFileSizeCommitLog": str(1 << 20),
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
            return rows(lake, "messages")["topic"].to_pylist().count("bulk")

        assert first_segment() == 0
        arguments = command("reput", "--brokers", gateway.address, "--lake", str(lake), "--once")
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)
        assert done.returncode == 0, done.stderr[-3000:]
        told = done.stderr.splitlines()
        assert told[0] == "lakebroker: starting Spark ..."
        assert told[1] == f"lakebroker: reading 1 log from {gateway.address}"
        assert told[-1].startswith(f"lakebroker: done; the lake {lake} is at ")
        assert bulk() == 40
        deadline = time.monotonic() + 20
        while first_segment() < 3 << 20:
            assert time.monotonic() < deadline, gateway.log.read_text()[-2000:]
            time.sleep(0.05)
        assert client.send("bulk", b"later").status.code == pb.OK
        run_reput(ReputOptions(str(lake), brokers=gateway.address, once=True), tell=told.append)
        assert bulk() == 41
        client.channel.close()
