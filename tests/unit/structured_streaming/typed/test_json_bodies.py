"""JSON bodies by JSON Schema: what fits, what does not and why; a body's row is the same whatever bodies are beside it."""

from __future__ import annotations

import datetime
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structured_streaming.typed.declaration import Schema
from structured_streaming.typed.fields import SchemaError
from structured_streaming.typed.json_bodies import JsonBodies
from structured_streaming.typed.json_schema import JsonSchema
from tests.suite.evidence import rounds

UTC = datetime.UTC
ORDER = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "price": {"type": "number"},
        "paid": {"type": "boolean", "nullable": True},
        "at": {"type": "string", "format": "date-time"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "colour": {"enum": ["red", "blue"]},
        "level": {"type": "integer", "enum": [1, 2]},
        "buyer": {"$ref": "#/$defs/buyer"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["sku"],
                "properties": {"sku": {"type": "string"}, "until": {"type": "string", "format": "date-time"}},
            },
        },
        "either": {"type": ["string", "integer"]},
        "anything": True,
        "tree": {"$ref": "#/$defs/tree"},
        "words": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {
        "buyer": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
    },
}
GOOD = b'{"id":1,"note":"n"}'


def decoder(*schemas: Any) -> JsonBodies:
    return JsonBodies([Schema(at + 1, json.dumps(schema)) for at, schema in enumerate(schemas)])


def decoded(body: bytes, *schemas: Any) -> tuple[dict[str, Any], int, str | None]:
    found = decoder(*(schemas or (ORDER,))).decode(pa.array([body], pa.binary()))
    return found.values.to_pylist()[0], found.versions[0], found.reasons[0]


def test_types_of_columns_and_what_has_none() -> None:
    schema = JsonSchema(json.dumps(ORDER))
    assert {field.name: str(field.type) for field in schema.fields} == {
        "id": "int64",
        "note": "string",
        "price": "double",
        "paid": "bool",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "colour": "string",
        "level": "int64",
        "buyer": "struct<name: string, age: int64>",
        "lines": "list<item: struct<sku: string, until: timestamp[us, tz=UTC]>>",
    }
    assert schema.left_out == [
        "either: several types",
        "anything: anything fits it",
        "tree.left: it contains itself",
        "tree: none of its properties has a column",
        "words: an object without properties",
    ]


def test_a_message_with_everything() -> None:
    value = {
        "id": -(1 << 63),
        "note": "ä\u0000\n",
        "price": 1e-7,
        "paid": None,
        "at": "2026-11-25T12:00:00.1234567+05:30",
        "day": "2024-02-29",
        "colour": "blue",
        "level": 2,
        "buyer": {"name": "x", "unknown": [[{}]]},
        "lines": [{"sku": "a", "until": "0001-01-01T00:00:00Z"}, None, {"sku": "b"}],
        "either": 7,
    }
    row, version, reason = decoded(json.dumps(value, indent=2).replace("\n", "\r\n").encode())
    assert (version, reason) == (1, None)
    assert row == {
        "id": -(1 << 63),
        "note": "ä\u0000\n",
        "price": 1e-7,
        "paid": None,
        "at": datetime.datetime(2026, 11, 25, 6, 30, 0, 123456, UTC),
        "day": datetime.date(2024, 2, 29),
        "colour": "blue",
        "level": 2,
        "buyer": {"name": "x", "age": None},
        "lines": [
            {"sku": "a", "until": datetime.datetime(1, 1, 1, tzinfo=UTC)},
            None,
            {"sku": "b", "until": None},
        ],
    }


