"""What Prometheus reads of a reput, beside what the lake holds: with batches, damage, a JVM that dies."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.gateway import Reput
from structured_streaming.destination import FolderDestination
from structured_streaming.reput_metrics import ReputMetrics
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import run_until_done
from structured_streaming.stopping import Stopping
from structured_streaming.tables import TABLES
from tests.support.brokers.scraped import PATIENCE_S, Numbers, metrics_url, once_it_says, value
from tests.support.lakes.checks import assert_exact, rows
from tests.support.logs.written import written
from tests.support.machines.children import children

pytestmark = pytest.mark.timeout(900)


def test_metrics_say_what_the_lake_holds_and_go_on_when_the_jvm_dies(tmp_path: Path) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 3000), tmp_path / "lake"
    arguments = ("--store", str(store), "--batch-bytes", str(1 << 20), "--metrics-port", "0")
    with Reput(lake, tmp_path / "reput.log", *arguments) as reput:

        def is_up_to_date(numbers: Numbers) -> bool:
            records = numbers.get(("lakebroker_reput_records_total", frozenset({("broker", "broker-a")})), 0)
            lag = numbers.get(("lakebroker_reput_lag_bytes", frozenset({("broker", "broker-a")})), -1)
            return records >= 3000 and lag == 0

        url = metrics_url(reput)
        numbers = once_it_says(url, is_up_to_date)
        assert_exact(lake, store)
        progress = rows(lake, "reput_progress").to_pylist()
        assert value(numbers, "lakebroker_reput_batches_total") == len(progress) > 1
        for name in ("records", "bytes"):
            total = value(numbers, f"lakebroker_reput_{name}_total", broker="broker-a")
            assert total == sum(row[name] for row in progress)
        assert value(numbers, "lakebroker_reput_commit_seconds_count") == len(progress)
        for table in ("messages", "consume_queue", "reput_progress"):
            commits = value(numbers, "lakebroker_reput_table_commit_seconds_count", table=table)
            assert commits == len(progress), table
        spent = sum(
            value(numbers, "lakebroker_reput_table_commit_seconds_sum", table=name) for name in TABLES
        )
        assert 0 < spent <= value(numbers, "lakebroker_reput_commit_seconds_sum")
        newest = max(row["store_timestamp"] for row in rows(lake, "messages").to_pylist()).timestamp()
        age = value(numbers, "lakebroker_reput_newest_record_age_seconds", broker="broker-a")
        assert 0 <= time.time() - newest - age < PATIENCE_S
        last = value(numbers, "lakebroker_reput_last_batch_timestamp_seconds")
        assert last >= max(row["commit_timestamp"] for row in progress).timestamp() - 1
        assert last == pytest.approx(
            value(numbers, "lakebroker_reput_log_last_batch_timestamp_seconds", broker="broker-a"), abs=60
        )
        for name in ("spark_restarts", "query_failures", "quarantined_records"):
            assert value(numbers, f"lakebroker_reput_{name}_total") == 0
        assert {
            value(numbers, "lakebroker_reput_absences_total", what=what) for what in ("broker", "store")
        } == {0}
        # Spark tells a batch's times behind it
        whole = ("lakebroker_reput_phase_seconds_count", frozenset({("phase", "whole")}))
        numbers = once_it_says(url, lambda found: found[whole] == len(progress))
        for phase in ("plan", "stage_and_commit", "ask_logs"):
            assert value(numbers, "lakebroker_reput_phase_seconds_count", phase=phase) == len(progress)
        told = value(numbers, "lakebroker_reput_phase_seconds_sum", phase="stage_and_commit")
        assert value(numbers, "lakebroker_reput_commit_seconds_sum") < told + 0.001 * len(progress)

        (jvm,) = [
            pid for pid in children(reput.process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n"
        ]
        os.kill(jvm, signal.SIGKILL)
        written(tmp_path / "store", "broker-a", 50)
        numbers = once_it_says(
            url, lambda found: value(found, "lakebroker_reput_records_total", broker="broker-a") >= 3050
        )
        assert value(numbers, "lakebroker_reput_spark_restarts_total") == 1
        assert value(numbers, "lakebroker_reput_batches_total") == len(rows(lake, "reput_progress"))
        again = once_it_says(url, lambda found: found[whole] > len(progress))
        assert again[whole] == value(again, "lakebroker_reput_batches_total")
        assert reput.stop() == 0, reput.log.read_text()[-2000:]
    assert "Traceback" not in reput.log.read_text()


def test_a_session_that_is_provided_is_left_without_a_listener(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 200), tmp_path / "lake"
    before = len(spark.streams._jsqm.listListeners())
    metrics = ReputMetrics()
    undo = metrics.attached(spark)
    assert len(spark.streams._jsqm.listListeners()) == before + 1
    options = ReputOptions(str(lake), store=str(store), once=True)
    assert run_until_done(
        spark, options, metrics.committed, FolderDestination(options), Stopping(), watch=metrics
    )
    until = time.monotonic() + PATIENCE_S
    while not phases(metrics.registry):
        assert time.monotonic() < until
        time.sleep(0.1)
    undo()
    assert len(spark.streams._jsqm.listListeners()) == before
    assert metrics.registry.get_sample_value("lakebroker_reput_records_total", {"broker": "broker-a"}) == 200


def phases(registry: CollectorRegistry) -> float:
    found = registry.get_sample_value("lakebroker_reput_phase_seconds_count", {"phase": "whole"})
    assert found is not None
    return found


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
