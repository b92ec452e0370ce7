"""Tag filters as RocketMQ's FilterAPI reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.delivery.filters.tags import (
    MAX_EXPRESSION_LENGTH,
    MAX_TAGS,
    FilterExpressionError,
    parse_tag_filter,
)
from store.log.record import tags_code


def codes(*tags: str | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([tags_code(tag) for tag in tags], dtype=np.int64)


@pytest.mark.parametrize("expression", ["", "  ", "*", " * "])
def test_everything_passes(expression: str) -> None:
    found = parse_tag_filter(expression)
    assert found.everything
    assert np.flatnonzero(found.mask(codes("a", None, "b"))).tolist() == [0, 1, 2]
    assert found.matches(None)
    assert found.matches("a")


@pytest.mark.parametrize("expression", ["a||b", "a || b", " b|| ||a ||", "a||b||a"])
def test_only_the_tags_named_pass(expression: str) -> None:
    found = parse_tag_filter(expression)
    assert found.tags == {"a", "b"}
    assert not found.everything
    assert np.flatnonzero(found.mask(codes("a", None, "b", "c", "a"))).tolist() == [0, 2, 4]
    assert found.matches("a")
    assert not found.matches("c")
    assert not found.matches(None)


def test_a_single_bar_is_part_of_the_tag() -> None:
    assert parse_tag_filter("a|b").tags == {"a|b"}


def test_equal_codes_are_told_apart_by_the_tag() -> None:
    found = parse_tag_filter("Aa")
    assert tags_code("Aa") == tags_code("BB")
    assert np.flatnonzero(found.mask(codes("BB"))).tolist() == [0]
    assert not found.matches("BB")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("||", "names no tag"),
        (" || || ", "names no tag"),
        ("a" * (MAX_EXPRESSION_LENGTH + 1), f"at most {MAX_EXPRESSION_LENGTH}"),
        ("||".join(f"t{n}" for n in range(MAX_TAGS + 1)), f"names {MAX_TAGS + 1} tags"),
    ],
)
def test_what_cannot_be_read_is_refused(expression: str, message: str) -> None:
    with pytest.raises(FilterExpressionError, match=message):
        parse_tag_filter(expression)


def test_the_limits_themselves_are_read() -> None:
    assert len(parse_tag_filter("||".join(f"t{n}" for n in range(MAX_TAGS))).tags) == MAX_TAGS
    assert parse_tag_filter("a" * MAX_EXPRESSION_LENGTH).tags == {"a" * MAX_EXPRESSION_LENGTH}


def test_what_the_original_takes_is_taken() -> None:
    assert len(parse_tag_filter("||".join(f"tag-{n}" for n in range(300))).tags) == 300
    for length in (10_240, 16_384):
        assert parse_tag_filter("t" * length).matches("t" * length)


@given(
    st.lists(st.text("abcä😀", min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.none() | st.text("abcä😀", min_size=1, max_size=4), max_size=20),
)
def test_no_match_is_lost_by_its_code(wanted: list[str], tags: list[str | None]) -> None:
    found = parse_tag_filter(" || ".join(wanted))
    passed = [
        position
        for position in np.flatnonzero(found.mask(codes(*tags))).tolist()
        if found.matches(tags[position])
    ]
    assert passed == [position for position, tag in enumerate(tags) if tag in wanted]
