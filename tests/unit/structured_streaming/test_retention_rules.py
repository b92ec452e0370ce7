"""Which topics a pattern of retention fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structured_streaming.retention_rules import Rule

LETTERS = "ab|%-"


def fits(pattern: str, topic: str) -> bool:
    """By a table: which begins of the topic the pattern fits up to each of its letters."""
    fitted = [True] + [False] * len(topic)
    for letter in pattern:
        if letter == "*":
            fitted = [any(fitted[: at + 1]) for at in range(len(fitted))]
        else:
            fitted = [False] + [before and letter == its for before, its in zip(fitted, topic, strict=False)]
    return fitted[-1]


@given(st.text(LETTERS + "*", max_size=8), st.text(LETTERS, max_size=10))
def test_a_star_stands_for_any_text(pattern: str, topic: str) -> None:
    assert Rule(pattern, 1).fits(topic) == fits(pattern, topic)


@pytest.mark.parametrize("end", ["", "b", "*", "b*"])
def test_many_stars_take_no_longer(end: str) -> None:
    assert Rule("*a" * 126 + end, 1).fits("a" * 255) == (end in ("", "*"))
