"""A soak of all message types: a gateway that is killed again and again, a streaming reput, and a ledger that equals the lake.

LAKEBROKER_SOAK_SEED repeats the draws of a run, LAKEBROKER_SOAK_SECONDS sets how long traffic goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from lakebroker_testing.real_rocketmq import free_ports
from tests.fault.conftest import EVIDENCE
from tests.fault.soak_traffic import OPTIONS, Traffic
from tests.fault.soak_verdict import differences, of_lake, of_log, outstanding, told
from tests.lake_checks import assert_exact

SECONDS = float(os.environ.get("LAKEBROKER_SOAK_SECONDS", "600" if EVIDENCE else "30"))
SEED = int(os.environ.get("LAKEBROKER_SOAK_SEED", "0")) or random.randrange(1, 1 << 32)
REPUT_DEATHS = 2 if EVIDENCE else 0
_DRAIN_S = 300.0


class Reputs:
    """The streaming reput, and those that come after it when it is killed."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self._folder = folder
        self._gateway = gateway
        self.lake = folder / "lake"
        self.deaths = 0
        self.now = self._started()

    def _started(self) -> Reput:
        log = self._folder / f"reput-{self.deaths}.log"
        return Reput(self.lake, log, "--brokers", self._gateway.address, "--sink", "delta")

    def die(self) -> None:
        os.killpg(self.now.process.pid, signal.SIGKILL)
        self.now.process.wait()
        self.deaths += 1
        self.now = self._started()

    def wait_for_a_batch(self) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while not self.now.batches():
            assert time.monotonic() < deadline, f"no batch came: {self.now.log.read_text()[-3000:]}"
            time.sleep(0.2)


@pytest.mark.timeout(max(600, SECONDS * 3))
def test_the_ledger_equals_the_lake(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    print(f"LAKEBROKER_SOAK_SEED={SEED} LAKEBROKER_SOAK_SECONDS={SECONDS:g}")
    rng = random.Random(SEED)
    options = {**OPTIONS, "grpcServerPort": str(free_ports(1)[0])}
    with Gateway(tmp_path, patient=True, **options) as gateway:
        traffic = Traffic(gateway.address, SEED)
        traffic.prepare()
        reputs = Reputs(tmp_path, gateway)
        with running(traffic, reputs):
            traffic.begin()
            deaths = crash(gateway, traffic, reputs, rng)
            traffic.stop_sending()
            drain(gateway, traffic)
            reputs.wait_for_a_batch()
            traffic.stop()
        assert gateway.terminate() == 0
    assert not traffic.defects, traffic.defects
    catch_up(reputs.lake, gateway.store)
    assert_exact(reputs.lake, gateway.store)
    found, ledger = of_lake(reputs.lake), traffic.ledger
    wrong = differences(ledger, found)
    assert not wrong, told(wrong, ledger, of_log(gateway.store), found)
    assert lake_check(reputs.lake, gateway.store) == []
    assert_everything_happened(traffic, deaths)
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
def running(traffic: Traffic, reputs: Reputs) -> Iterator[None]:
    """Ends all of it, however the block ends."""
    try:
        yield
    finally:
        try:
            traffic.stop()
        finally:
            reputs.now.stop()


def crash(gateway: Gateway, traffic: Traffic, reputs: Reputs, rng: random.Random) -> int:
    """Kills the gateway every some seconds while there is traffic, and the reput at times; how often the gateway died."""
    began = time.monotonic()
    deaths = 0
    while (elapsed := time.monotonic() - began) < SECONDS:
        time.sleep(min(rng.uniform(4, 9), max(SECONDS - elapsed, 0)))
        if elapsed > (reputs.deaths + 1) * SECONDS / (REPUT_DEATHS + 1):
            reputs.die()
        assert not traffic.defects, traffic.defects
        traffic.up.clear()
        gateway.kill()
        deaths += 1
        gateway.start()
        traffic.up.set()
    return deaths


def drain(gateway: Gateway, traffic: Traffic) -> None:
    """Until nothing is due any more, every transaction has ended, and every group has settled every message."""
    deadline = time.monotonic() + _DRAIN_S
    while left := outstanding(view := of_log(gateway.store)):
        assert not traffic.defects, traffic.defects
        assert time.monotonic() < deadline, told(left, traffic.ledger, view)
        time.sleep(1)


def catch_up(lake: Path, store: Path) -> None:
    done = subprocess.run(
        command("reput", "--store", str(store), "--lake", str(lake), "--sink", "delta", "--once"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def lake_check(lake: Path, store: Path) -> list[object]:
    """The problems that `lakebroker lake check` finds."""
    done = subprocess.run(
        command("lake", "check", "--lake", str(lake), "--store", str(store), "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    answer = json.loads(done.stdout)
    found = [row for row in answer["checked"] if row["problems"]]
    assert bool(done.returncode) == bool(answer["problems"]) == bool(found), done.stderr
    return found


def assert_everything_happened(traffic: Traffic, deaths: int) -> None:
    """The run was worth it."""
    counts = traffic.ledger.counts
    assert deaths >= 2
    assert counts["answered"] > 10 * SECONDS, counts
    for what in (
        "acknowledged",
        "given back",
        "forwarded as dead letters",
        "recalled",
        "committed",
        "rolled back",
        "committed when asked",
        "rolled back when asked",
        "calls without an answer",
    ):
        assert counts[what], f"nothing was {what}: {counts}"
