"""Of two starts that need the same jars: one waits for the other while they are not there, and only then."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from structured_streaming.delta_session import fetched_in_turn
from tests.support.waiting import LIMIT_S

PACKAGES = ("io.delta:delta-spark_*:4.0.0", "org.apache.hadoop:hadoop-aws:3.4.1")
JARS = ("io.delta_delta-spark_4.0_2.13-4.0.0.jar", "org.apache.hadoop_hadoop-aws-3.4.1.jar")


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / ".ivy2.5.2" / "jars"
    folder.mkdir(parents=True)
    return folder


@contextmanager
def another_start() -> Iterator[threading.Event]:
    """Set when it goes on; it has at the end."""
    goes_on = threading.Event()

    def start() -> None:
        with fetched_in_turn(PACKAGES):
            goes_on.set()

    thread = threading.Thread(target=start)
    with fetched_in_turn(PACKAGES):
        thread.start()
        yield goes_on
    thread.join(LIMIT_S)
    assert goes_on.is_set()


@pytest.mark.parametrize("there", [JARS[:0], JARS[:1], JARS[1:]])
def test_it_waits_while_one_is_missing(jars: Path, there: tuple[str, ...]) -> None:
    for name in there:
        (jars / name).touch()
    with another_start() as goes_on:
        assert not goes_on.wait(0.2)


def test_it_waits_for_nobody_where_all_are_there(jars: Path) -> None:
    for name in JARS:
        (jars / name).touch()
    with another_start() as goes_on:
        assert goes_on.wait(LIMIT_S)


def test_it_waits_where_those_of_another_version_are_there(jars: Path) -> None:
    for name in JARS:
        (jars / name.replace("4.", "3.")).touch()
    with another_start() as goes_on:
        assert not goes_on.wait(0.2)


def test_a_lock_that_somebody_else_put_there_as_a_link_is_refused(jars: Path, tmp_path: Path) -> None:
    (tmp_path / f"lakebroker-jars-{os.getuid()}.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), fetched_in_turn(PACKAGES):
        pass
    assert not (tmp_path / "elsewhere").exists()
