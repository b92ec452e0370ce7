"""A lake grows while maintenance with an Iceberg mirror is killed: no row is lost or there twice, and Iceberg's clients read a whole
version at any time.

What a death at each single call leaves is shown in process (tests/unit/structured_streaming/maintenance, iceberg).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from lakebroker_testing.prestarted import Process, start
from structured_streaming.maintenance.check import check_lake
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.iceberg_readers import assert_mirrored, opened
from tests.support.lakes.maintained import reput
from tests.support.waiting import wait_until

ROUNDS = 100 if EVIDENCE else 1
SEED = random.randrange(1 << 32)
SMALL = ("--target-file-size", "64KiB")


class GrowingLake:
    """A lake of a log that goes on."""

    def __init__(self, folder: Path, writer: LogWriter) -> None:
        self.store, self.lake, self.errors = folder / "store", folder / "lake", folder / "errors"
        self._writer = writer
        writer.everything()
        self.grow()

    def grow(self) -> None:
        """A batch more."""
        self._writer.messages(5)
        self._writer.store.flush()
        reput(self.store, str(self.lake))

    def maintenance(self, shown: Path | None = None) -> Process:
        """That goes on until it is ended, and prints a line for each table of a round to the file `shown`."""
        words = ("maintain", "--lake", str(self.lake), "--iceberg", *SMALL, "--every", "1s", "--json")
        with self.errors.open("ab") as errors, (shown or Path(os.devnull)).open("ab") as output:
            return start(*words, stdout=output, stderr=errors, start_new_session=True)

    def grow_until(self, reached: Callable[[], bool], *processes: Process) -> None:
        """A batch after the other while all processes go on."""

        def grown() -> bool:
            assert all(process.poll() is None for process in processes), self.errors.read_text()
            self.grow()
            return reached()

        wait_until(grown, lambda: f"{self.snapshots()} snapshots came: {self.errors.read_text()}")

    def snapshots(self) -> int:
        """How many the mirror of messages has had; 0 before all tables have one."""
        if not (self.lake / "_iceberg/lakebroker/reput_progress/metadata/version-hint.text").exists():
            return 0
        return opened(self.lake, "messages").metadata.last_sequence_number

    def grow_until_mirrored(self, *processes: Process) -> None:
        before = self.snapshots()
        self.grow_until(lambda: self.snapshots() > before, *processes)


@pytest.mark.timeout(4 * 3600 if EVIDENCE else 600)
def test_maintenance_is_killed_again_and_again_and_two_at_once_are_stopped(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    with LogWriter(tmp_path / "store") as writer:
        lake = GrowingLake(tmp_path, writer)
        for _ in range(ROUNDS):
            process = lake.maintenance()
            try:
                lake.grow_until_mirrored(process)
                until = time.monotonic() + rng.random() * (3 if EVIDENCE else 0)
                lake.grow_until(lambda until=until: time.monotonic() > until, process)
                assert process.poll() is None, lake.errors.read_text()
            finally:
                end(process, signal.SIGKILL)
            assert_mirrored(lake.lake, is_newest=False)
        shown = [tmp_path / f"shown-{number}" for number in range(2)]
        processes = [lake.maintenance(each) for each in shown]
        try:
            lake.grow_until_mirrored(*processes)
            lake.grow_until(lambda: all(each.stat().st_size for each in shown), *processes)
        finally:
            ends = [end(process, signal.SIGTERM) for process in processes]
        assert ends == [0, 0], lake.errors.read_text()
        lake.grow()
    record_property("killed", ROUNDS)
    assert set(lake.errors.read_text().splitlines()) == {"lakebroker: stopped by SIGTERM"}
    done = CliRunner().invoke(app, ["maintain", "--lake", str(lake.lake), *SMALL])
    assert done.exit_code == 0, done.output
    assert "made as a whole" not in done.output
    assert_mirrored(lake.lake)
    assert_exact(lake.lake, lake.store)
    assert [found.problems for found in check_lake(str(lake.lake), [str(lake.store)]) if found.problems] == []
    operations = [each["operation"] for each in DeltaTable(str(lake.lake / "messages")).history()]
    assert "OPTIMIZE" in operations[:-1]


def end(process: Process, number: int) -> int:
    if process.poll() is None:
        os.killpg(process.pid, number)
    return process.wait()
