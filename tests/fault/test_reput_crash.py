"""The reput's driver, its JVM or both killed at every step of a commit: a restart leaves every table exact.

`make test` has one real death of a driver. That of a JVM is in `test_reput_jvm.py`; a death at every call of a commit, without Spark,
in `tests/unit/structured_streaming/commit/test_commit_crashes.py`; one at every step of Spark's writer in `test_lake_power_cut.py`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.sink import DURABLE, NUMBERED, SET_BACK, STAGED, STARTED
from structured_streaming.commit.typed_tables import declare
from structured_streaming.lake import create_tables
from structured_streaming.maintenance.check import check_lake
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES, QUARANTINE, REPUT_PROGRESS
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.checks import assert_exact, assert_exact_below_progress, rows
from tests.support.lakes.streamed import stream
from tests.support.spark.reput_runs import reput_once

SCHEMA = {"required": ["id"], "properties": {"id": {"type": "integer"}}}
ORDERS = Declaration("orders", "typed_orders", JSON, (Schema(1, json.dumps(SCHEMA)),))
_TABLES = [*(table.name for table in DATA_TABLES), ORDERS.table, REPUT_PROGRESS.name]
STEPS = {
    "delta": [STAGED, *_TABLES],
    "spark": [NUMBERED, STARTED, SET_BACK, STAGED, DURABLE, *_TABLES],
}
ROUNDS = 50
_BATCH_BYTES = 150_000
"""More than one round writes, so one batch takes a round's records and no backlog builds up."""


class Death(NamedTuple):
    """Who is killed, how long after which step."""

    step: str
    who: str
    delay_s: float = 0


def deaths_of(sink: str) -> list[Death]:
    """Driver, JVM and both at every step, then between steps; the short form has one, right before the commit to the typed table."""
    if not EVIDENCE:
        return [Death(QUARANTINE.name, "driver")]
    rng = random.Random(sink)
    steps = STEPS[sink]
    at_steps = [Death(step, who) for step in steps for who in ("driver", "jvm", "both")]
    rng.shuffle(at_steps)
    between = [
        Death(rng.choice(steps), rng.choice(("driver", "jvm", "both")), round(rng.uniform(0, 0.5), 3))
        for _ in range(ROUNDS - len(at_steps))
    ]
    return at_steps + between


def write(store: Path, orders: int) -> int:
    """Every kind of record once more, and messages of the typed topic, of which every other one is bad; how many these are by now."""
    with LogWriter(store) as writer:
        writer.everything()
        for number in range(orders, orders + 20):
            writer.record("orders", b'{"id":%d}' % number if number % 2 else b"bad", UNIQ_KEY=f"O{number}")
        writer.raw(b"no record at all".ljust(500, b"?"))
    return orders + 20


def start(
    store: Path, lake: Path | str, sink: str, step: str, max_bytes: int, *more: str, **environment: str
) -> subprocess.Popen[str]:
    script = [
        sys.executable,
        "-m",
        "tests.support.spark.crashing_reput",
        str(store),
        str(lake),
        sink,
        step,
        str(max_bytes),
    ]
    return subprocess.Popen(
        [*script, *more],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.timeout(7200 if EVIDENCE else 900)
@pytest.mark.parametrize("sink", ["delta", pytest.param("spark", marks=LONG)])
def test_killed_at_every_step_of_a_commit(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sink: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Each round takes up what the one before left; between them readers find what was reported, exact. A JVM that is
    killed alone is started again."""
    store, lake = tmp_path / "store", create_tables(str(tmp_path / "lake")).path
    declare(LocalFolder(lake), ORDERS)
    reported = unfinished = too_late = orders = 0
    deaths = deaths_of(sink)
    for death in deaths:
        orders = write(store, orders)
        process = start(store, lake, sink, death.step, _BATCH_BYTES, "1", death.who, str(death.delay_s))
        assert process.stdout is not None
        told = [line.split() for line in process.stdout]
        status = process.wait()
        end(process)
        late = death.delay_s and not status  # everything was read before its time came
        assert late or status == (0 if death.who == "jvm" else -signal.SIGKILL), (
            f"{death} ended with {status}"
        )
        too_late += bool(late)
        reported = max([reported, *(int(offset) for _, offset in told)])
        held = assert_exact_below_progress(lake, store)
        assert max(held.ends.values(), default=0) >= reported, (
            f"{death}: the lake fell behind what was reported"
        )
        unfinished += held.beyond > 0
    orders = write(store, orders)
    if sink == "spark":
        reput_once(request.getfixturevalue("spark"), lake, store, sink=sink)
    else:
        stream(store, lake, _BATCH_BYTES, (ORDERS,))
    assert_exact(lake, store)
    typed = rows(lake, ORDERS.table).to_pylist()
    assert len({row["physical_offset"] for row in typed}) == len(typed) == orders
    assert sorted(row["id"] for row in typed if row["reason"] is None) == list(range(1, orders, 2))
    assert [problem for found in check_lake(str(lake), [str(store)]) for problem in found.problems] == []
    assert unfinished > len(deaths) // 10
    assert too_late < len(deaths) // 10 + 1
    record_property("rounds", len(deaths))
    record_property("rounds that ended before their death", too_late)
    record_property("steps", sorted({f"{death.who} after {death.step}" for death in deaths}))
    record_property("rounds that left tables ahead of the progress", unfinished)


LATE = """
import pathlib, sys, time

late = pathlib.Path(__file__).with_name("late")
if late.exists() and "python_streaming_source_runner" in " ".join(sys.orig_argv):
    late.unlink()
    time.sleep(15)
"""
"""Makes the first Python process that Spark starts to plan a batch later than the 10 s that Spark waits for it."""


@LONG
def test_a_python_worker_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    """Spark's 10 s are no option; what the reput does then is in tests/unit/structured_streaming/test_reput.py."""
    store, lake, slow = tmp_path / "store", tmp_path / "lake", tmp_path / "slow"
    write(store, 0)
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
