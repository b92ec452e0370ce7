"""Questions about latency sketches for either engine, with answers computed from the latencies themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker_gateway.journal.minute_stats import MinuteStatistics
from lakebroker_testing.clock import ManualClock
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import manifest
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import BROKER_STATS
from tests.support.lakes.empty import empty_lake

Ask = Callable[[str], list[dict[str, Any]]]
"""Rows of a statement over `stats`, which has the columns `topic` and `latency`."""

SKETCH = BROKER_STATS.schema.field("latency").type
MINUTES = 40
PARTS = (0.0, 0.001, 0.07, 0.5, 0.9, 0.99, 0.999, 1.0)
LIMITS_MS = (0.0005, 0.5, 1.0, 1.04, 20.0, 1e6)
MOST = (1 << 63) - 1
_QUANTILES = [f"latency_quantile(array_agg(latency), {part!r}) AS q{at}" for at, part in enumerate(PARTS)]
_SHARES = [f"latency_below(array_agg(latency), {limit!r}) AS b{at}" for at, limit in enumerate(LIMITS_MS)]
ANSWERS = f"""SELECT topic, latency_count(array_agg(latency)) AS calls, latency_mean(array_agg(latency)) AS mean,
    {", ".join(_QUANTILES + _SHARES)} FROM stats GROUP BY topic ORDER BY topic"""
"""Every function's answer for every topic."""


def latencies_ms() -> dict[str, list[list[float]]]:
    """By topic, a list for each minute."""
    random.seed(16)
    return {
        "log": [[random.lognormvariate(1, 1.5) for _ in range(200)] for _ in range(MINUTES)],
        "few": [[random.uniform(1, 2)] for _ in range(3)],
        "one": [[5.0] * 7],
        "exact": [[1.04**bucket for bucket in range(-20, 60)]],
        "fast": [[1e-5, 1e-3, 0.01]],
        "slow": [[random.uniform(1e5, 1e7) for _ in range(50)]],
    }


def sketched(minutes: Sequence[float]) -> list[tuple[int, int]]:
    """As the gateway counts it in a minute."""
    with ManualClock(0).in_place():
        counted = MinuteStatistics()
        for value in minutes:
            counted.count("t", "", 1, 1, value / 1000)
        (rolled,) = counted.roll(closing=True)
    return list(zip(rolled.latency.bucket, rolled.latency.count, strict=True))


def stats() -> pa.Table:
    """Sketches by topic and minute; with empty ones, and NULL."""
    rows = [
        {"topic": topic, "latency": sketched(minute)}
        for topic, minutes in latencies_ms().items()
        for minute in minutes
    ]
    rows += [{"topic": "log", "latency": None}, {"topic": "log", "latency": []}]
    rows += [{"topic": "empty", "latency": []}, {"topic": "null", "latency": None}]
    rows += [{"topic": "hostile", "latency": [((1 << 31) - 1, MOST), (3, -4), (-(1 << 31), 0)]}] * 2
    return pa.Table.from_pylist(rows, pa.schema([("topic", pa.string()), ("latency", SKETCH)]))


def sketch_lake(folder: Path) -> None:
    """Makes a lake whose broker_stats have the sketches, by a batch of the reput's."""
    empty_lake(folder)
    rows = [
        {"broker": "b", "log_id": "l", "physical_offset": at, "ordinal": 0, **row}
        for at, row in enumerate(stats().to_pylist())
    ]
    file = write_file(LocalFolder(folder), BROKER_STATS, pa.Table.from_pylist(rows, BROKER_STATS.schema))
    part = LogRange("store:-", "b", "l", 0, len(rows), len(rows))
    DeltaCommitSink(str(folder)).commit(manifest(part, len(rows), [(BROKER_STATS.name, file)]).to_pylist())


