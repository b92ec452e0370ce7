"""A lake grows while maintenance with retention, and copy after copy, are killed: what is young stays, what is old goes, and the copy
is what the lake is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.prestarted import Process, start
from structured_streaming.commit.upkeep_log import read_upkeep
from structured_streaming.maintenance.check import check_lake
from structured_streaming.storage.local import LocalFolder
from tests.suite.evidence import EVIDENCE
from tests.support.lakes import aged as aged_lake
from tests.support.lakes.aged import WITH_MESSAGES, AgedLake, left_of, places
from tests.support.waiting import LIMIT_S, wait_until

PIECES = 100 if EVIDENCE else 1
"""Days of the log that are written, one after another, beside maintenance that is killed."""
SEED = random.randrange(1 << 32)
RULES = "orders=2d,audit-*=forever,*=4d"


def started(*arguments: str, errors: Path) -> Process:
    with errors.open("ab") as output:
        return start(*arguments, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True)


def run(*arguments: str) -> None:
    """A command to its end, in this process."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def maintained(lake: AgedLake) -> bool:
    """Whether a maintenance has begun to change the lake."""
    return bool(read_upkeep(LocalFolder(lake.lake)).promised)


def killed(process: Process) -> bool:
    """Ends it; whether it was still running."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.timeout(4 * 3600 if EVIDENCE else 1200)
def test_maintenance_with_retention_and_copies_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    today = datetime.now(UTC).replace(hour=6, minute=0, second=0, microsecond=0)
    monkeypatch.setattr(aged_lake, "BEGIN", today - timedelta(days=PIECES + 8))
    lake, copy, errors = AgedLake(tmp_path), tmp_path / "copy", tmp_path / "errors"
    lake.write(8)
    where, rng = ("--lake", str(lake.lake)), random.Random(SEED)
    print(f"seed {SEED}")
    maintain = ("maintain", *where, "--target-file-size", "8KiB")
    copying = ("lake", "copy", *where, "--to", str(copy))
    run("lake", "retention", RULES, *where)
    kills = {"maintain": 0, "copy": 0}
    before = lake.all_rows()
    for _ in range(PIECES):
        processes = {
            "maintain": started(*maintain, "--every", "1s", errors=errors),
            "copy": started(*copying, errors=errors),
        }
        try:
            lake.write(1)
            if EVIDENCE:
                time.sleep(rng.random() * 8)  # where they are killed is left to chance
            else:
                wait_until(lambda: maintained(lake) and copy.exists(), errors.read_text)
            assert processes["maintain"].poll() is None, errors.read_text()
        finally:
            for name, process in processes.items():
                kills[name] += killed(process)
    run(*maintain)
    run(*copying)
    for place in (lake.lake, copy):
        assert [found.problems for found in check_lake(str(place), [str(lake.store)]) if found.problems] == []
    record_property("killed", kills)
    assert kills["maintain"] == PIECES
    expired = read_upkeep(LocalFolder(lake.lake)).expired  # of the day of the last round
    assert expired is not None
    bounds = {
        topic: expired.of(of) or datetime(1970, 1, 1, tzinfo=UTC)
        for topic, of in (("orders", "orders"), ("audit-logins", "audit-logins"), ("*", "other"))
    }
    assert bounds["audit-logins"] < bounds["*"] < bounds["orders"]
    rows = lake.all_rows()
    young = left_of(rows, bounds)
    found = places(rows)
    former = found["consume_queue"] - young["consume_queue"]
    assert {**found, "consume_queue": found["consume_queue"] - former} == young, "what is old is gone"
    assert len({key[:2] for key in former}) == former.total(), (
        "at most a row that was a queue's last when it was looked at"
    )
    old = left_of(before, bounds)
    for table in WITH_MESSAGES:
        audited = [key for key in old[table] if key[0] == "audit-logins"]
        assert audited
        assert all(young[table][key] == old[table][key] for key in audited)
        logins = sum(count for key, count in young[table].items() if key[0] == "audit-logins")
        assert logins == lake.days * 4 * (3 if table == "message_index" else 1), (
            "what is young is there, once"
        )
    copied = AgedLake(tmp_path)
    copied.lake = copy
    assert places(copied.all_rows()) == found
