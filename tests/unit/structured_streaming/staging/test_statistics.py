"""Statistics of files never rule out a value that is there."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structured_streaming.staging.statistics import TEXT, Statistics
from structured_streaming.tables import TIMESTAMP
from tests.support.lakes.staged import assert_statistics

A = "a" * TEXT


def stated(*parts: pa.Array) -> dict[str, dict[str, object]]:
    statistics = Statistics()
    for part in parts:
        statistics.add(pa.table({"column": part}))
    return statistics.stated()


@pytest.mark.parametrize(
    ("text", "greatest"),
    [
        (A, A),
        (A + "b", A[:-1] + "b"),
        (A + "\U0010ffff" + "b", A[:-1] + "b"),
        (A[:-1] + "\U0010ffff" + "b", A[:-2] + "b"),
        (A[:-1] + "\ud7ff" + "b", A[:-1] + "\ue000"),
        (A[:-1] + "\0" + "b", A[:-1] + "\x01"),
        ("\U0010ffff" * (TEXT + 1), None),
    ],
)
def test_a_greatest_text_that_is_cut_is_rounded_up_or_left_out(text: str, greatest: str | None) -> None:
    found = stated(pa.array([text]))
    assert found["maxValues"].get("column") == greatest
    assert found["minValues"] == {"column": text[:TEXT]}


@given(
    st.lists(st.text(st.sampled_from("a\0\ud7ff\ue000\uffff\U00010000\U0010ffff"), min_size=20), min_size=1)
)
def test_texts_lie_between_least_and_greatest(texts: list[str]) -> None:
    assert_statistics(pa.table({"column": pa.array(texts)}), stated(pa.array(texts)))


def test_parts_of_a_file_count_together() -> None:
    parts = [pa.array([3, None]), pa.array([None, None], pa.int64()), pa.array([9, 1])]
    assert stated(*parts) == {
        "numRecords": 6,
        "minValues": {"column": 1},
        "maxValues": {"column": 9},
        "nullCount": {"column": 3},
    }


def test_times_are_stated_in_milliseconds_around_them() -> None:
    found = stated(pa.array([1_999, -1], TIMESTAMP))
    assert found["minValues"] == {"column": "1969-12-31T23:59:59.999Z"}
    assert found["maxValues"] == {"column": "1970-01-01T00:00:00.002Z"}


@pytest.mark.parametrize("year", [1, 2026, 9999])
def test_a_greatest_time_that_another_writer_cut_to_milliseconds_is_right(year: int) -> None:
    time = datetime(year, 12, 31, 23, 59, 59, 999_999, UTC)
    statistics = Statistics()
    statistics.add(pa.table({"column": pa.array([time], TIMESTAMP)}))
    cut, less = (f"{year:04}-12-31T23:59:59.{ms}Z" for ms in (999, 998))
    assert list(statistics.refuted({"maxValues": {"column": cut}})) == []
    (problem,) = statistics.refuted({"maxValues": {"column": less}})
    assert problem.startswith(f"the greatest column is stated as '{less}'")
