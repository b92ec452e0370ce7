"""The power is cut while batches are committed: what was reported, or what the gateway could read, is in every table.

Ranges of a real log are staged and committed in this process, whose syncs are watched. The
gateway's look at the progress, for which it deletes segments, is taken at every instant as well.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker_gateway.lake.reader import Lake
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.lake import create_tables
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.storage import local
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact, assert_exact_below_progress
from tests.support.machines.power_cut import Disk
from tests.support.spark.lake import SparkLake

ROUNDS = 60 if EVIDENCE else 1
CUTS_A_ROUND = 8
BATCH_BYTES = 15_000


def manifest(lake: Path, reader: LogReader, start: int, end: int) -> list[dict[str, Any]]:
    """A batch of the log's bytes, staged."""
    part = LogRange("store:x", reader.broker, reader.log_id, start, end, reader.readable_offset)
    chunks = ((offset, data) for offset, data, _ in reader.read_chunks(start, end, 1 << 30))
    return [row for batch in stage(str(lake), part, chunks) for row in batch.to_pylist()]


def run(lake: Path, reader: LogReader, reported: Callable[[int], None] = lambda offset: None) -> None:
    """A reput from where the lake stands to the log's end."""
    create_tables(str(lake))
    progress = LakeProgress(str(lake))
    start = progress.offsets.get((reader.broker, reader.log_id), reader.min_offset)
    stops = [stop for stop in progress.stops(reader.broker, reader.log_id) if stop > start]
    sink = DeltaCommitSink(str(lake))
    for first, last in itertools.pairwise([start, *stops, reader.readable_offset]):
        cuts = reader.split(first, last, BATCH_BYTES) if first < last else []
        if last in stops:
            cuts = [first, last]
        for begin, end in itertools.pairwise(cuts):
            report = sink.commit(manifest(lake, reader, begin, end))
            assert report is not None
            (offset,) = report.ends.values()
            reported(offset)


class Round:
    """A reput on a disk whose power is cut; `cuts` are what was left and up to where the lake was believed."""

    def __init__(self, folder: Path, reader: LogReader, before: Path, number: int) -> None:
        self.cuts: list[tuple[Path, int]] = []
        self._folder = folder
        self._rng = random.Random(number)
        self._reader = reader
        self._believed = 0
        self._lake = folder / "live" / "lake"
        self._looking = threading.local()
        shutil.copytree(before, folder / "live")
        self._disk = Disk(folder / "live")
        self._disk.on_instant = self._instant
        self._disk.install()
        try:
            run(self._lake, reader, self._believe)
            self._cut()
        finally:
            self._disk.remove()
        shutil.rmtree(folder / "live")

    def _believe(self, offset: int) -> None:
        self._believed = max(self._believed, offset)

    def _instant(self) -> None:
        """The gateway looks, and the power may go."""
        if getattr(self._looking, "now", False):
            return
        self._looking.now = True
        try:
            if self._rng.random() < 0.1:
                self._believe(Lake(str(self._lake)).dispatched_to(self._reader.broker, self._reader.log_id))
            if len(self.cuts) < CUTS_A_ROUND and self._rng.random() < 0.02:
                self._cut()
        finally:
            self._looking.now = False

    def _cut(self) -> None:
        target = self._folder / f"cut-{len(self.cuts)}"
        survives = self._rng.choice((0.0, 0.0, 0.2, 0.5, 0.9, self._rng.random()))
        self._disk.cut(target, random.Random(self._rng.random()), survives)
        self.cuts.append((target, self._believed))


@pytest.fixture
def reader(tmp_path: Path) -> LogReader:
    writer = LogWriter(tmp_path / "store")
    writer.everything()
    writer.close()
    return LogReader(tmp_path / "store")


@pytest.mark.timeout(7200 if EVIDENCE else 900)
def test_what_progress_names_survives(
    tmp_path: Path,
    reader: LogReader,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 3)
    before = tmp_path / "before"
    cuts = 0
    for number in range(ROUNDS):
        if not number % 2:  # every other round goes on with what a cut left
            shutil.rmtree(before, ignore_errors=True)
            before.mkdir()
        done = Round(tmp_path, reader, before, number)
        cuts += len(done.cuts)
        shutil.rmtree(before)
        shutil.copytree(done.cuts[0][0], before)
        for target, believed in done.cuts:
            lake = target / "lake"
            create_tables(str(lake))
            held = LakeProgress(str(lake)).offsets.get((reader.broker, reader.log_id), 0)
            assert held >= believed, "the lake fell behind what was reported"
            run(lake, reader)
            assert_exact(lake, tmp_path / "store")
            shutil.rmtree(target)
    record_property("rounds", ROUNDS)
    record_property("cuts", cuts)
    assert cuts > 2 * ROUNDS


def test_what_sparks_writer_reported_survives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JVM syncs nothing; the sink has the file system synced, and of what came after that nothing survives here."""
    live, store = tmp_path / "live", tmp_path / "store"
    live.mkdir()
    with LogWriter(store) as writer:
        writer.everything()
        writer.everything()
    lake = SparkLake(spark, live, store)
    disk = Disk(live)
    real = local._sync_file_system

    def sync(folder: Path) -> None:
        real(folder)
        disk.sync_all()

    monkeypatch.setattr(local, "_sync_file_system", sync)
    cuts: list[tuple[Path, int]] = []
    believed, cutting = 0, threading.Lock()

    def cut(step: str) -> None:
        with cutting:
            target = tmp_path / f"cut-{len(cuts)}"
            disk.cut(target, random.Random(0), 0.0)
            cuts.append((target, believed))

    disk.install()
    try:
        sink = lake.sink(cut)
        first, second, *_, end = lake.cuts()
        for start, stop in ((first, second), (second, end)):
            sink.commit(lake.manifest(start, stop))
            believed = stop
            cut("reported")
    finally:
        disk.remove()
    assert len(cuts) > 12
    for target, told in cuts:
        held = assert_exact_below_progress(target / "lake", store)
        assert max(held.ends.values(), default=0) >= told, "the lake fell behind what was reported"
    left = SparkLake(spark, cuts[-4][0], store)  # of the second batch, before its progress
    left.sink().commit(left.manifest(left.end(), end))
    assert_exact(left.lake, store)
