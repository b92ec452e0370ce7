"""A lake grows while maintenance after maintenance is killed: Iceberg clients read a whole version at any time, and an equal one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.iceberg_readers import assert_mirrored, opened
from tests.support.lakes.maintained import reput

ROUNDS = 60 if EVIDENCE else 5
PATIENCE_S = 240.0


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

    def maintenance(self) -> subprocess.Popen[bytes]:
        """That goes on until it is ended."""
        with self.errors.open("ab") as output:
            return subprocess.Popen(
                command("maintain", "--lake", str(self.lake), "--iceberg", "--every", "1s"),
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def maintain(self) -> str:
        """Once, to the end; what it says."""
        done = subprocess.run(
            command("maintain", "--lake", str(self.lake)),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def grow_until(self, reached: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
        """A batch after the other while all processes go on."""
        late = time.monotonic() + PATIENCE_S
        while not reached():
            assert all(process.poll() is None for process in processes), self.errors.read_text()
            assert time.monotonic() < late, f"{self.snapshots()} snapshots came: {self.errors.read_text()}"
            self.grow()

    def snapshots(self) -> int:
        """How many the mirror of messages has had; 0 before all tables have one."""
        if not (self.lake / "_iceberg/lakebroker/reput_progress/metadata/version-hint.text").exists():
            return 0
        return opened(self.lake, "messages").metadata.last_sequence_number


@pytest.mark.timeout(4 * 3600 if EVIDENCE else 1200)
def test_maintenance_with_a_mirror_is_killed_again_and_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng, killed = random.Random(1), 0
    with LogWriter(tmp_path / "store") as writer:
        lake = GrowingLake(tmp_path, writer)
        for _ in range(ROUNDS):
            before = lake.snapshots()
            process = lake.maintenance()
            try:
                lake.grow_until(lambda before=before: lake.snapshots() > before, process)
                until = time.monotonic() + rng.random() * 3  # where it is killed is left to chance
                lake.grow_until(lambda until=until: time.monotonic() > until, process)
            finally:
                killed += end(process)
            assert_mirrored(lake.lake, is_newest=False)
        assert killed == ROUNDS
        record_property("killed", killed)
        lake.grow()
    assert "made as a whole" not in lake.maintain()
    assert_mirrored(lake.lake)
    assert_exact(lake.lake, lake.store)


@pytest.mark.timeout(1200)
def test_two_that_maintain_at_once_leave_a_whole_mirror(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "store") as writer:
        lake = GrowingLake(tmp_path, writer)
        processes = [lake.maintenance() for _ in range(2)]
        try:
            lake.grow_until(lambda: lake.snapshots() > 5, *processes)
            for process in processes:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(300) for process in processes] == [0, 0], lake.errors.read_text()
        finally:
            for process in processes:
                end(process)
    assert set(lake.errors.read_text().splitlines()) == {"lakebroker: stopped by SIGTERM"}
    assert_mirrored(lake.lake, is_newest=False)
    assert "made as a whole" not in lake.maintain()
    assert_mirrored(lake.lake)


def end(process: subprocess.Popen[bytes]) -> bool:
    """Whether it was there to be killed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait(300) == -signal.SIGKILL
