"""A reput writes a lake while maintenance after maintenance is killed: no row is lost or there twice, for any reader."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.commit.ends import Ends
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact

PIECES = 400 if EVIDENCE else 3
"""Of the log that the reput finds, one after another."""


def started(*arguments: str, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("ab") as output:
        return subprocess.Popen(
            command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )


def end(process: subprocess.Popen[bytes], number: int) -> int:
    if process.poll() is None:
        os.killpg(process.pid, number)
    return process.wait(300)


@pytest.mark.timeout(4 * 3600 if EVIDENCE else 1200)
def test_maintenance_killed_beside_a_reput(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    store, lake, errors = tmp_path / "store", tmp_path / "lake", tmp_path / "errors"
    rng = random.Random(1)
    maintain = ("maintain", "--lake", str(lake), "--target-file-size", "64KiB", "--every", "1s")
    killed = 0
    with LogWriter(store) as writer:
        writer.everything()
        writer.store.request_flush()
        reput = started(
            "reput", "--store", str(store), "--lake", str(lake), "--batch-bytes", "1048576", errors=errors
        )
        try:
            while not held(lake):
                assert reput.poll() is None, errors.read_text()
                time.sleep(0.1)
            for _ in range(PIECES):
                before, process = held(lake), started(*maintain, errors=errors)
                try:
                    until = time.monotonic() + rng.random() * 6  # where it is killed is left to chance
                    while time.monotonic() < until or held(lake) == before:
                        assert reput.poll() is None, errors.read_text()
                        writer.messages(20)
                        writer.store.request_flush()
                        time.sleep(0.1)
                    assert process.poll() is None, errors.read_text()
                finally:
                    killed += end(process, signal.SIGKILL) == -signal.SIGKILL
            while LakeProgress(str(lake)).offsets != log_ends(store):
                assert reput.poll() is None, errors.read_text()
                time.sleep(0.1)
            assert end(reput, signal.SIGTERM) == 0, errors.read_text()
        finally:
            end(reput, signal.SIGKILL)
    assert started(*maintain[:-2], errors=errors).wait(600) == 0, errors.read_text()
    check = ("lake", "check", "--lake", str(lake), "--store", str(store))
    assert started(*check, errors=errors).wait(600) == 0, errors.read_text()
    record_property("killed", killed)
    assert killed == PIECES
    counts = assert_exact(lake, store)
    for name, count in counts.items():
        assert spark.read.format("delta").load(str(lake / name)).count() == count
    operations = [each["operation"] for each in DeltaTable(str(lake / "messages")).history()]
    assert "OPTIMIZE" in operations[:-1]


def log_ends(store: Path) -> Ends:
    """How far the log can be read."""
    reader = LogReader(store)
    try:
        return {(reader.broker, reader.log_id): reader.readable_offset}
    finally:
        reader.close()


def held(lake: Path) -> int:
    """How many batches the lake has."""
    if not (lake / "reput_progress" / "_delta_log").exists():
        return 0
    return DeltaTable(str(lake / "reput_progress")).transaction_version("lakebroker-batch") or 0
