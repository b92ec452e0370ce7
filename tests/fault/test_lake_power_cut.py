"""The power is cut while batches are committed: what was reported, or what the gateway could read, is in every table.

Batches of a real log are staged and committed in this process, whose syncs are watched. The
gateway's look at the progress, for which it deletes segments, is taken at every instant as well.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_gateway.lake.reader import Lake
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.catalog import spark_commit
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.report import BatchReport
from structured_streaming.lake import create_tables
from structured_streaming.storage import local
from structured_streaming.tables import DATA_TABLES
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact, assert_keys_below_progress, expected_keys
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.streamed import stream
from tests.support.machines.power_cut import Disk
from tests.support.spark.lake import SparkLake

ROUNDS = 60 if EVIDENCE else 1
CUTS_A_ROUND = 8 if EVIDENCE else 2
INSTANTS_BETWEEN = 100 if EVIDENCE else 300
"""Cuts at most; a round has some 700."""
BATCH_BYTES = 15_000 if EVIDENCE else 30_000
OF_SPARK = [table for table in DATA_TABLES if EVIDENCE or table.name in {"messages", "delivery_events"}]
"""What Spark's writer commits to: it begins with a commit to each table, and treats them all alike."""


class Round:
    """A reput on a disk whose power is cut; `cuts` are what was left and up to where the lake was believed."""

    def __init__(self, folder: Path, store: Path, before: Path, number: int) -> None:
        self.cuts: list[tuple[Path, int]] = []
        self._folder = folder
        self._rng = random.Random(number)
        self._log = log_of(store)
        self._believed = 0
        self._until_cut = self._rng.randint(1, INSTANTS_BETWEEN)
        self._lake = folder / "live" / "lake"
        self._looking = threading.local()
        copy_folder(before, folder / "live")
        self._disk = Disk(folder / "live")
        self._disk.on_instant = self._instant
        self._disk.install()
        try:
            stream(store, self._lake, BATCH_BYTES, reported=self._report)
            self._cut()
        finally:
            self._disk.remove()
        shutil.rmtree(folder / "live")

    def _report(self, report: BatchReport) -> None:
        self._believe(*report.ends.values())

    def _believe(self, offset: int) -> None:
        self._believed = max(self._believed, offset)

    def _instant(self) -> None:
        """The gateway looks, and the power may go."""
        if getattr(self._looking, "now", False):
            return
        self._looking.now = True
        try:
            if self._rng.random() < 0.1:
                self._believe(Lake(str(self._lake)).dispatched_to(*self._log))
            self._until_cut -= 1
            if len(self.cuts) < CUTS_A_ROUND and self._until_cut <= 0:
                self._until_cut = self._rng.randint(1, INSTANTS_BETWEEN)
                self._cut()
        finally:
            self._looking.now = False

    def _cut(self) -> None:
        target = self._folder / f"cut-{len(self.cuts)}"
        survives = self._rng.choice((0.0, 0.0, 0.2, 0.5, 0.9, self._rng.random()))
        self._disk.cut(target, random.Random(self._rng.random()), survives)
        self.cuts.append((target, self._believed))


def log_of(store: Path) -> tuple[str, str]:
    """Broker and id."""
    reader = LogReader(store)
    reader.close()
    return reader.broker, reader.log_id


@pytest.mark.timeout(7200 if EVIDENCE else 900)
def test_what_progress_names_survives(
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 3)
    store, before = tmp_path / "store", tmp_path / "before"
    with LogWriter(store) as writer:
        writer.everything()
    cuts = 0
    for number in range(ROUNDS):
        if not number % 2:  # every other round goes on with what a cut left
            shutil.rmtree(before, ignore_errors=True)
            before.mkdir()
        done = Round(tmp_path, store, before, number)
        cuts += len(done.cuts)
        shutil.rmtree(before)
        copy_folder(done.cuts[0][0], before)
        for target, believed in done.cuts:
            lake = target / "lake"
            create_tables(str(lake))
            held = LakeProgress(str(lake)).offsets.get(log_of(store), 0)
            assert held >= believed, "the lake fell behind what was reported"
            stream(store, lake, BATCH_BYTES)
            assert_exact(lake, store)
            shutil.rmtree(target)
    record_property("rounds", ROUNDS)
    record_property("cuts", cuts)
    assert cuts > 2 * ROUNDS, "a round has too few instants for its cuts"


def test_what_sparks_writer_reported_survives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JVM syncs nothing; the sink has the file system synced, and of what came after that nothing survives here. The first batch
    is of the other writer. How Spark's goes on behind a crash is in tests/integration/spark/test_spark_sink.py."""
    live, store = tmp_path / "live", tmp_path / "store"
    live.mkdir()
    with LogWriter(store) as writer:
        writer.everything()
        writer.everything()
    lake = SparkLake(spark, live, store)
    first, second, *_, end = lake.cuts()
    DeltaCommitSink(str(lake.lake)).commit(lake.manifest(first, second, lake.lake))
    disk = Disk(live)
    real = local.sync_file_system

    def sync(folder: Path) -> None:
        real(folder)
        disk.sync_all()

    monkeypatch.setattr(local, "sync_file_system", sync)
    monkeypatch.setattr(spark_commit, "DATA_TABLES", OF_SPARK)
    cuts: list[tuple[Path, int]] = []
    believed, cutting = second, threading.Lock()

    def cut(step: str) -> None:
        with cutting:
            target = tmp_path / f"cut-{len(cuts)}"
            disk.cut(target, random.Random(0), 0.0)
            cuts.append((target, believed))

    disk.install()
    try:
        lake.sink(cut).commit(lake.manifest(second, end))
        believed = end
        cut("reported")
    finally:
        disk.remove()
    # numbered, started, set back, staged, durable, the progress, and reported
    assert len(cuts) == len(OF_SPARK) + 7
    expected = expected_keys(store)
    keys = {table.name: expected[table.name] for table in OF_SPARK}
    for target, told in cuts:
        held = assert_keys_below_progress(target / "lake", keys)
        assert max(held.ends.values()) >= told, "the lake fell behind what was reported"
