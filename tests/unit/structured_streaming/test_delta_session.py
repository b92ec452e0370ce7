"""Starts of Spark that need jars: they take turns while one is not there, and wait for a start that fetches some."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from structured_streaming import delta_session
from structured_streaming.delta_session import delta_jars, fetched_in_turn
from structured_streaming.errors import LakeError
from structured_streaming.interruptible import started
from tests.support.waiting import LIMIT_S

PACKAGES = ("io.delta:delta-spark_4.0_2.13:4.0.0", "org.apache.hadoop:hadoop-aws:3.4.1")
JARS = ("io.delta_delta-spark_4.0_2.13-4.0.0.jar", "org.apache.hadoop_hadoop-aws-3.4.1.jar")


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / ".ivy2.5.2"


def fetch(ivy: Path, *names: str) -> None:
    for name in names:
        (ivy / "jars").mkdir(parents=True, exist_ok=True)
        (ivy / "jars" / name).touch()


def must_wait(ivy: Path) -> bool:
    """Whether another start would."""
    with (ivy / "lakebroker.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("there", [JARS[:0], JARS[:1], JARS[1:], [name.replace("4.", "3.") for name in JARS]])
def test_others_wait_while_one_is_missing(ivy: Path, there: tuple[str, ...]) -> None:
    fetch(ivy, *there)
    with fetched_in_turn(PACKAGES):
        assert must_wait(ivy)
    assert not must_wait(ivy)


def test_nobody_waits_where_all_are_there(ivy: Path) -> None:
    fetch(ivy, *JARS)
    with fetched_in_turn(PACKAGES):
        assert not must_wait(ivy)


@pytest.mark.parametrize("separator", [" ", "=", " : "])
def test_jars_are_where_spark_is_told_to_put_them(ivy: Path, tmp_path: Path, separator: str) -> None:
    other = tmp_path / "other"
    settings = [f"spark.jars.ivySettings {ivy}", f"spark.jars.ivy{separator}{other}", "spark.master local"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(settings))
    fetch(other, *JARS)
    with fetched_in_turn(PACKAGES):
        assert not must_wait(other)
    assert not ivy.exists()


def test_delta_s_jars_are_those_that_the_session_asks_for(ivy: Path) -> None:
    fetch(ivy, JARS[1])
    builder = SparkSession.builder
    with delta_jars(builder, PACKAGES[1:]) as configured:
        assert must_wait(ivy)
    asked = configured._options["spark.jars.packages"].split(",")
    fetch(ivy, *(f"{each.replace(':', '_', 1).replace(':', '-')}.jar" for each in asked))
    with delta_jars(builder, PACKAGES[1:]):
        assert not must_wait(ivy)


def test_jars_that_somebody_fetches_are_not_there_before_the_fetch_has_ended(ivy: Path) -> None:
    ends: list[str] = []

    def start() -> None:
        with fetched_in_turn(PACKAGES):
            ends.append("start")

    other = threading.Thread(target=start)
    with fetched_in_turn(PACKAGES):
        fetch(ivy, *JARS)
        other.start()
        other.join(0.1)
        ends.append("fetch")
    other.join(LIMIT_S)
    assert ends == ["fetch", "start"]


def test_a_signal_ends_a_start_that_waits_which_is_said(
    ivy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[str] = []

    def start() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            with fetched_in_turn(PACKAGES):
                ends.append("start")
        except LakeError as error:
            ends.append(str(error))
            raise

    with fetched_in_turn(PACKAGES), pytest.raises(KeyboardInterrupt):
        started(start)  # type: ignore[arg-type]
    assert ends == [
        "Spark was not started: a signal came while it waited for another process that starts Spark"
    ]
    said = f"lakebroker: waiting for another process that starts Spark, and may fetch jars ({ivy}/lakebroker.lock)\n"
    assert capsys.readouterr().err.count(said) == 1
    assert not must_wait(ivy)


def test_the_wait_for_a_fetch_has_an_end(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_session, "_LONGEST_FETCH_S", 0.1)
    with fetched_in_turn(PACKAGES):
        with fetched_in_turn(PACKAGES):
            pass
        assert must_wait(ivy)


def test_where_nothing_can_be_written_nobody_waits(ivy: Path) -> None:
    ivy.write_text("a file where the folder should be")
    with fetched_in_turn(PACKAGES):
        pass
    assert ivy.is_file()
