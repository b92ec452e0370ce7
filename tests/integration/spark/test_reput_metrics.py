"""What Prometheus reads of a reput, beside what the lake holds: with batches, and when the JVM dies."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from broker_gateway.observability.metrics_port import serve_registry
from lakebroker_testing.gateway import Reput
from lakebroker_testing.logs import written
from structured_streaming.destination import FolderDestination
from structured_streaming.reput_metrics import ReputMetrics
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import run_until_done
from structured_streaming.stopping import Stopping
from structured_streaming.tables import TABLES
from tests.suite.evidence import LONG
from tests.support.brokers.scraped import Numbers, metrics_url, once_it_says, value
from tests.support.lakes.checks import assert_exact, rows
from tests.support.machines.processes import jvm_below
from tests.support.waiting import LIMIT_S

WHOLE = ("lakebroker_reput_phase_seconds_count", frozenset({("phase", "whole")}))
"""Spark tells a batch's times behind it."""


def listeners(spark: SparkSession) -> int:
    return len(spark._jsparkSession.streams().listListeners())


def test_metrics_say_what_the_lake_holds_and_the_session_is_left_without_a_listener(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs after each other, as after the death of a JVM, count on."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    options = ReputOptions(str(lake), store=str(store), max_bytes=1 << 18, once=True)
    metrics, before = ReputMetrics(), listeners(spark)
    server, thread = serve_registry(metrics.registry, "127.0.0.1", 0, lambda app: app)
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        for count in (350, 50):
            written(store, "broker-a", count)
            undo = metrics.attached(spark)
            assert listeners(spark) == before + 1
            assert run_until_done(
                spark, options, metrics.committed, FolderDestination(options), Stopping(), watch=metrics
            )
            progress = rows(lake, "reput_progress").to_pylist()
            numbers = once_it_says(url, lambda found, batches=len(progress): found.get(WHOLE) == batches)
            undo()
            assert listeners(spark) == before
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert_exact(lake, store)
    assert value(numbers, "lakebroker_reput_batches_total") == len(progress) > 1
    for name in ("records", "bytes"):
        total = value(numbers, f"lakebroker_reput_{name}_total", broker="broker-a")
        assert total == sum(row[name] for row in progress)
    assert value(numbers, "lakebroker_reput_records_total", broker="broker-a") == 400
    assert value(numbers, "lakebroker_reput_lag_bytes", broker="broker-a") == 0
    assert value(numbers, "lakebroker_reput_commit_seconds_count") == len(progress)
    for table in ("messages", "consume_queue", "reput_progress"):
        commits = value(numbers, "lakebroker_reput_table_commit_seconds_count", table=table)
        assert commits == len(progress), table
    spent = sum(value(numbers, "lakebroker_reput_table_commit_seconds_sum", table=name) for name in TABLES)
    assert 0 < spent <= value(numbers, "lakebroker_reput_commit_seconds_sum")
    newest = max(row["store_timestamp"] for row in rows(lake, "messages").to_pylist()).timestamp()
    age = value(numbers, "lakebroker_reput_newest_record_age_seconds", broker="broker-a")
    assert 0 <= time.time() - newest - age < LIMIT_S
    last = value(numbers, "lakebroker_reput_last_batch_timestamp_seconds")
    assert last >= max(row["commit_timestamp"] for row in progress).timestamp() - 1
    assert last == pytest.approx(
        value(numbers, "lakebroker_reput_log_last_batch_timestamp_seconds", broker="broker-a"), abs=60
    )
    for name in ("spark_restarts", "quarantined_records"):
        assert value(numbers, f"lakebroker_reput_{name}_total") == 0
    told = capsys.readouterr().err.count("the query starts again")
    assert value(numbers, "lakebroker_reput_query_failures_total") == told
    assert {value(numbers, "lakebroker_reput_absences_total", what=what) for what in ("broker", "store")} == {
        0
    }
    for phase in ("plan", "stage_and_commit", "ask_logs"):
        assert value(numbers, "lakebroker_reput_phase_seconds_count", phase=phase) == len(progress)
    staged = value(numbers, "lakebroker_reput_phase_seconds_sum", phase="stage_and_commit")
    assert value(numbers, "lakebroker_reput_commit_seconds_sum") < staged + 0.001 * len(progress)


@LONG
@pytest.mark.timeout(900)
def test_metrics_go_on_when_the_jvm_dies(tmp_path: Path) -> None:
    """That such a reput goes on is in tests/fault/test_reput_jvm.py, what it tells its metrics in
    tests/unit/structured_streaming/test_reput_metrics.py."""
    store, lake = written(tmp_path / "store", "broker-a", 500), tmp_path / "lake"

    def has(records: int) -> Numbers:
        return once_it_says(
            url,
            lambda found: (
                found.get(("lakebroker_reput_records_total", frozenset({("broker", "broker-a")})), 0)
                >= records
            ),
        )

    with Reput(lake, tmp_path / "reput.log", "--store", str(store), "--metrics-port", "0") as reput:
        url = metrics_url(reput)
        has(500)
        os.kill(jvm_below(reput.process.pid), signal.SIGKILL)
        written(tmp_path / "store", "broker-a", 50)
        numbers = has(550)
        assert value(numbers, "lakebroker_reput_spark_restarts_total") == 1
        batches = value(numbers, "lakebroker_reput_batches_total")
        assert batches == len(rows(lake, "reput_progress"))
        once_it_says(url, lambda found: found[WHOLE] == batches)
        assert reput.stop() == 0, reput.log.read_text()[-2000:]
    assert "Traceback" not in reput.log.read_text()


def test_a_port_that_is_taken_is_said_before_spark_starts(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["reput", "--store", str(store), "--lake", str(tmp_path / "lake"), "--metrics-port"]
        done = CliRunner().invoke(app, [*arguments, port])
        assert done.exit_code == 1
        said = done.stderr
        assert (
            f"--metrics-port {port} cannot be opened at 127.0.0.1: Address already in use; give a free port"
            in said
        )
        assert "starting Spark" not in said
        away = CliRunner().invoke(app, [*arguments, "0", "--metrics-host", "nowhere.invalid"])
        assert away.exit_code == 1
        assert "--metrics-port 0 cannot be opened at nowhere.invalid: " in away.stderr
    assert not (tmp_path / "lake").exists()
