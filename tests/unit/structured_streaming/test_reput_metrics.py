"""Metrics of the reput: what the document says, what is bounded, and what a failure counts as."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lakebroker_testing.logs import written
from structured_streaming import reput, reput_metrics
from structured_streaming.absence import as_spark_reports
from structured_streaming.commit.report import BatchReport, LogReport
from structured_streaming.errors import (
    CatalogAwayError,
    JvmEndedError,
    LakeError,
    StoreAwayError,
    UnreachableError,
)
from structured_streaming.reput_metrics import ReputMetrics
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_watch import Behind, tell_failure
from tests.support.documents.metrics import documented


def report(*brokers: str, newest_ms: int = 1) -> BatchReport:
    logs = tuple(LogReport(broker, 4, 3, 6, newest_ms) for broker in brokers)
    return BatchReport(1, 3, 4, 0.5, 6, 7, {}, logs, {"messages": 0.2})


def value(metrics: ReputMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_the_document_names_every_metric_with_its_labels() -> None:
    metrics = ReputMetrics()
    metrics.committed(report("b"))
    metrics.typed({"typed_t": Behind("t", True)})
    there = {
        family.name: {name for sample in family.samples for name in sample.labels} - {"le"}
        for family in metrics.registry.collect()
    }
    assert documented("Of the reput") == there


def test_brokers_beyond_the_bound_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reput_metrics, "MAX_BROKERS", 2)
    metrics = ReputMetrics()
    for broker in ("a", "b", "c", "a"):
        metrics.committed(report(broker))
    assert value(metrics, "lakebroker_reput_batches_total") == 4
    assert value(metrics, "lakebroker_reput_records_total", broker="a") == 6
    assert value(metrics, "lakebroker_reput_records_total", broker="c") is None


def test_typed_tables_that_are_gone_have_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reput_metrics, "MAX_TYPED", 2)
    metrics = ReputMetrics()
    metrics.typed({f"typed_{name}": Behind(name, name == "b") for name in "cba"})
    told = [value(metrics, "lakebroker_reput_typed_behind", table=f"typed_{n}", topic=n) for n in "abc"]
    assert told == [0, 1, None]
    metrics.typed({})
    assert value(metrics, "lakebroker_reput_typed_behind", table="typed_b", topic="b") is None


def test_the_newest_record_stays_the_newest_and_is_never_of_the_future() -> None:
    metrics = ReputMetrics()
    metrics.committed(report("b", newest_ms=0))
    assert value(metrics, "lakebroker_reput_newest_record_age_seconds", broker="b") is None, "not known"
    metrics.committed(report("b", newest_ms=1 << 62))
    metrics.committed(report("b", newest_ms=5))
    assert value(metrics, "lakebroker_reput_newest_record_age_seconds", broker="b") == 0


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (UnreachableError("no broker"), "broker"),
        (StoreAwayError("no store"), "store"),
        (CatalogAwayError("no catalog"), "catalog"),
        (LakeError("something else"), None),
    ],
)
def test_a_query_that_failed_tells_what_is_away(error: Exception, what: str | None) -> None:
    metrics = ReputMetrics()
    tell_failure(metrics, as_spark_reports(error))
    for each in ("broker", "store", "catalog"):
        assert value(metrics, "lakebroker_reput_absences_total", what=each) == (each == what)
    assert value(metrics, "lakebroker_reput_query_failures_total") == 1


def test_starts_of_spark_after_its_jvm_ended_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metrics, runs = ReputMetrics(), list[str]()

    def in_own_jvm(*_: object) -> bool:
        runs.append("run")
        if len(runs) == 1:
            raise JvmEndedError(-signal.SIGKILL, "")
        return True

    monkeypatch.setattr(reput, "provided_session", lambda: None)
    monkeypatch.setattr(reput, "_in_own_jvm", in_own_jvm)
    monkeypatch.setattr(reput, "LONGEST_WAIT_S", 0.0)
    options = ReputOptions(
        str(tmp_path / "lake"), store=str(written(tmp_path / "store", "broker-a", 1)), once=True
    )
    reput.run_reput(options, watch=metrics)
    assert len(runs) == 2
    assert value(metrics, "lakebroker_reput_spark_restarts_total") == 1
