"""A soak of all message types: a gateway that is killed again and again, a streaming reput, and a ledger that equals the lake.

In the short form the lake is made when the traffic is over, without Spark.
LAKEBROKER_SOAK_SEED repeats the draws of a run (0: others each time, as in the long form), LAKEBROKER_SOAK_SECONDS sets how long traffic goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from lakebroker_testing.ports import free_ports
from store.errors import OffsetOutOfRangeError
from store.log_reader import LogReader
from structured_streaming.maintenance.check import check_lake
from tests.suite.evidence import EVIDENCE
from tests.suite.patience import FACTOR
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.streamed import stream
from tests.support.soak.traffic import OPTIONS, Traffic
from tests.support.soak.verdict import View, differences, joined, of_lake, of_log, outstanding, told
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("LAKEBROKER_SOAK_SECONDS", "600" if EVIDENCE else "3"))
SEED = int(os.environ.get("LAKEBROKER_SOAK_SEED", "0" if EVIDENCE else "6")) or random.randrange(1, 1 << 32)
SEGMENTS = ("stay", "go") if EVIDENCE else ("stay",)
GATEWAY_TELLS = {"stay": "log recovered", "go": "segments deleted"}
"""What its log is to say in the course of a run."""
AT_ONCE = {
    "fileReservedTime": "0",
    "deleteWhen": ";".join(map(str, range(24))),
    "cleanResourceInterval": "1000",
}
REPUT_DEATHS = 2 if EVIDENCE else 0
BETWEEN_DEATHS_S = (4, 9) if EVIDENCE else (1, 2)
_DRAIN_S = 300.0 * FACTOR
WANTED = (
    "acknowledged",
    "given back",
    "forwarded as dead letters",
    "recalled",
    "committed",
    "rolled back",
    "committed when asked",
    "rolled back when asked",
    "calls without an answer",
)
"""Counts of the ledger."""


class ReputAfterwards:
    """No process: the lake is made at the end."""

    deaths = 0

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"

    def supervise(self) -> None:
        """Nothing runs."""

    def die_if_due(self, _elapsed_s: float) -> None:
        """Nothing runs."""

    wait_for_a_batch = stop = supervise

    def catch_up(self, store: Path) -> None:
        stream(store, self.lake, 1 << 20)


class Reputs:
    """The streaming reput, and those that come after it when it is killed."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self._folder = folder
        self._gateway = gateway
        self._started = 0
        self.lake = folder / "lake"
        self.deaths = 0
        self.now = self._begun()

    def _begun(self) -> Reput:
        log = self._folder / f"reput-{self._started}.log"
        self._started += 1
        return Reput(self.lake, log, "--brokers", self._gateway.address, "--sink", "delta")

    def die_if_due(self, elapsed_s: float) -> None:
        due_s = (self.deaths + 1) * SECONDS / (REPUT_DEATHS + 1)
        if self.deaths == REPUT_DEATHS or elapsed_s < due_s or not self.now.batches():
            return
        os.killpg(self.now.process.pid, signal.SIGKILL)
        self.now.process.wait()
        self.deaths += 1
        self.now = self._begun()

    def supervise(self) -> None:
        """One that met no gateway when it was to begin is begun again; it ends for no other reason."""
        if self.now.process.poll() is None:
            return
        why = self.now.log.read_text()
        assert "no broker at" in why, why[-3000:]
        assert not self.now.output.read_text(), why[-3000:]
        self.now.stop()
        self.now = self._begun()

    def wait_for_a_batch(self) -> None:
        self.supervise()
        wait_until(self.now.batches, self.now.log.read_text)

    def stop(self) -> None:
        self.now.stop()

    def catch_up(self, store: Path) -> None:
        done = subprocess.run(
            command("reput", "--store", str(store), "--lake", str(self.lake), "--sink", "delta", "--once"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(max(900, SECONDS * 3))
@pytest.mark.parametrize("segments", SEGMENTS)
def test_the_ledger_equals_the_lake(
    tmp_path: Path, segments: str, record_property: Callable[[str, object], None]
) -> None:
    """`segments` that go as soon as the lake has them leave timers, halves and what is in flight to be carried along."""
    print(f"LAKEBROKER_SOAK_SEED={SEED} LAKEBROKER_SOAK_SECONDS={SECONDS:g}")
    rng = random.Random(SEED)
    options = {**OPTIONS, "grpcServerPort": str(free_ports(1)[0])}
    if segments == "go":
        options |= {**AT_ONCE, "lakeLocation": str(tmp_path / "lake")}
    with Gateway(tmp_path, **options) as gateway:
        traffic = Traffic(gateway.address, SEED)
        traffic.prepare()
        reputs = Reputs(tmp_path, gateway) if EVIDENCE else ReputAfterwards(tmp_path)
        with running(traffic, reputs):
            traffic.begin()
            deaths = crash(gateway, traffic, reputs, rng, GATEWAY_TELLS[segments])
            traffic.stop_sending()
            drain(gateway, traffic, reputs.lake)
            reputs.wait_for_a_batch()
            traffic.stop()
        assert gateway.terminate() == 0
    assert not traffic.defects, traffic.defects
    reputs.catch_up(gateway.store)
    if segments == "stay":
        assert_exact(reputs.lake, gateway.store)
    found, ledger = of_lake(reputs.lake), traffic.ledger
    wrong = differences(ledger, found)
    assert not wrong, told(wrong, ledger, everything(gateway.store, reputs.lake), found)
    checked = check_lake(str(reputs.lake), [str(gateway.store)])
    assert [each.problems for each in checked if each.problems] == []
    record_property("seed", SEED)
    record_property("seconds of traffic", SECONDS)
    record_property("deaths of the gateway", deaths)
    record_property("deaths of the reput", reputs.deaths)
    for what, count in sorted(ledger.counts.items()):
        record_property(what, count)
    record_property("dead letters", sum(row["topic"].startswith("%DLQ%") for row in found.messages))
    record_property(
        "transactions given up", sum(row["topic"] == "TRANS_CHECK_MAX_TIME_TOPIC" for row in found.messages)
    )


@contextlib.contextmanager
def running(traffic: Traffic, reputs: Reputs | ReputAfterwards) -> Iterator[None]:
    """Ends all of it, however the block ends."""
    try:
        yield
    finally:
        try:
            traffic.stop()
        finally:
            reputs.stop()


def crash(
    gateway: Gateway, traffic: Traffic, reputs: Reputs | ReputAfterwards, rng: random.Random, told: str
) -> int:
    """Kills the gateway every some seconds while there is traffic, and the reput at times; how often the gateway died.

    On a busy machine that goes on until all of `WANTED` happened, and the gateway's log has what is to be `told`: it lives longer each
    time, for what it cannot come to in one life.
    """
    began = time.monotonic()
    deaths = 0
    while True:
        elapsed = time.monotonic() - began
        missing = [what for what in WANTED if not traffic.ledger.counts[what]]
        missing += ["two deaths of the gateway"] * (deaths < 2)
        missing += ["the deaths of the reput"] * (reputs.deaths < REPUT_DEATHS)
        missing += [told] * (told not in gateway.log.read_text())
        if elapsed > SECONDS and not missing:
            return deaths
        assert elapsed < SECONDS + _DRAIN_S, f"{missing} did not happen: {traffic.ledger.counts}"
        overdue = max(0.0, elapsed - SECONDS)
        time.sleep(rng.uniform(*BETWEEN_DEATHS_S) * (1 + overdue / 10))
        assert not traffic.defects, traffic.defects
        traffic.up.clear()
        gateway.kill()
        deaths += 1
        gateway.start()
        traffic.up.set()
        reputs.supervise()
        reputs.die_if_due(elapsed)


def drain(gateway: Gateway, traffic: Traffic, lake: Path) -> None:
    """Until nothing is due any more, every transaction has ended, and every group has settled every message."""
    deadline = time.monotonic() + _DRAIN_S
    while left := outstanding(view := everything(gateway.store, lake)):
        assert not traffic.defects, traffic.defects
        assert time.monotonic() < deadline, told(left, traffic.ledger, view)
        time.sleep(1)


def everything(store: Path, lake: Path) -> View:
    """What the log has or, where its segments went, the lake; the log is read first, for they go once they are there."""
    while True:
        reader = LogReader(store)
        try:
            found = of_log(reader)
            return found if not reader.min_offset else joined(found, of_lake(lake))
        except (FileNotFoundError, OffsetOutOfRangeError):
            continue  # a segment went meanwhile
        finally:
            reader.close()
