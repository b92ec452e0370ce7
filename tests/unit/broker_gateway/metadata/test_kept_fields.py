"""Fields that are only kept: one text for equal fields, bounded, and fit for other programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker_gateway.metadata.kept_fields import (
    MOST_BYTES,
    MOST_DEPTH,
    ConfigurationError,
    fields_of,
    shown_fields,
    text_of,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_equal_fields_are_equal_texts_and_come_back() -> None:
    fields = {"b": [1, {"d": None, "c": "\ud800é"}], "a": 1 << 70}
    text = text_of("group g", fields, strict=True)
    assert text == text_of("group g", dict(reversed(fields.items())), strict=True)
    assert text.isascii()
    assert fields_of(text) == fields == shown_fields(text)
    assert text_of("group g", {}, strict=True) == ""
    assert fields_of("") == {}


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_text_that_is_no_object_has_no_fields(text: str) -> None:
    assert fields_of(text) == {}


def test_what_is_kept_is_bounded() -> None:
    room = MOST_BYTES - len('{"new":""}')
    assert len(text_of("group g", {"new": "x" * room}, strict=True)) == MOST_BYTES
    with pytest.raises(
        ConfigurationError, match=rf"group g has {MOST_BYTES + 1} bytes .* in 'new': {MOST_BYTES} are"
    ):
        text_of("group g", {"new": "x" * (room + 1)}, strict=False)
    text_of("group g", {"new": nested(MOST_DEPTH)}, strict=True)
    for depth in (MOST_DEPTH + 1, 900):
        with pytest.raises(
            ConfigurationError, match=f"'new' of group g is nested more than {MOST_DEPTH} deep"
        ):
            text_of("group g", {"new": nested(depth)}, strict=False)


def test_a_number_that_json_does_not_have_is_kept_from_files_only() -> None:
    fields = {"new": [{"at": float("nan")}, 1.5], "b": float("inf")}
    with pytest.raises(ConfigurationError, match="new of topic t holds a number"):
        text_of("topic t", {"new": fields["new"]}, strict=True)
    text = text_of("topic t", fields, strict=False)
    assert text == '{"b":Infinity,"new":[{"at":NaN},1.5]}'
    assert shown_fields(text) == {"new": [{"at": None}, 1.5], "b": None}
    assert json.dumps(fields_of(text), sort_keys=True, separators=(",", ":")) == text