def check_answers(ask: Ask) -> None:
    """Every function's answer for every topic, beside what the latencies say."""
    found = {row["topic"]: row for row in ask(ANSWERS)}
    for topic, minutes in latencies_ms().items():
        row, exact = found[topic], sorted(max(value, 1e-3) for minute in minutes for value in minute)
        assert row["calls"] == len(exact)
        _check_bound(row["mean"], sum(exact) / len(exact))
        for at, part in enumerate(PARTS):
            rank = max(math.ceil(round(part * len(exact), 6)), 1)
            _check_bound(row[f"q{at}"], exact[rank - 1])
        for at, limit in enumerate(LIMITS_MS):
            most = sum(value <= limit * (1 + 1e-9) for value in exact) / len(exact)
            least = sum(value <= limit / 1.04 * (1 - 1e-9) for value in exact) / len(exact)
            assert least <= row[f"b{at}"] <= most, (topic, limit)
    for topic in ("empty", "null"):
        assert found[topic]["calls"] == 0
        assert {value for name, value in found[topic].items() if name not in ("topic", "calls")} == {None}
    assert found["hostile"]["calls"] == MOST
    assert found["hostile"]["q3"] == pytest.approx(1.04**1000)


def _check_bound(answer: float, exact: float) -> None:
    """At most 4 % above, never below; 1e-6 is what 9 digits of a ms leave of 1 µs."""
    assert exact * (1 - 1e-6) <= answer <= exact * 1.04 * (1 + 1e-6)


def check_merging(ask: Ask) -> None:
    """Counts by bucket, added up; merged in two steps likewise; nothing and NULL."""
    rows = stats().to_pylist()
    wanted: dict[int, int] = {}
    for row in rows:
        for bucket, calls in (row["latency"] or []) if row["topic"] != "hostile" else []:
            wanted[bucket] = wanted.get(bucket, 0) + calls
    whole = "SELECT latency_merge(array_agg(latency)) AS merged FROM stats WHERE topic <> 'hostile'"
    parts = f"SELECT latency_merge(array_agg(merged)) AS merged FROM ({whole} GROUP BY topic)"
    for statement in (whole, parts):
        assert dict(ask(statement)[0]["merged"]) == wanted
    (row,) = ask(
        """SELECT latency_merge(array_agg(latency)) AS merged, latency_count(array_agg(latency)) AS calls,
        latency_quantile(array_agg(latency), 0.5) AS q, latency_mean(array_agg(latency)) AS mean,
        latency_below(array_agg(latency), 5) AS below FROM stats WHERE false"""
    )
    assert [dict(row["merged"]), *list(row.values())[1:]] == [{}, 0, None, None, None]
    (row,) = ask(
        """SELECT latency_merge(NULL) AS merged, latency_count(NULL) AS calls, latency_quantile(NULL, 0.5) AS q,
        latency_mean(NULL) AS mean, latency_below(NULL, 5) AS below"""
    )
    assert [dict(row["merged"]), *list(row.values())[1:]] == [{}, 0, None, None, None]
    (row,) = ask(
        """SELECT latency_quantile(array_agg(latency), NULL) AS q, latency_below(array_agg(latency), NULL) AS below,
        latency_below(array_agg(latency), 0) AS none, latency_below(array_agg(latency), -1) AS less FROM stats"""
    )
    assert list(row.values()) == [None, None, 0.0, 0.0]
    (row,) = ask("SELECT latency_merge(array_agg(latency)) AS merged FROM stats WHERE topic = 'hostile'")
    assert dict(row["merged"]) == {(1 << 31) - 1: MOST}


def check_windows(ask: Ask) -> None:
    """A quantile over what came until then."""
    rows = ask(
        """SELECT topic, latency_quantile(array_agg(latency) OVER (ORDER BY topic), 1) AS slowest
        FROM stats WHERE topic IN ('fast', 'one') ORDER BY topic"""
    )
    assert [row["topic"] for row in rows] == ["fast", "one"]
    _check_bound(rows[0]["slowest"], 0.01)
    _check_bound(rows[1]["slowest"], 5.0)


def check_wrong_parts(ask: Ask, *errors: type[Exception]) -> None:
    """A part of more than all is an error that names it."""
    for part, shown in ((1.5, "1.5"), (-0.5, "-0.5"), (99, "99")):
        with pytest.raises(
            errors, match=rf"{shown}\S* is no part of the calls: give latency_quantile one from 0 to 1"
        ):
            ask(f"SELECT latency_quantile(array_agg(latency), {part}) FROM stats")
