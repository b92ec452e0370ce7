"""Every version of Spark that is allowed reads a log to its end: continuously, once, and in a stream of one's own; and answers SQL.

The newest is the one that all other tests run on; here it is in the long form alone, and so is the reput with --once, which differs by
when it ends. So is 4.1, for which nothing of ours is its own: it streams as 4.0 does, and has filters and checkpoints as 4.2.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import written
from store.log_reader import LogReader
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.checks import assert_exact
from tests.support.spark.environments import environment, interpreter
from tests.support.waiting import LIMIT_S

BATCHES = 10 if EVIDENCE else 4
BATCH_BYTES = 1 << 20
RECORDS = BATCHES * BATCH_BYTES // 1200
LONG_LIMIT_S = 2 * LIMIT_S
NEWEST = "4.2"

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of so many batches."""
    folder = written(tmp_path_factory.mktemp("store"), "broker-a", RECORDS)
    assert (BATCHES - 1) * BATCH_BYTES < LogReader(folder).readable_offset <= BATCHES * BATCH_BYTES
    return folder


def reput(version: str, store: Path, lake: Path, *arguments: str) -> list[str]:
    return [
        *(interpreter(version), "-m", "broker_gateway.cli.main", "reput"),
        *(
            "--store",
            str(store),
            "--lake",
            str(lake),
            "--batch-bytes",
            str(BATCH_BYTES),
            "--json",
            *arguments,
        ),
    ]


def test_the_newest_is_what_all_other_tests_run_on() -> None:
    assert importlib.metadata.version("pyspark").startswith(f"{NEWEST}.")


@pytest.mark.parametrize(
    "version", ["4.0", pytest.param("4.1", marks=LONG), pytest.param(NEWEST, marks=LONG)]
)
def test_a_log_of_many_batches_is_read_to_its_end(tmp_path: Path, store: Path, version: str) -> None:
    running = [interpreter(version), "-c", "import pyspark; print(pyspark.__version__)"]
    assert subprocess.check_output(running, text=True, env=environment()).startswith(f"{version}.")

    lake = tmp_path / "continuous"
    assert batches_until_the_end(reput(version, store, lake), tmp_path / "errors") >= BATCHES
    assert assert_exact(lake, store)["messages"] == RECORDS

    reader = [interpreter(version), "-m", "tests.support.spark.reader", str(store), str(lake)]
    read = subprocess.run(
        [*reader, str(tmp_path / "checkpoint")],
        **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True, "timeout": LONG_LIMIT_S},
    )
    assert read.returncode == 0, read.stderr[-3000:]
    found = json.loads(read.stdout.splitlines()[-1])
    first, second = found["streams"]
    assert sorted(first) == sorted(found["lake"])
    assert len(set(first)) == len(first) == RECORDS
    assert second == []
    assert found["sql"] == RECORDS


@LONG
@pytest.mark.parametrize("version", ["4.0", "4.1", NEWEST])
def test_once_is_enough_and_a_command_asks(tmp_path: Path, store: Path, version: str) -> None:
    once = tmp_path / "once"
    done = subprocess.run(
        reput(version, store, once, "--once"),
        **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True, "timeout": LONG_LIMIT_S},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [json.loads(line)["bytes"] for line in done.stdout.splitlines()]
    assert assert_exact(once, store)["messages"] == RECORDS
    assert len(sizes) >= BATCHES
    assert max(sizes) <= BATCH_BYTES

    query = [
        *("sql", "--engine", "spark", "--lake", str(once), "--format", "json"),
        "SELECT count(*) AS messages FROM messages",
    ]
    asked = subprocess.run(
        [interpreter(version), "-m", "broker_gateway.cli.main", *query],
        **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True, "timeout": LONG_LIMIT_S},
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    assert json.loads(asked.stdout) == [{"messages": RECORDS}]


def batches_until_the_end(command: list[str], errors: Path) -> int:
    """Runs a reput until it says that nothing is left, then ends it as a service manager does."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        assert process.stdout is not None
        late = threading.Timer(LONG_LIMIT_S, process.kill)
        late.start()
        try:
            count, left = 0, -1
            for line in process.stdout:
                batch = json.loads(line)
                assert batch["bytes"] <= BATCH_BYTES
                count, left = count + 1, batch["lag_bytes"]
                if left == 0:
                    break
            assert left == 0, f"{count} batches, {left} bytes left: {errors.read_text()[-3000:]}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_LIMIT_S) == 0, errors.read_text()[-3000:]
        finally:
            late.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
    return count
