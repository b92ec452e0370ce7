"""A reput and its JVM as processes: one that dies or hangs, signals to one or to all of them, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lakebroker_testing.logs import written
from lakebroker_testing.prestarted import start
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.streamed import stream
from tests.support.machines.processes import jvm_below
from tests.support.waiting import LIMIT_S, wait_until


class Running:
    """A reput in a process group of its own, whose temporary files are in `tmp`, and its standard error in `errors`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        reading, writing = os.pipe()
        with (folder / "errors").open("wb") as errors, os.fdopen(writing, "wb") as output:
            self.process = start(
                *("reput", *arguments, "--lake", str(folder / "lake"), "--json"),
                stdout=output,
                stderr=errors,
                env=os.environ | {"TMPDIR": str(temporary)},
                start_new_session=True,
            )
        self._reports = os.fdopen(reading)

    def lag(self) -> int:
        """What its next batch leaves to read, bytes."""
        return int(json.loads(self._reports.readline())["lag_bytes"])

    def jvm(self) -> int:
        return jvm_below(self.process.pid)

    def ended(self) -> tuple[int, list[str]]:
        """Waits for its end; its exit status, and the lines that it printed."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"it did not end: {told(self.folder)}") from None
        finally:
            self._reports.close()
        lines = told(self.folder)
        assert not [line for line in lines if "Traceback" in line or "py4j" in line], "\n".join(lines)
        return status, lines


def told(tmp_path: Path) -> list[str]:
    """The lines of its standard error; not that the host is too busy for Spark's patience."""
    lines = [line.removeprefix("lakebroker: ") for line in (tmp_path / "errors").read_text().splitlines()]
    return [line for line in lines if "did not start within 10 s" not in line]


def wait_until_told(tmp_path: Path, line: str, times: int = 1) -> None:
    wait_until(lambda: told(tmp_path).count(line) == times, lambda: told(tmp_path))


def assert_nothing_is_left(tmp_path: Path) -> None:
    left = [path.name for path in (tmp_path / "tmp").iterdir() if "hsperf" not in path.name]
    assert not left, f"temporary files are left: {left}"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=LONG)])
def test_a_jvm_that_dies_is_started_again_and_a_signal_to_the_process_group_ends_it_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 8000), tmp_path / "lake"
    running = Running(tmp_path, "--store", str(store), "--batch-bytes", str(1 << 20))
    assert running.lag() > 0
    os.kill(running.jvm(), signal.SIGKILL)
    wait_until_told(tmp_path, f"reading 1 log from {store}", times=2)
    os.killpg(running.process.pid, number)
    status, (*lines, last) = running.ended()
    assert status == 0, lines
    assert lines == [
        "starting Spark ...",
        f"reading 1 log from {store}",
        "Spark's JVM was killed by SIGKILL (by the system, where memory is short); what was committed stands; Spark starts "
        "again in 2 s",
        "starting Spark ...",
        f"reading 1 log from {store}",
    ]
    assert last.startswith(f"stopped; the lake {lake} is at ")
    assert_nothing_is_left(tmp_path)
    stream(store, lake, 1 << 30)
    assert assert_exact(lake, store)["messages"] == 8000


@LONG
def test_a_run_that_ends_by_itself_goes_on_when_its_jvm_died(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 8000)
    running = Running(tmp_path, "--store", str(store), "--batch-bytes", str(1 << 20), "--once")
    assert running.lag() > 0
    os.kill(running.jvm(), signal.SIGKILL)
    while running.lag():
        pass
    status, lines = running.ended()
    assert (status, lines.count("starting Spark ...")) == (0, 2), lines
    assert_nothing_is_left(tmp_path)
    assert assert_exact(tmp_path / "lake", store)["messages"] == 8000


@pytest.mark.parametrize(
    "options",
    [
        # the JVM waits for a debugger before it does anything, so that the start lasts until it is stopped
        "-agentlib:jdwp=transport=dt_socket,server=y,suspend=y,address=127.0.0.1:0",
        pytest.param("", marks=LONG),  # on a very busy machine it may have started before it is stopped
    ],
    ids=["suspended", "starting"],
)
def test_a_run_that_is_stopped_while_spark_starts_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)
    store = written(tmp_path / "store", "broker-a", 1)
    running = Running(tmp_path, "--store", str(store), "--once")
    wait_until_told(tmp_path, "starting Spark ...")
    running.process.send_signal(signal.SIGINT)
    status, (_, last) = running.ended()
    assert status == 130, last
    assert last.startswith("stopped by SIGINT before everything was read: the lake ")
    assert last.endswith("is at the beginning; run it again to go on")
    assert_nothing_is_left(tmp_path)


@LONG
def test_a_second_signal_ends_a_run_whose_jvm_hangs(tmp_path: Path) -> None:
    """In short, a process that is no JVM hangs: tests/unit/structured_streaming/test_stopping.py."""
    store = written(tmp_path / "store", "broker-a", 100)
    running = Running(tmp_path, "--store", str(store))
    assert running.lag() == 0
    jvm = running.jvm()
    os.kill(jvm, signal.SIGSTOP)
    running.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(3)
    running.process.send_signal(signal.SIGTERM)
    status, (*_, last) = running.ended()
    assert status == 0, last
    assert last.startswith(f"stopped; the lake {tmp_path / 'lake'} is at ")
    assert not Path(f"/proc/{jvm}").exists()
