"""Logs that cannot share a lake are refused at once, with what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import written
from store.log_source import LogState
from structured_streaming.absence import as_spark_reports
from structured_streaming.errors import SameBrokerError
from structured_streaming.reput_options import ReputOptions, checked
from structured_streaming.reput_query import retries
from structured_streaming.source.logs import by_broker


def refused(lake: Path, *stores: Path) -> str:
    """The one line that a continuous reput ends with, before Spark starts and a lake is made."""
    named = ",".join(map(str, stores))
    done = CliRunner().invoke(app, ["reput", "--store", named, "--lake", str(lake)])
    assert done.exit_code == 1, done.exception
    assert not lake.exists()
    (line,) = done.stderr.splitlines()
    return line


def test_two_brokers_of_one_name(tmp_path: Path) -> None:
    stores = [written(tmp_path / name, "broker-a", 1) for name in ("one", "two")]
    line = refused(tmp_path / "lake", *stores)
    assert f"{stores[0]} and {stores[1]} are both broker 'broker-a'" in line
    assert "each need a brokerName of their own before their first start" in line
    assert "another lake" in line
    named = ",".join(map(str, stores))
    with pytest.raises(SameBrokerError):
        checked(ReputOptions(str(tmp_path / "lake"), store=named, once=True))


def test_one_log_given_twice(tmp_path: Path) -> None:
    store = written(tmp_path / "one", "broker-a", 1)
    (tmp_path / "link").symlink_to(store)
    line = refused(tmp_path / "lake", store, tmp_path / "link")
    assert f"{store} and {tmp_path / 'link'} are one log" in line
    assert line.endswith("give it once")


def test_no_later_try_helps() -> None:
    states = {f"broker:h:{port}": LogState("broker-a", f"log-{port}", 0, 0) for port in (1, 2)}
    with pytest.raises(SameBrokerError, match="h:1 and h:2") as found:
        by_broker(states)
    for once in (False, True):
        assert retries(as_spark_reports(found.value), once=once) == 0


def test_a_copy_of_a_store_is_its_log(tmp_path: Path) -> None:
    store = written(tmp_path / "one", "broker-a", 1)
    shutil.copytree(store, tmp_path / "two")
    assert "given twice" in refused(tmp_path / "lake", store, tmp_path / "two")
