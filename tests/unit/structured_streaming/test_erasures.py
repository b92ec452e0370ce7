"""Which records of `erasures` are settled: by where a row stands, and where the record that it names does."""

from __future__ import annotations

import pyarrow as pa

from structured_streaming.erased import Erased
from structured_streaming.erasures import BY_HAND, COLUMNS, Naming
from structured_streaming.tables import ERASURES

SCHEMA = pa.schema([(name, ERASURES.schema.field(name).type) for name in COLUMNS])


def naming(*rows: tuple[str, str, int, str, str, int]) -> Naming:
    return Naming(pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], SCHEMA))


def offsets(erased: Erased, log_id: str = "l") -> list[int]:
    found: list[int] = erased.of(("b", log_id)).tolist()
    return found


ROWS = (("b", "l", 500, "b", "l", 100), ("b", "l", 500, "b", "l", 200), ("b", "l", 900, "b", "l", 300))


def test_nothing_is_settled_at_first() -> None:
    assert offsets(naming(*ROWS).unsettled({})) == [100, 200, 300]
    assert naming(*ROWS).settling({}, {}) == {}


def test_a_row_beyond_what_the_lake_had_then_is_not() -> None:
    assert naming(*ROWS).settling({("b", "l"): 900, ("x", "y"): 1}, {}) == {"b/l": 900}
    assert offsets(naming(*ROWS).unsettled({"b/l": 900})) == [300]
    assert offsets(naming(*ROWS).unsettled({"b/l": 901})) == []


def test_a_record_beyond_what_the_lake_had_of_its_log_is_not() -> None:
    both = naming(("b", "l", 500, "b", "m", 7000), ("b", "l", 500, "b", "l", 100))
    settled = both.settling({("b", "l"): 600, ("b", "m"): 7000}, {"b/l": 300})
    assert settled == {"b/l": 600, "b/m": 7000}
    assert offsets(both.unsettled(settled), "m") == [7000]
    assert offsets(both.unsettled(settled)) == []
    assert not len(both.unsettled({"b/l": 600, "b/m": 7001}))


def test_a_row_that_a_command_adds_is_new_whatever_was_settled() -> None:
    earlier = (
        ("", "one", 0, "b", "l", 50),
        ("", "two", 0, "b", "l", 5000),
    )  # of versions with a log_id for each
    by_hand = naming(*ROWS, *earlier, (*BY_HAND, 0, "b", "l", 51), (*BY_HAND, 1, "b", "l", 52))
    assert offsets(by_hand.unsettled({"b/l": 1000})) == [50, 51, 52, 5000]
    settled = by_hand.settling({("b", "l"): 1000}, {})
    assert settled == {"b/l": 1000, "/one": 1, "/two": 1, "/": 2}
    assert offsets(by_hand.unsettled(settled)) == [5000]
    more = naming(*ROWS, *earlier, (*BY_HAND, by_hand.next_by_hand(), "b", "l", 53))
    assert offsets(more.unsettled(settled)) == [53, 5000]


def test_what_is_stated_is_not_stated_again() -> None:
    by_hand = naming(*ROWS, *((*BY_HAND, number, "b", "l", number) for number in range(500)))
    settled = by_hand.settling({("b", "l"): 1000}, {})
    assert settled == {"b/l": 1000, "/": 500}
    assert by_hand.settling({("b", "l"): 1000}, settled) == {}
    assert by_hand.settling({("b", "l"): 1001}, settled) == {"b/l": 1001}


def test_a_record_that_is_named_again_stays_settled() -> None:
    assert offsets(naming(*ROWS, ("b", "l", 2000, "b", "l", 100)).unsettled({"b/l": 1000})) == []
