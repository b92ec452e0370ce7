"""The reput's driver killed between two tables, its JVM killed in mid-batch: a restart leaves every table exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from tests.children import children
from tests.lake_checks import assert_exact
from tests.reput_runs import reput_once


def written(folder: Path) -> Path:
    writer = LogWriter(folder)
    for _ in range(4):
        writer.everything()
    writer.close()
    return folder


def start(store: Path, lake: Path, fatal: str, max_bytes: int) -> subprocess.Popen[str]:
    script = [
        sys.executable,
        "-m",
        "tests.fault.crashing_reput",
        str(store),
        str(lake),
        fatal,
        str(max_bytes),
    ]
    return subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("fatal", ["consume_queue", "messages"])
def test_driver_killed_between_two_table_commits(spark: SparkSession, tmp_path: Path, fatal: str) -> None:
    store, lake = written(tmp_path / "store"), tmp_path / "lake"
    process = start(store, lake, fatal, 60_000)
    assert process.wait(1200) == -signal.SIGKILL
    end(process)
    with pytest.raises(AssertionError):
        assert_exact(lake, store)
    assert reput_once(spark, lake, store) > 0
    assert_exact(lake, store)


def test_jvm_killed_in_mid_batch(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = written(tmp_path / "store"), tmp_path / "lake"
    process = start(store, lake, "", 30_000)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1"
    java = [pid for pid in children(process.pid) if "java" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert java, "the driver has no JVM"
    for pid in java:
        os.kill(pid, signal.SIGKILL)
    end(process)
    assert reput_once(spark, lake, store) > 0
    assert_exact(lake, store)


LATE = """
import pathlib, sys, time

late = pathlib.Path(__file__).with_name("late")
if late.exists() and "python_streaming_source_runner" in " ".join(sys.orig_argv):
    late.unlink()
    time.sleep(15)
"""
"""Makes the first Python process that Spark starts to plan a batch later than the 10 s that Spark waits for it."""


def test_a_python_worker_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    store, lake, slow = written(tmp_path / "store"), tmp_path / "lake", tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(LATE)
    (slow / "late").touch()
    done = subprocess.run(
        command("reput", "--store", str(store), "--lake", str(lake), "--once"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(slow)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (slow / "late").exists()
    assert "did not start within 10 s" in done.stderr
    assert "the query starts again in 2 s" in done.stderr
    assert_exact(lake, store)
