"""What statistics state rules out what cannot be there, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.errors import LakeError
from structured_streaming.stated import extremes, may_hold, may_hold_any

STATED = {"minValues": {"n": 3, "t": "b"}, "maxValues": {"n": 7, "t": "d"}}
NOT_STATED = (
    {},
    {"minValues": None, "maxValues": None},
    {"minValues": {"n": None}, "maxValues": {"n": None}},
)


@pytest.mark.parametrize(
    ("low", "high", "may"),
    [
        (3, 3, True),
        (7, 9, True),
        (8, 9, False),
        (0, 2, False),
        (0, 3, True),
        (None, 2, False),
        (8, None, False),
    ],
)
def test_a_value_within_the_least_and_the_greatest_may_be_there(low: Any, high: Any, may: bool) -> None:
    assert may_hold(STATED, "n", low, high) is may
    file = DataFile("part-1.parquet", 1, json.dumps(STATED), False)
    assert file.may_hold("n", low, high) is may
    if low is not None and high is not None:
        assert may_hold_any(STATED, "n", range(low, high + 1)) is may


@pytest.mark.parametrize("statistics", NOT_STATED)
def test_what_is_not_stated_rules_nothing_out(statistics: dict[str, Any]) -> None:
    assert extremes(statistics, "n") == (None, None)
    assert may_hold(statistics, "n", 1, 1)
    assert may_hold_any(statistics, "n", [1])
    assert not may_hold_any(statistics, "n", [])
    file = DataFile("part-1.parquet", 1, json.dumps(statistics), False)
    assert file.may_hold("n", 1, 1)


def test_one_side_alone_rules_out_its_own() -> None:
    least = {"minValues": {"n": 3}, "maxValues": {"n": None}}
    assert may_hold_any(least, "n", [1, 2, 1000])
    assert not may_hold_any(least, "n", [1, 2])
    assert not may_hold(least, "n", 1, 2)
    greatest = {"maxValues": {"t": "d"}}
    assert may_hold(greatest, "t", "a", "a")
    assert not may_hold(greatest, "t", "e", "f")


def test_statistics_that_are_none_are_named() -> None:
    with pytest.raises(LakeError, match=r"part-1\.parquet"):
        DataFile("part-1.parquet", 1, "[1]", False).may_hold("n", 1, 1)
