"""The reput through a log that holds what stopped it, between good messages: both ways out of it, real Spark."""

from __future__ import annotations

import gzip
import os
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.sql import register
from tests.support.lakes.checks import assert_exact, rows
from tests.support.logs.raw import Raw, log_of, message, poison, properties
from tests.support.spark.reput_runs import reput_once

TAG = "a" * 32 + "\U0010ffff" + "b"
BOMBS, LARGE = 34, 6
MOST_BYTES = 1 << 30


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with every record that is known to have stopped the reput, and how many good messages are in it."""
    records = [record for several in poison().values() for record in several]
    bomb = Raw(body=gzip.compress(bytes(64 << 20)), sys_flag=1, properties=properties(UNIQ_KEY="BOMB"))
    large = Raw(body=zlib.compress(bytes(15 << 20)), sys_flag=1, properties=properties(UNIQ_KEY="LARGE"))
    records += [Raw(properties=properties(TAGS=TAG)), *[bomb] * BOMBS, *[large] * LARGE]
    folder = tmp_path_factory.mktemp("poison") / "store"
    with LogWriter(folder, segment_size=1 << 26) as writer:
        for number, record in enumerate(records):
            writer.raw(log_of(message(number), record, base=writer.store.max_offset))
        writer.raw(b"no record at all".ljust(9000, b"?"))
        writer.raw(log_of(message(len(records)), base=writer.store.max_offset))
    return folder, len(records) + 1


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and those that they did."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, open_ends = set(), [pid]
    while open_ends:
        new = children.get(open_ends.pop(), [])
        found.update(new)
        open_ends += new
    return found


@contextmanager
def watched_workers() -> Iterator[list[int]]:
    """The most memory that each Python worker of Spark had, bytes; filled in at the end."""
    most: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for pid in descendants(os.getpid()):
                try:
                    if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                        most[pid] = int(found[1]) << 10 if found else 0
                except OSError:
                    continue  # it ended meanwhile

    watcher = threading.Thread(target=watch)
    watcher.start()
    figures: list[int] = []
    try:
        yield figures
    finally:
        ended.set()
        watcher.join()
        figures += most.values()


def good_ids(count: int) -> set[str]:
    return {f"GOOD{number:028d}" for number in range(count)}


def test_the_reput_ends_with_rows_or_quarantine(
    spark: SparkSession, log: tuple[Path, int], tmp_path: Path
) -> None:
    store, good = log
    lake = tmp_path / "lake"
    with watched_workers() as memory:
        reput_once(spark, lake, store)
    assert memory
    assert max(memory) < MOST_BYTES
    counts = assert_exact(lake, store)
    assert counts["quarantine"] >= 5
    assert counts["consume_queue"] > good
    register(spark, str(lake))
    ids = [row[0] for row in spark.sql("SELECT message_id FROM messages").collect()]
    assert good_ids(good) <= set(ids)
    assert [ids.count("BOMB"), ids.count("LARGE")] == [BOMBS, LARGE]
    bodies = spark.sql(
        "SELECT message_id, body_encoding, max(length(body)) FROM messages WHERE message_id IN ('BOMB', 'LARGE') "
        "GROUP BY ALL ORDER BY ALL"
    ).collect()
    assert [(id, encoding) for id, encoding, _ in bodies] == [("BOMB", "zlib"), ("LARGE", "identity")]
    assert bodies[1][2] == 15 << 20
    found = spark.sql(f"SELECT tag, born_timestamp FROM messages WHERE tag = '{TAG}'").collect()
    assert found
    assert len(spark.table("messages").drop("body").collect()) == counts["messages"]
    reasons = {row["reason"] for row in rows(lake, "quarantine").to_pylist()}
    for part in (
        "journal record that does not decode",
        "the topic is no UTF-8",
        "years 1 to 9999",
        "no record here",
    ):
        assert any(part in reason for reason in reasons), f"{part} is in none of {reasons}"


def test_a_data_frame_of_the_log_has_all_messages(
    spark: SparkSession, log: tuple[Path, int], tmp_path: Path
) -> None:
    """The way that rows take to Spark's own writers."""
    store, good = log
    spark.dataSource.register(LakebrokerDataSource)
    with watched_workers() as memory:
        read = spark.read.format("lakebroker").option("store", str(store)).load()
        read.write.format("delta").save(str(tmp_path / "table"))
    assert memory
    assert max(memory) < MOST_BYTES
    written = spark.read.format("delta").load(str(tmp_path / "table"))
    ids = [row[0] for row in written.select("message_id").collect()]
    assert good_ids(good) <= set(ids)
    assert [ids.count("BOMB"), ids.count("LARGE")] == [BOMBS, LARGE]
