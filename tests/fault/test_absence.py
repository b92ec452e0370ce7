"""A reput whose brokers are away when its query ends: it says so, and goes on when they are back."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import written
from lakebroker_testing.ports import free_ports
from store.log_reader import LogReader
from structured_streaming import absence, reput_query
from structured_streaming.commit.report import BatchReport
from structured_streaming.destination import FolderDestination
from structured_streaming.interruptible import jvm_of
from structured_streaming.reput_options import ReputOptions
from structured_streaming.stopping import Stopping
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact
from tests.support.machines.processes import descendants, of_process
from tests.support.waiting import wait_until

COUNT = 300
TRIES = 3 if EVIDENCE else 2


def planners(process: int) -> list[int]:
    """The Python processes in which batches of queries are planned."""
    return [
        each
        for each in descendants(process)
        if "python_streaming_source_runner" in of_process(each, "cmdline")
    ]


def test_brokers_are_waited_for_as_long_as_it_takes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query ends too meanwhile, so that it is to start while nobody answers. That there is no end to it is in
    tests/unit/structured_streaming/test_reput.py."""
    for module, name, value in (
        (reput_query, "RETRIES", 100),  # a host so busy that Spark does not wait for its Python is a failure
        (reput_query, "LONGEST_WAIT_S", 1.0),  # each start takes a new Python
        (reput_query, "SIGNAL_S", 0.0),
        (absence, "TELL_S", 0.0),
    ):
        monkeypatch.setattr(module, name, value)
    told = io.StringIO()
    monkeypatch.setattr("sys.stderr", told)
    lake, port, reports = tmp_path / "lake", free_ports(1)[0], list[BatchReport]()
    store = written(tmp_path / "broker" / "store", "broker-a", COUNT)
    jvm = jvm_of(spark)
    assert jvm is not None

    with (
        Gateway(tmp_path / "broker", brokerName="broker-a", grpcServerPort=str(port)) as gateway,
        ThreadPoolExecutor(1) as other,
    ):
        options = ReputOptions(str(lake), brokers=gateway.address)
        stopping = other.submit(Stopping).result()  # there it leaves this process's signals alone
        run = other.submit(
            reput_query.run_until_done,
            spark,
            options,
            reports.append,
            FolderDestination(options),
            stopping,
        )

        def goes_on_until(reached: Callable[[], object]) -> None:
            wait_until(lambda: run.done() or reached(), told.getvalue)
            if run.done():
                raise AssertionError(told.getvalue()) from run.exception()

        def goes_on_until_all_is_read() -> None:
            log_end = end(store)
            goes_on_until(lambda: reports and list(reports[-1].ends.values()) == [log_end])

        waits = (
            f"no broker at {gateway.address}: connection refused; the query starts again when that is over\n"
        )
        try:
            goes_on_until_all_is_read()
            gateway.kill()
            written(store, "broker-a", COUNT)
            for planner in planners(jvm.pid):
                with suppress(ProcessLookupError):  # it may end by itself, for want of a broker
                    os.kill(planner, signal.SIGKILL)
            goes_on_until(lambda: told.getvalue().count(waits) >= TRIES)
            gateway.start()
            goes_on_until_all_is_read()
        finally:
            stopping.number = signal.SIGTERM
        assert run.result() is False
    assert "Traceback" not in told.getvalue()
    assert assert_exact(lake, store)["messages"] == 2 * COUNT


def end(store: Path) -> int:
    """Where the log ends now."""
    reader = LogReader(store)
    try:
        return reader.readable_offset
    finally:
        reader.close()
