"""Segments that are due go, or it is said why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from broker_gateway.lake.reader import LakeUnreachableError
from broker_gateway.maintenance.retention import Retention
from lakebroker_testing.broker import InProcessBroker

ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(
        tmp_path,
        mappedFileSizeCommitLog=str(1 << 20),
        deleteWhen=ALWAYS,
        fileReservedTime="0",
        cleanResourceInterval="3600000",
    ) as made:
        made.create_topic("t")
        for _ in range(70):
            made.send("t", bytes(60_000))
        made.flush()
        for path in (made.root / "commitlog").iterdir():
            os.utime(path, (1, 1))
        yield made


def look(process: InProcessBroker) -> tuple[int, list[str]]:
    """How many segments went, and what was said."""
    structlog.reset_defaults()
    with capture_logs() as said:
        gone = process.run(process.broker.retention.run_once())
    return gone, [each["event"] for each in said]


def test_a_disk_that_takes_no_snapshot_is_named(process: InProcessBroker) -> None:
    full = OSError(28, "No space left on device")
    said: list[str] = []
    for _ in range(3):
        for after in range(20):
            process.store.inject("append", full, after=after)
        gone, more = look(process)
        assert gone == 0
        said += more
    blocked = [each for each in said if each.startswith("retention blocked: 4 expired segments kept: ")]
    assert len(blocked) == 1, "once"
    assert "no later snapshot of it is on disk" in blocked[0]
    process.store.heal()
    process.advance(60)
    look(process)
    for _ in range(50):
        process.settle()
    process.flush()
    gone, said = look(process)
    assert gone == 4
    assert "retention resumed" in said


def test_a_lake_that_is_behind_is_named(process: InProcessBroker) -> None:
    class Lake:
        """Of which the broker asks only how far it is."""

        at: int | None = 1000

        def dispatched_to(self, broker: str, log_id: str) -> int:
            if self.at is None:
                raise LakeUnreachableError("no answer")
            return self.at

    lake, broker = Lake(), process.broker
    rules = broker.retention.rules
    broker.retention = Retention(process.store, broker.journal, rules, lake, False, broker.parts.put_off)  # type: ignore[arg-type]
    said: list[str] = []
    for at in (1000, 1000, 2000, None):
        lake.at = at
        said += look(process)[1]
        process.settle()
        process.flush()
    blocked = [each for each in said if each.startswith("retention blocked: 4 expired segments kept: ")]
    assert len(blocked) == 2, "not for each step of the lake"
    assert "the lake has the log up to 1000 only" in blocked[0]
    assert "the lake cannot be read: no answer" in blocked[1]
    lake.at = process.store.max_offset
    assert look(process)[0] == 4
