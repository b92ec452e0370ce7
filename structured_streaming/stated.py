"""What Delta's statistics state of a file's columns, or Parquet's of a row group's (`maintenance/reading.py`), and whether a value may
be there by it. What is not stated rules nothing out. Texts may be cut: the least is rounded down, the greatest up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

Statistics = Mapping[str, Any]
"""As Delta has them: with `minValues` and `maxValues` by column, where there are some."""


def extremes(statistics: Statistics, column: str) -> tuple[Any, Any]:
    """Least and greatest value of a column; None: not stated."""
    least, greatest = ((statistics.get(end) or {}).get(column) for end in ("minValues", "maxValues"))
    return least, greatest


def may_hold(statistics: Statistics, column: str, low: Any, high: Any) -> bool:
    """Whether a column may have a value of `low` to `high`; None: no bound."""
    least, greatest = extremes(statistics, column)
    try:
        return (least is None or high is None or least <= high) and (
            greatest is None or low is None or low <= greatest
        )
    except TypeError:  # they are of another type than the column
        return True


def may_hold_any(statistics: Statistics, column: str, ordered: Sequence[Any]) -> bool:
    """Whether a column may have one of the values, which ascend."""
    least, greatest = extremes(statistics, column)
    try:
        first = 0 if least is None else bisect_left(ordered, least)
        behind = len(ordered) if greatest is None else bisect_right(ordered, greatest)
    except TypeError:  # as above
        return True
    return first < behind
