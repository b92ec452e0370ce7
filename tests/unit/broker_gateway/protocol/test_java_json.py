"""JSON as fastjson has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.protocol import java_json
from broker_gateway.protocol.errors import BodyError
from broker_gateway.protocol.java_json import MAX_TOKENS, JsonObject

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXT
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(st.integers(-99, 99), inner, max_size=4)
    ),
    max_leaves=12,
)


def keys_as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): keys_as_texts(each) for key, each in value.items()}
    return [keys_as_texts(each) for each in value] if isinstance(value, list) else value


@given(VALUES, st.booleans())
def test_what_is_written_is_read(value: Any, standard: bool) -> None:
    assert java_json.loads(java_json.dumps(value, standard=standard)) == keys_as_texts(value)


@given(VALUES)
def test_standard_json_is_standard_and_ascii(value: Any) -> None:
    written = java_json.dumps(value, standard=True)
    assert json.loads(written) == keys_as_texts(value)
    assert written.isascii()


@pytest.mark.parametrize(
    ("value", "plain", "standard"),
    [
        ({0: "a:1", 10: "b", 2: "c"}, '{0:"a:1",2:"c",10:"b"}', '{"0":"a:1","2":"c","10":"b"}'),
        ({"b": 1, "a": None, "é": "ü"}, '{"b":1,"é":"ü"}', '{"b":1,"\\u00e9":"\\u00fc"}'),
        ({"x": [True, None]}, '{"x":[true,null]}', '{"x":[true,null]}'),
        ("\ud800", '"?"', '"\\ud800"'),
    ],
)
def test_written_form(value: Any, plain: str, standard: str) -> None:
    assert java_json.dumps(value).decode() == plain
    assert java_json.dumps(value, standard=True).decode() == standard


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1 :"b", -2: {3:"{4:5}"}}', {"0": "a", "1": "b", "-2": {"3": "{4:5}"}}),
        ('[{0:"say \\"{1:2}\\" \\\\"},{7:1}]', [{"0": 'say "{1:2}" \\'}, {"7": 1}]),
        ("{table:{a_1:'x'}}".replace("'", '"'), {"table": {"a_1": "x"}}),
    ],
)
def test_bare_keys_are_read(text: str, value: Any) -> None:
    assert java_json.loads(text.encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{0:}",
        b'{"a":Infinity}',
        b"\xff",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"a" "b"}',
        b'"' + b'\\"' * 2_000_000,
        b'{0:"' + b'\\"' * 2_000_000,
        b"{ " + b" " * 2_000_000,
        b"{0" * 500_000,
        b"[" + b"{}," * (MAX_TOKENS // 2 + 1) + b"1]",
    ],
)
def test_what_cannot_be_read_is_an_error_soon(data: bytes) -> None:
    with pytest.raises(BodyError):
        java_json.loads(data)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda o: o.text("n"), "n of it is 5, not a text"),
        (lambda o: o.text("missing"), "it has no missing"),
        (lambda o: o.integer("t", 0), "t of it is 'x', not an integer"),
        (lambda o: o.integer("b", 0), "b of it is True"),
        (lambda o: o.integer("huge", 0), "not an integer of 64 bits"),
        (lambda o: o.boolean("n"), "not true or false"),
        (lambda o: o.object("n"), "n of it is 5, not a JSON object"),
        (lambda o: o.array("o"), "an object of 1, not an array"),
        (lambda o: o.texts("a"), "a of it holds 1, not a text"),
        (lambda o: o.text_map("o"), "k of o of it is 1, not a text"),
        (lambda o: o.integer_keys("o"), "key 'k' in o of it is no integer"),
    ],
)
def test_members_of_a_wrong_type_are_named(call: Any, named: str) -> None:
    members = {"n": 5, "t": "x", "b": True, "huge": 1 << 63, "o": {"k": 1}, "a": [1]}
    with pytest.raises(BodyError) as caught:
        call(JsonObject(members, "it"))
    assert named in str(caught.value)


def test_absent_and_null_members_have_their_default() -> None:
    value = JsonObject({"null": None, "n": "12"}, "it")
    assert value.text("null", "d") == "d"
    assert value.optional_text("null") is None
    assert value.integer("null", 3) == 3
    assert value.integer("n", 0) == 12
    assert value.object("null").members == {}
    assert value.array("none") == []
