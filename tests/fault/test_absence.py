"""A reput whose brokers are away for longer than it tries again after other errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.real_rocketmq import free_ports
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.reput_query import RETRIES
from tests.support.lakes.checks import assert_exact
from tests.support.logs.written import written
from tests.support.machines.children import children

COUNT = 300
PATIENCE_S = 240.0
WAITS = "the query starts again when that is over"


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.1)


def planner(process: int) -> int | None:
    """The Python process in which a reput's batches are planned."""
    for each in children(process):
        if b"python_streaming_source_runner" in Path(f"/proc/{each}/cmdline").read_bytes():
            return each
        if (found := planner(each)) is not None:
            return found
    return None


@pytest.mark.timeout(600)
def test_brokers_are_waited_for_as_long_as_it_takes(tmp_path: Path) -> None:
    """The query ends too meanwhile, so that it is to start while nobody answers."""
    lake, log, port = tmp_path / "lake", tmp_path / "reput.log", free_ports(1)[0]
    store = written(tmp_path / "broker" / "store", "broker-a", COUNT)
    gateway = Gateway(tmp_path / "broker", brokerName="broker-a", grpcServerPort=str(port))
    gateway.start()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.spark.impatient_reput", "reput", "--json"),
                *("--brokers", gateway.address, "--lake", str(lake)),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )

    def waits(times: int) -> Callable[[], bool]:
        before = log.read_text().count(WAITS)
        return lambda: log.read_text().count(WAITS) >= before + times

    def the_query_ends() -> None:
        running = planner(process.pid)
        assert running is not None
        os.kill(running, signal.SIGKILL)

    def is_up_to_date() -> bool:
        return list(LakeProgress(str(lake)).offsets.values()) == [end(store)]

    try:
        wait_until(is_up_to_date, process, log)
        gateway.kill()
        written(store, "broker-a", COUNT)
        the_query_ends()
        wait_until(waits(RETRIES + 2), process, log)
        gateway.start()
        wait_until(is_up_to_date, process, log)
        gateway.kill()
        the_query_ends()
        wait_until(waits(1), process, log)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()[-3000:]
    finally:
        gateway.__exit__()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = log.read_text()
    assert "Traceback" not in told
    assert f"no broker at {gateway.address}: connection refused; {WAITS}" in told
    assert told.splitlines()[-1].startswith(f"lakebroker: stopped; the lake {lake} is at ")
    assert assert_exact(lake, store)["messages"] == 2 * COUNT


def end(store: Path) -> int:
    """Where the log ends now."""
    reader = LogReader(store)
    try:
        return reader.readable_offset
    finally:
        reader.close()
