"""What a start says of the log."""

from __future__ import annotations

import shutil
from pathlib import Path

from structlog.testing import capture_logs

from broker_gateway.app.open_store import open_store
from broker_gateway.config.gateway import config_of
from lakebroker_testing import logs
from lakebroker_testing.faults import flip_byte


def start(folder: Path) -> list[tuple[str, str]]:
    config, _ = config_of({"storePathRootDir": str(folder), "brokerName": "b"})
    with capture_logs() as lines:
        open_store(config, lambda: False).close()
    return [(line["event"], str(line)) for line in lines]


def test_the_recovery_is_announced_with_its_folder(tmp_path: Path) -> None:
    logs.written(tmp_path, "b", 10)
    (first, shown), (second, _) = start(tmp_path)
    assert (first, second) == ("recovering the log", "log recovered")
    assert str(tmp_path) in shown


def test_damage_that_the_recovery_passed_over_is_said_with_what_to_do(tmp_path: Path) -> None:
    logs.written(tmp_path, "b", 600)
    shutil.rmtree(tmp_path / "lakeindex")  # what it covers is not read
    for number in range(30):
        flip_byte(tmp_path / "commitlog" / f"{0:020d}", 10_000 + 2400 * number)
    said = start(tmp_path)
    assert len([event for event, _ in said if event.startswith("damage in the log")]) == 20
    event, shown = said[-1]
    assert event.startswith("the log is damaged")
    assert "'places': 30" in shown
    assert f"lakebroker store verify {tmp_path}" in shown
