"""SQL filters: RocketMQ's language with its three values. Beside the broker's own: `interop/test_sql_filters.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.delivery.filters.message_filter import FilterExpressionError
from broker_gateway.delivery.filters.sql92 import MAX_EXPRESSION_LENGTH, parse_sql_filter
from broker_gateway.delivery.filters.sql92_grammar import MAX_DEPTH, MAX_VALUES

PROPERTIES = {
    "price": "12",
    "weight": "1.5",
    "region": "Hangzhou",
    "vip": "true",
    "quote": "it's",
    "TAGS": "a",
}


def wants(expression: str, **more: str) -> bool:
    return parse_sql_filter(expression).wants(PROPERTIES | more)


@pytest.mark.parametrize(
    "expression",
    [
        "price > 10",
        "price >= 12 AND price <= 12",
        "price BETWEEN 10 AND 20",
        "price NOT BETWEEN 13 AND 20",
        "price = 12 and weight < 1.6",
        "10 < price",
        "price > weight",
        "price > -5",
        "region = 'Hangzhou'",
        "region <> 'Beijing'",
        "region IN ('Beijing', 'Hangzhou')",
        "region NOT IN ('Beijing')",
        "region CONTAINS 'zho' AND region startswith 'Hang' AND region ENDSWITH 'zhou'",
        "region NOT CONTAINS 'x'",
        "quote = 'it''s'",
        "gone IS NULL",
        "region IS NOT NULL",
        "vip = TRUE",
        "NOT (price < 10)",
        "TAGS = 'a' OR gone = 1",
        "gone = 1 OR TAGS = 'a'",
        "TRUE",
        "(((price = 12)))",
        "price = 12 /* a comment */ AND -- another\n TRUE",
        "gone = other",
        "price = 12 -- the rest is said to nobody",
    ],
)
def test_what_is_true(expression: str) -> None:
    assert wants(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "price > 12",
        "gone > 1",
        "NOT (gone > 1)",
        "gone = 1 AND TRUE",
        "gone <> 1",
        "NULL",
        "vip",
        "region > 1",
        "region > 1 OR TRUE",  # no number: nothing of it counts
        "NOT (region = 1)",
        "weight > 1",  # 1.5 is no whole number
        "region CONTAINS ''",
        "gone NOT CONTAINS 'x'",
        "gone NOT IN ('x')",
        "NOT price = 12",  # (NOT price) = 12
        "region = gone",
        "FALSE",
    ],
)
def test_what_is_not(expression: str) -> None:
    assert not wants(expression)


def test_a_term_that_decides_ends_it() -> None:
    assert wants("TRUE OR region > 1")
    assert not wants("FALSE AND region > 1")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("price >", "ends where more is expected"),
        ("price LIKE 'x'", r"'LIKE' is not expected at character 7; there is no LIKE: use CONTAINS"),
        ("price + 1 > 2", r"'\+' is not expected at character 7; there is no arithmetic"),
        ('region = "x"', r"at character 10; texts stand in single quotes"),
        ("price > 'ten'", r"'ten' has no order; only numbers and properties do at character 7"),
        ("price > (weight = 1)", "a condition has no order; only numbers and properties do at character 7"),
        ("price = NULL", r"write IS NULL or IS NOT NULL at character 7"),
        ("TRUE = 1", "TRUE and FALSE are compared with no number or text at character 6"),
        ("price BETWEEN 20 AND 10", "nothing is between 20 and 10: exchange them at character 7"),
        ("(price = 1) IN ('a')", "IN asks for a property on its left at character 13"),
        ("price IN (1, 2)", "'1' is not expected at character 11"),
        ("price IN ()", r"'\)' is not expected at character 11"),
        ("5", "a number or a text is no condition"),
        ("NOT 'x'", "a number or a text is no condition"),
        ("price = 9223372036854775808", "is above 9223372036854775807 at character 9"),
        ("price = " + "1" * 8000, "is above 9223372036854775807 at character 9"),
        ("-" * 8000, "ends where more is expected"),
        ("price = 1e999", "1e999 is above what a double holds at character 9"),
        ("price = 1e" + "9" * 4000, f"SQL filter: 1e{'9' * 38} is above what a double holds at character 9"),
        ("price = 'open", r"is not expected at character 9"),
        ("price = 1 region", "'region' is not expected at character 11"),
        ("(price = 1", "ends where more is expected"),
        ("price IS 1", "'1' is not expected at character 10"),
        ("x" * (MAX_EXPRESSION_LENGTH + 1), f"at most {MAX_EXPRESSION_LENGTH} are read"),
        ("(" * 8000, "ends where more is expected"),
        (
            "-(" * 15 + "a BETWEEN 1 AND 2" + ") BETWEEN 1 AND 2" * 15,
            "asks more than 8192 times of a message",
        ),
        ("NOT " * (MAX_DEPTH + 1) + "TRUE", f"nests deeper than {MAX_DEPTH}"),
        (f"a IN ({','.join(['1'] * 3)})", "'1' is not expected"),
        ("a IN (" + ",".join(["''"] * (MAX_VALUES + 1)) + ")", f"IN has {MAX_VALUES + 1} values"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(expression: str, message: str) -> None:
    with pytest.raises(FilterExpressionError, match=message):
        parse_sql_filter(expression)


def test_long_rows_of_terms_are_no_depth() -> None:
    row = " OR ".join(f"a = {number}" for number in range(700))
    assert len(row) <= MAX_EXPRESSION_LENGTH
    assert parse_sql_filter(row).wants({"a": "699"})
    assert not parse_sql_filter(row).wants({"a": "700"})
    assert parse_sql_filter("(" * 60 + row + ")" * 60).wants({"a": "0"})


def test_properties_decide_alone() -> None:
    found = parse_sql_filter("price > 10")
    assert not found.everything
    assert found.by_tag is None
    assert found.work == 3
    assert found.mask(np.array([1, 2, 3])).tolist() == [True] * 3
    assert parse_sql_filter("price > 10") is found


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(expression: str) -> None:
    try:
        found = parse_sql_filter(expression)
    except FilterExpressionError:
        return
    assert found.wants(PROPERTIES) in (True, False)


@given(st.lists(st.sampled_from(["a", "1", "'x'", "NOT", "AND", "OR", "=", "<", "IN", "(", ")", ",", "IS", "NULL", "-", "BETWEEN", "CONTAINS", "TRUE", "1.5"]), max_size=30), st.dictionaries(st.just("a"), st.text(max_size=5)))  # fmt: skip
def test_any_words_are_read_or_refused(words: list[str], properties: dict[str, str]) -> None:
    try:
        found = parse_sql_filter(" ".join(words))
    except FilterExpressionError:
        return
    assert found.wants(properties) in (True, False)


@pytest.mark.timeout(60)  # a pattern that tries every division of the digits would take minutes
def test_long_texts_of_properties_are_read_at_once() -> None:
    found = parse_sql_filter("a > 1 OR b > 1.5")
    assert not found.wants({"a": "9" * 200_000})
    assert not found.wants({"a": "0", "b": "1" * 100_000 + "x"})
    assert not found.wants({"a": "0", "b": "0x" + "1" * 100_000 + "x"})
    assert found.wants({"a": "0", "b": "1" * 300 + "." + "1" * 30_000})


class _Read(str):
    """A text that counts how often it is read."""

    read = 0

    def strip(self, chars: str | None = None) -> str:
        _Read.read += 1
        return super().strip(chars)


def test_a_number_is_read_once_however_often_it_is_asked_for() -> None:
    """A client chooses text and expression; the event loop reads it."""
    _Read.read = 0
    expression = " OR ".join(f"digits < {number}.5" for number in range(200))
    assert not wants(expression, digits=_Read("0x" + "f" * 16_000 + "p1"))
    assert _Read.read == 1


def test_what_goes_through_a_whole_text_counts_for_more() -> None:
    assert parse_sql_filter("region STARTSWITH 'a'").work == 2
    assert parse_sql_filter("region CONTAINS 'a'").work > 100
    assert parse_sql_filter(" OR ".join(["a CONTAINS 'b'"] * 60)).costly
    assert not parse_sql_filter("region CONTAINS 'a' AND price > 1").costly
    with pytest.raises(FilterExpressionError, match="CONTAINS counts 128 times"):
        parse_sql_filter(" OR ".join(["a CONTAINS 'b'"] * 70))


def test_expressions_of_many_groups_are_read_once() -> None:
    """Each receive brings its expression."""
    expressions = [f"price > {number}" for number in range(500)]
    found = [parse_sql_filter(each) for each in expressions]
    for number in range(100):
        parse_sql_filter(f"price > {number} OR " + "x" * 300 + " IS NULL")
    assert all(parse_sql_filter(each) is kept for each, kept in zip(expressions, found, strict=True))
