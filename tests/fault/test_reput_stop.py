"""How a reput ends: a signal to all of its processes, or a broker that never answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT, command
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.logs.written import written
from tests.support.machines.children import children
from tests.support.peers.relay import Relay
from tests.support.spark.reput_runs import reput_once

PATIENCE_S = 200.0

pytestmark = pytest.mark.timeout(600)


def reput(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """A reput in a process group of its own, whose temporary files are in `tmp`."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        command("reput", *arguments, "--lake", str(tmp_path / "lake"), "--json"),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it wrote to its standard error, once it ended."""
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        raise AssertionError(f"it did not end: {errors[-3000:]}") from None
    return errors


def jvm_of(process: subprocess.Popen[str]) -> int:
    (jvm,) = [pid for pid in children(process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    return jvm


def assert_nothing_is_left(tmp_path: Path) -> None:
    left = [path.name for path in (tmp_path / "tmp").iterdir() if "hsperf" not in path.name]
    assert not left, f"temporary files are left: {left}"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=LONG)])
def test_a_signal_to_the_process_group_ends_it_cleanly(
    spark: SparkSession, tmp_path: Path, number: signal.Signals
) -> None:
    store = written(tmp_path / "store", "broker-a", 8000)
    process = reput(tmp_path, "--store", str(store), "--batch-bytes", str(1 << 20))
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["lag_bytes"] > 0
    os.killpg(process.pid, number)
    errors = ended(process)
    assert process.returncode == 0, errors[-3000:]
    assert "Traceback" not in errors
    assert "py4j" not in errors
    told = errors.splitlines()
    assert told[:2] == ["lakebroker: starting Spark ...", f"lakebroker: reading 1 log from {store}"]
    assert told[-1].startswith(f"lakebroker: stopped; the lake {tmp_path / 'lake'} is at ")
    assert_nothing_is_left(tmp_path)
    assert reput_once(spark, tmp_path / "lake", store) > 0
    assert assert_exact(tmp_path / "lake", store)["messages"] == 8000


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=LONG)])
def test_a_run_that_was_to_end_by_itself_says_what_it_reached(tmp_path: Path, number: signal.Signals) -> None:
    store = written(tmp_path / "store", "broker-a", 8000)
    process = reput(tmp_path, "--store", str(store), "--batch-bytes", str(1 << 20), "--once")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lag_bytes"] > 0
    process.send_signal(number)
    errors = ended(process)
    assert process.returncode == 128 + number, errors[-3000:]
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    reached = f"stopped by {number.name} before everything was read: the lake {tmp_path / 'lake'} is at "
    assert last.startswith(f"lakebroker: {reached}")
    assert "broker-a" in last
    assert_nothing_is_left(tmp_path)


def test_a_run_that_is_stopped_while_spark_starts_ends_with_it(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 1)
    process = reput(tmp_path, "--store", str(store), "--once")
    assert process.stderr is not None
    assert process.stderr.readline() == "lakebroker: starting Spark ...\n"
    process.send_signal(signal.SIGINT)
    errors = ended(process)
    assert process.returncode == 130, errors[-3000:]
    assert errors.startswith("lakebroker: stopped by SIGINT before everything was read: the lake ")
    assert errors.endswith("is at the beginning; run it again to go on\n")
    assert len(errors.splitlines()) == 1, errors
    assert_nothing_is_left(tmp_path)


def test_a_second_signal_ends_a_run_whose_jvm_hangs(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 100)
    process = reput(tmp_path, "--store", str(store))
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lag_bytes"] == 0
    jvm = jvm_of(process)
    os.kill(jvm, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(signal.SIGTERM)
    errors = ended(process)
    assert process.returncode == 0, errors[-3000:]
    assert errors.splitlines()[-1].startswith(f"lakebroker: stopped; the lake {tmp_path / 'lake'} is at ")
    assert "Traceback" not in errors
    assert not Path(f"/proc/{jvm}").exists()


def test_a_run_that_could_not_read_all_says_so(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 500)
    with Relay("", silent=True) as silent:
        process = reput(tmp_path, "--store", str(store), "--brokers", silent.address, "--once")
        errors = ended(process)
    assert process.returncode == 1
    assert silent.address in errors
    assert "Traceback" not in errors
    assert assert_exact(tmp_path / "lake", store)["messages"] == 500
    assert_nothing_is_left(tmp_path)


@LONG
@pytest.mark.parametrize("once", [True, False])
def test_a_jvm_that_dies_is_started_again(tmp_path: Path, once: bool) -> None:
    store = written(tmp_path / "store", "broker-a", 8000)
    process = reput(tmp_path, "--store", str(store), "--batch-bytes", str(1 << 20), *["--once"][: int(once)])
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lag_bytes"] > 0
    jvm = jvm_of(process)
    os.kill(jvm, signal.SIGKILL)
    while json.loads(process.stdout.readline())["lag_bytes"]:
        pass
    if not once:
        process.send_signal(signal.SIGTERM)
    errors = ended(process)
    assert process.returncode == 0, errors[-3000:]
    told = [line.removeprefix("lakebroker: ") for line in errors.splitlines()]
    assert told[:-1] == [
        "starting Spark ...",
        f"reading 1 log from {store}",
        "Spark's JVM was killed by SIGKILL (by the system, where memory is short); what was committed stands; Spark starts "
        "again in 2 s",
        "starting Spark ...",
        f"reading 1 log from {store}",
        *([] if once else ["the lake is up to date; waiting for more"]),
    ]
    assert_nothing_is_left(tmp_path)
    assert assert_exact(tmp_path / "lake", store)["messages"] == 8000
