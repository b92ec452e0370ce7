"""Commands in a process that has a Spark session: they use it, and leave it as it was."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter, written
from structured_streaming.errors import LakeError
from structured_streaming.provided_session import beside
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from structured_streaming.sql import lake_session, query
from tests.support.lakes.maintained import reput
from tests.support.spark.hosted_driver import state
from tests.support.waiting import LIMIT_S


def test_another_master_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 1)
    options = ReputOptions(str(tmp_path / "lake"), store=str(store), once=True)
    with pytest.raises(LakeError, match=r"--master spark://nowhere:1: a Spark session is there already"):
        run_reput(options, master="spark://nowhere:1")
    with pytest.raises(LakeError, match="--driver-host h: a Spark session is there already"):
        run_reput(options, driver_host="h")
    assert not (tmp_path / "lake").exists()


def test_whoever_has_the_session_can_stop_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.reput._REACHED_S", LIMIT_S)
    before = state(spark)
    with reput_in_a_thread(spark, tmp_path) as (thread, ended):
        for query in spark.streams.active:
            query.stop()
        thread.join(LIMIT_S)
    assert state(spark) == before
    assert ended[:-1] == ["reading", "batch"]
    assert ended[-1].startswith("stopped; the lake")
    assert spark.range(3).count() == 3


def test_an_exception_that_cancels_the_job_ends_its_query(spark: SparkSession, tmp_path: Path) -> None:
    with reput_in_a_thread(spark, tmp_path) as (thread, ended):
        raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        assert raised == 1
        thread.join(LIMIT_S)
    assert ended == ["reading", "batch", "KeyboardInterrupt"]
    assert spark.streams.active == []
    assert spark.range(3).count() == 3


@contextmanager
def reput_in_a_thread(spark: SparkSession, folder: Path) -> Iterator[tuple[threading.Thread, list[str]]]:
    """One that goes on, once it has committed; what it told, and how it ended."""
    store = written(folder / "store", "broker-a", 20)
    ended: list[str] = []
    committed = threading.Event()
    options = ReputOptions(str(folder / "lake"), store=str(store))

    def batch(_report: object) -> None:
        ended.append("batch")
        committed.set()

    def run() -> None:
        try:
            run_reput(
                options,
                batch,
                tell=lambda line: ended.append("reading" if line.startswith("reading") else line),
            )
        except BaseException as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert committed.wait(LIMIT_S), ended
        yield thread, ended
        assert not thread.is_alive()
    finally:
        for query in spark.streams.active:
            query.stop()


def test_sql_is_asked_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    """In UTC, with the options that were set; views of the same name and the time zone stay the driver's."""
    with LogWriter(tmp_path / "store") as writer:
        writer.messages(3)
    reput(writer.folder, tmp_path / "lake")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.range(7).createOrReplaceTempView("messages")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        spark.conf.set("spark.sql.variable.substitute", "false")
        told: list[str] = []
        own, tables = lake_session(str(tmp_path / "lake"), tell=told.append)
        assert "starting Spark ..." in told  # of this process: the tests' own
        (count,) = query(own, "SELECT count(*) AS n FROM messages", tables=tables)["n"].to_pylist()
        assert count == 3
        (hour,) = query(own, "SELECT hour(timestamp '1970-01-01T00:00:00Z') AS h")["h"].to_pylist()
        assert hour == 0
        assert own.conf.get("spark.sql.variable.substitute") == "false"
        assert spark.table("messages").count() == 7
        assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark.catalog.dropTempView("messages")
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.unset("spark.sql.variable.substitute")


def test_the_catalog_and_schema_that_are_chosen_are_chosen_beside_it(spark: SparkSession) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS chosen")
    try:
        spark.catalog.setCurrentDatabase("chosen")
        assert beside(spark).catalog.currentDatabase() == "chosen"
    finally:
        spark.catalog.setCurrentDatabase("default")
        spark.sql("DROP DATABASE chosen")
