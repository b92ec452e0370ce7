"""Avro bodies: types, versions, framing, and bytes of anybody."""

from __future__ import annotations

import copy
import datetime
import decimal
import io
import json
import random
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from structured_streaming.typed.avro_schema import AvroSchema
from structured_streaming.typed.declaration import AVRO, Declaration, Schema
from structured_streaming.typed.fields import SchemaError
from structured_streaming.typed.topic import TypedTopic
from tests.support.lakes.typed_batches import read

UTC = datetime.UTC
SUBJECT = "http://127.0.0.1:1/subjects/orders-value"
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
    ],
}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "ratio", "type": "float"},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}
LATER = copy.deepcopy(ORDER)
LATER["fields"].append({"name": "extra", "type": ["null", "double"], "default": None})
VALUE = {
    "id": 1 << 62,
    "note": "ä",
    "at": datetime.datetime(2026, 11, 25, 12, tzinfo=UTC),
    "day": datetime.date(2026, 11, 25),
    "price": decimal.Decimal("-12.34"),
    "hash": b"\x00\xff12",
    "colour": "BLUE",
    "lines": [{"sku": "a", "counts": {"x": 1, "y": None}}],
    "first": {"sku": "b", "counts": {}},
    "ratio": 0.5,
    "local": 7,
    "either": "x",
}


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"local-timestamp-millis"', '"none"'))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), value)
    return stream.getvalue()


def topic(*schemas: Any, registry: str = "", ids: tuple[int, ...] = ()) -> TypedTopic:
    versions = [
        Schema(at + 1, json.dumps(schema), id=ids[at] if ids else 0) for at, schema in enumerate(schemas)
    ]
    return TypedTopic(Declaration("orders", "typed_orders", AVRO, tuple(versions), registry=registry))


def test_types_of_columns_and_their_values() -> None:
    schema = AvroSchema(json.dumps(ORDER))
    assert {field.name: str(field.type) for field in schema.fields} == {
        "id": "int64",
        "note": "string",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "price": "decimal128(10, 2)",
        "hash": "binary",
        "colour": "string",
        "lines": "list<item: struct<sku: string, counts: map<string, int32>>>",
        "first": "struct<sku: string, counts: map<string, int32>>",
        "ratio": "float",
        "local": "int64",
    }
    assert schema.left_out == ["either: a union of several types"]
    ((row, version, reason),) = read(topic(ORDER), written(ORDER, VALUE))
    assert (version, reason) == (1, None)
    expected: dict[str, Any] = {name: value for name, value in VALUE.items() if name != "either"}
    expected["lines"] = [{"sku": "a", "counts": [("x", 1), ("y", None)]}]
    expected["first"] = {"sku": "b", "counts": []}
    assert row == expected


def test_a_body_alone_is_of_the_newest_schema_that_reads_all_of_it() -> None:
    old, new = written(ORDER, VALUE), written(LATER, {**VALUE, "extra": 1.5})
    made = topic(ORDER, LATER)
    found = read(made, old, new, new[:-1], old + b"\x00" * 9, b"")
    assert [(version, row["extra"]) for row, version, _ in found] == [
        (1, None),
        (2, 1.5),
        (0, None),
        (0, None),
        (0, None),
    ]
    assert all(reason for _, version, reason in found if version == 0)
    marked = b"\xc3\x01" + bytes.fromhex(
        fingerprint(to_parsing_canonical_form(fastavro.parse_schema(ORDER)), "CRC-64-AVRO")
    )
    assert read(made, marked + old)[0][1] == 1
    assert read(made, marked + new)[0][1] == 0


def test_a_body_with_a_registrys_id_is_of_that_schema() -> None:
    old, new = written(ORDER, VALUE), written(LATER, {**VALUE, "extra": 1.5})
    made = topic(ORDER, LATER, registry=SUBJECT, ids=(7, 300))
    found = read(made, b"\0\0\0\0\x07" + old, b"\0\0\0\x01\x2c" + new, b"\0\0\0\0\x08" + old, old, b"\0\0\0")
    assert [version for _, version, _ in found] == [1, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "none of Avro"),
        ("[" * 50_000, "none of Avro"),
        ('"int"', "none of a record"),
        ('{"type":"record","name":"A","fields":[{"name":"b","type":"nonsense"}]}', "nonsense"),
        ('{"type":"record","name":"A","fields":[]}', "no field"),
        ('{"type":"record","name":"A","fields":[{"name":"next","type":["null","A"]}]}', "contains itself"),
        (
            '{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"array","items":"null"}}]}',
            "takes no bytes",
        ),
        (
            '{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"array","items":'
            '{"type":"record","name":"E","fields":[]}}}]}',
            "takes no bytes",
        ),
    ],
)
def test_schemas_that_no_table_can_be_made_of(schema: str, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        AvroSchema(schema)
    assert problem in str(raised.value)


def test_damaged_bodies_have_a_row_or_a_reason_each() -> None:
    rng = random.Random(3)
    good = written(ORDER, VALUE)
    bodies = []
    for _ in range(2000):
        body = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        bodies.append(bytes(body[: rng.choice((len(body), rng.randrange(len(body))))]))
    made = topic(ORDER, LATER)
    found = read(made, *bodies)
    assert len(found) == len(bodies)
    assert all((version == 0) == (reason is not None) for _, version, reason in found)
    assert 20 < sum(version > 0 for _, version, _ in found) < 1900
    for at in rng.sample(range(len(bodies)), 50):
        assert repr(read(made, bodies[at])[0]) == repr(found[at])


def test_a_number_of_megabytes_is_refused_at_once() -> None:
    schema = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38}}],
    }
    huge = written(
        {"type": "record", "name": "A", "fields": [{"name": "n", "type": "bytes"}]},
        {"n": b"\x7f" * (3 << 20)},
    )
    ((_, version, reason),) = read(topic(schema), huge)
    assert version == 0
    assert "a decimal of 3,145,728 bytes" in str(reason)


def test_lists_of_wide_records_are_bounded_by_what_they_would_take() -> None:
    fields = [{"name": f"f{n}", "type": ["null", "long"]} for n in range(100)]
    wide = {
        "type": "record",
        "name": "A",
        "fields": [
            {
                "name": "items",
                "type": {
                    "type": "array",
                    "items": ["null", {"type": "record", "name": "B", "fields": fields}],
                },
            }
        ],
    }
    made = topic(wide)
    many = written(wide, {"items": [None] * 200_000})
    assert len(many) < 210_000
    ((_, version, reason),) = read(made, many)
    assert version == 0
    assert "at most 268,435,456 are read" in str(reason)