BAD = {
    b"": "no JSON object",
    b" ": "no JSON object",
    b"[]": "no JSON object",
    b"7": "no JSON object",
    b"null": "no JSON object",
    b"\xef\xbb\xbf" + GOOD: "no JSON object",
    b"\xff": "no UTF-8",
    b'{"id":1,"note":"\xc3"}': "no UTF-8",
    b'{"id":1,"note":"\xed\xa0\x80"}': "no UTF-8",
    b'{"id":1,"note":"\\ud800"}': "surrogate",
    b'{"id":1,"note":"a\nb"}': "encoding in string",
    b'{"id":1,"note":"n"}\x00}': "NUL",
    b'{"id":1,"note":"n"}{"id":2,"note":"n"}': "2 JSON values",
    b'{"id":1,"note":"n"': "no JSON object",
    b'{"id":1,"note":"n"}}': "it is no JSON: ",
    b'{"id":1,,"note":"n"}': "it is no JSON: ",
    b'{"id":1,"id":1,"note":"n"}': "id stands twice",
    b'{"note":"n"}': "id is required",
    b'{"id":null,"note":"n"}': "id is required",
    b'{"id":"1","note":"n"}': "id is string, not number",
    b'{"id":1.0,"note":"n"}': "id is no integer of 64 bits: 1.0",
    b'{"id":9223372036854775808,"note":"n"}': "id is no integer of 64 bits: 9223372036854775808",
    b'{"id":1,"note":"n","level":1e3}': "level is no integer of 64 bits: 1e3",
    b'{"id":1,"note":"n","buyer":{"name":"b","age":1.5}}': "buyer.age is no integer of 64 bits: 1.5",
    b'{"id":true,"note":"n"}': "id is boolean, not number",
    b'{"id":1,"note":7}': "note is number, not string",
    b'{"id":1,"note":"n","lines":[{"sku":1}]}': "lines[].sku is number, not string",
    b'{"id":1,"note":"n","price":NaN}': "price is no finite number",
    b'{"id":1,"note":"n","price":-Infinity}': "price is no finite number",
    b'{"id":1,"note":"n","price":1e999}': "it has a number that is too big",
    b'{"id":1,"note":"n","price":' + b"9" * 400 + b"}": "price is no finite number",
    b'{"id":1,"note":"n","at":"2026-02-30T00:00:00Z"}': "at is no date-time",
    b'{"id":1,"note":"n","at":"2026-02-28T00:00:00"}': "at is no date-time",
    b'{"id":1,"note":"n","at":"0001-01-01T00:00:00+10:00"}': "at is no date-time",
    b'{"id":1,"note":"n","at":"9999-12-31T23:59:59-10:00"}': "at is no date-time",
    b'{"id":1,"note":"n","at":"yesterday"}': "at is no date-time",
    b'{"id":1,"note":"n","day":"2023-02-29"}': "day is no date",
    b'{"id":1,"note":"n","colour":"mauve"}': "colour is none of the values",
    b'{"id":1,"note":"n","level":3}': "level is none of the values",
    b'{"id":1,"note":"n","buyer":[]}': "buyer is array, not object",
    b'{"id":1,"note":"n","lines":[{"sku":"a"},{}]}': "lines[].sku is required",
    b'{"id":1,"note":"n","lines":[{"sku":"a","until":"?"}]}': "lines[].until is no date-time",
    b'{"id":1,"note":"n","lines":{"sku":"a"}}': "lines is object, not array",
    b'{"id":1,"note":"n","x":' + b"[" * 100_000 + b"}": "",
}
FINE = [
    GOOD,
    b'\n\t {"id":2,"note":null}\r\n',
    b'{"id":3,"note":"{\\"}[","x":"\\u0000"}',
    b'{"id":4,"note":"n","x":1,"x":2}',
    b'{"id":5,"note":"n","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"\\u0069d":6,"note":"n"}',
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_what_does_not_fit_has_a_reason(body: bytes) -> None:
    row, version, reason = decoded(body)
    assert version == 0
    assert reason is not None
    assert BAD[body] in reason
    assert not any(word in reason for word in ("Column(", "Failed to convert", "parse error")), (
        "Arrow's words"
    )
    assert len(reason) <= 300
    assert set(row.values()) == {None}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"counts":[[{"n":1},{"m":2.5}]]}', "counts[][].m is no integer of 64 bits: 2.5"),
        (b'{"counts":[[{"n":"1"}]]}', "counts[][].n is string, not number"),
        (b'{"many":[1,2,3e1]}', "many[] is no integer of 64 bits: 3e1"),
        (b'{"good":2,"last":0.0}', "last is no integer of 64 bits: 0.0"),
    ],
)
def test_a_reason_names_the_field_wherever_it_is(body: bytes, reason: str) -> None:
    number = {"type": "integer"}
    inner = {"type": "object", "properties": {"n": number, "m": number}}
    counts = {"type": "array", "items": {"type": "array", "items": inner}}
    properties = {
        "counts": counts,
        "good": number,
        "many": {"type": "array", "items": number},
        "last": number,
    }
    assert decoded(body, {"type": "object", "properties": properties})[2] == reason


def test_a_body_is_read_the_same_beside_any_others() -> None:
    made = decoder(ORDER)
    bodies = [*BAD, *FINE]
    alone = {}
    for body in bodies:
        found = made.decode(pa.array([body], pa.binary()))
        alone[body] = (found.values.to_pylist()[0], found.versions[0], found.reasons[0])
    assert sum(version > 0 for _, version, _ in alone.values()) == len(FINE)
    rng = random.Random(7)
    for _ in range(rounds(5, 20)):
        rng.shuffle(bodies)
        found = made.decode(pa.array(bodies, pa.binary()))
        together = zip(found.values.to_pylist(), found.versions, found.reasons, strict=True)
        assert list(together) == [alone[body] for body in bodies]


