"""What the console makes of text from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker_gateway.cli.console.text import (
    BODY,
    cut_said,
    distinct,
    duration,
    given,
    number,
    rate,
    shown,
    shown_body,
    size,
    when,
    when_ms,
)


@pytest.mark.parametrize("none", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_unknown(none: float) -> None:
    assert rate(none) == duration(none) == "unknown"


def test_names_that_are_cut_alike_are_told_apart() -> None:
    names: list[str] = []
    for _ in range(3):
        names.append(distinct("a…", names))
    assert names == ["a…", "a… (2)", "a… (3)"]


@pytest.mark.parametrize("value", [None, 7, True, ["x"], {"x": "y"}])
def test_what_a_tab_says_of_a_field_may_be_anything(value: object) -> None:
    assert given(value, 9) == ""
    assert given("  abc ", 4) == "ab"


def test_what_hides_or_reorders_is_visible_and_long_text_is_cut() -> None:
    assert shown("a\u202eb\x00\x1b[31m\u2066c\n") == r"a\u202eb\x00\x1b[31m\u2066c\n"
    assert shown("<b>é</b>") == "<b>é</b>"
    assert shown(None) == ""
    assert shown("x" * 300, 10) == "xxxxxxxxxx… (300 characters)"
    assert shown("\u202e" * 10, 10) == r"\u202e" * 10


def test_a_body_keeps_its_lines_and_has_an_end() -> None:
    assert shown_body(b"a\n\tb\r\xff\x00") == "a\n\tb\\r\\xff\\x00"
    assert shown_body(None) == ""
    assert len(shown_body(b"x" * (BODY + 10))) == BODY
    assert cut_said(1) == "1 byte"
    assert cut_said(BODY) == "65,536 bytes"
    assert cut_said(1_000_000) == "1,000,000 bytes, of which the first 65,536 are shown"
    assert cut_said(None) == "no body is known"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (None, ""),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 62, "4,096.0 PiB"),
    ],
)
def test_sizes(count: float | None, said: str) -> None:
    assert size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, ""), (0.25, "0.2 s"), (60, "1 min"), (61, "1 min 1 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_numbers_and_times() -> None:
    assert number(1234567) == "1,234,567"
    assert number(None) == rate(None) == "unknown"
    assert rate(1234.56) == "1,234.6/s"
    assert when(datetime(2026, 11, 25, 8, 0, 0, 123_999, UTC)) == "2026-11-25 08:00:00.123"
    assert when(None) == when_ms(0) == when_ms(1 << 62) == ""
    assert when_ms(1_000) == "1970-01-01 00:00:01.000"