def oracle(body: bytes) -> int | None:
    """The id of a message that has one, by Python's own reader."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len([name for name, _ in pairs if name == "id"]) > 1:
            raise ValueError("twice")
        return dict(pairs)

    try:
        value = json.loads(body.decode(), parse_constant=refuse, object_pairs_hook=unique, parse_float=str)
    except ValueError:
        return None
    found = value.get("id") if isinstance(value, dict) else None
    whole = isinstance(found, int) and not isinstance(found, bool) and -(1 << 63) <= found < 1 << 63
    return found if whole else None


def test_damaged_bodies_are_read_as_python_reads_them() -> None:
    """Thousands together, of which most are bad: rows are those of the bodies that are good, in their places."""
    rng = random.Random(11)
    tokens = [
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\\",
        b"0",
        b"-",
        b'{"id":9}',
        b"null",
        b"\xc3",
        b" ",
    ]
    bodies = []
    for number in range(rounds(1000, 3000)):
        body = b'{"id":%d,"s":"a}{b","l":[1,{"id":2}]}' % number
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(body) + 1)
            body = body[:at] + rng.choice(tokens) + body[at + rng.randrange(3) :]
        bodies.append(body)
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    found = decoder(schema).decode(pa.array(bodies, pa.binary()))
    expected = [oracle(body) for body in bodies]
    assert found.values["id"].to_pylist() == expected
    assert [reason is None for reason in found.reasons] == [value is not None for value in expected]
    assert 500 < sum(value is None for value in expected) < 2500


def test_a_message_has_the_newest_version_that_it_fits() -> None:
    first = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"enum": ["x"]}, "gone": {"type": "integer"}},
    }
    second = {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "string"}},
    }
    assert decoded(b'{"a":"x"}', first, second)[1:] == (1, None)
    assert decoded(b'{"a":"x","b":"b"}', first, second)[1:] == (2, None)
    assert decoded(b'{"a":"y","b":"b","gone":1}', first, second) == ({"a": "y", "gone": 1, "b": "b"}, 2, None)
    assert decoded(b'{"a":"y"}', first, second)[1:] == (0, "b is required")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("true", "none of an object"),
        ('{"type":"string"}', "none of an object"),
        ('{"type":"object","properties":{}}', "none of an object"),
        ('{"properties":{"a":{"type":"colour"}}}', "'colour', which JSON Schema does not know"),
        ('{"properties":{"a":{"$ref":"other.json"}}}', "leads out of the schema"),
        ('{"properties":{"a":{"$ref":"#/no/where"}}}', "names nothing"),
        ('{"properties":{"a":{"enum":7}}}', "no list of values"),
        ('{"properties":{"id":{"type":"string"},"Id":{"type":"string"}}}', "one name to SQL"),
        ('{"properties":{"value_topic":{"type":"string"},"topic":{"type":"string"}}}', "one name to SQL"),
        ('{"properties":{"a":{"properties":{"b c":{"type":"string"}}}}}', "'b c' of a cannot be the name"),
    ],
)
def test_schemas_that_no_table_can_be_made_of(schema: str, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        JsonSchema(schema)
    assert problem in str(raised.value)


def test_schemas_that_grow_without_end_are_refused() -> None:
    wide = {"properties": {f"f{n}": {"type": "string"} for n in range(501)}}
    with pytest.raises(SchemaError, match="at most 500"):
        JsonSchema(json.dumps(wide))
    layers: dict[str, Any] = {"l0": {"properties": {"x": {"type": "string"}}}}
    for n in range(1, 12):
        layers[f"l{n}"] = {"properties": {name: {"$ref": f"#/$defs/l{n - 1}"} for name in "abcdefgh"}}
    with pytest.raises(SchemaError, match="leads to more than"):
        JsonSchema(json.dumps({"$ref": "#/$defs/l11", "$defs": layers}))
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(SchemaError, match="none of an object"):
        JsonSchema(json.dumps(deep))


@pytest.mark.parametrize(
    "text",
    [
        r'{"properties": {"a": {"type": [{"x": 1}]}}}',
        r'{"properties": {"a": {"type": ["string", ["null"]]}}}',
        r'{"properties": {"a": {"type": 7}}}',
        r'{"properties": {"\ud800": {"type": "string"}}}',
        r'{"properties": {"a": {"properties": {"\ud800": {"type": "string"}}}}}',
    ],
)
def test_a_schema_of_a_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        JsonSchema(text)


_WORDS = ["type", "properties", "required", "items", "enum", "const", "format", "nullable", "anyOf", "oneOf", "$ref", "#", "#/properties/a", "object", "array", "string", "integer", "number", "boolean", "null", "date", "date-time", "a", "b"]  # fmt: skip
_ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_WORDS) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from("ab"), _ANYTHING, min_size=1), _ANYTHING)
def test_whatever_a_schema_says_it_makes_columns_or_is_refused(properties: Any, body: Any) -> None:
    """A registry's schemas are anybody's."""
    text = json.dumps({"type": "object", "properties": properties})
    try:
        bodies = JsonBodies([Schema(1, text)])
    except SchemaError:
        return
    found = bodies.decode(pa.array([json.dumps({"a": body}).encode(), GOOD], pa.binary()))
    assert len(found.values) == len(found.reasons) == 2
