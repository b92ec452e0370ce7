"""Columns of a Delta table as Iceberg's: every type, ids that stay, names that lead to files without ids."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema as DeltaSchema
from pyiceberg.schema import Schema

from structured_streaming.iceberg.report import NoMirrorError
from structured_streaming.iceberg.schemas import grew_from, iceberg_schema, name_mapping
from structured_streaming.tables import MESSAGES, TABLES, TIMESTAMP


def schema(arrow: pa.Schema, known: Schema | None = None, last_id: int = 0) -> Schema:
    return iceberg_schema(DeltaSchema.from_arrow(arrow).to_json(), known, last_id, 1)


def fields(*columns: tuple[str, Any]) -> pa.Schema:
    return pa.schema(columns)


def test_all_types_and_the_comments_of_columns() -> None:
    found = schema(MESSAGES.schema)
    kinds = {field.name: str(field.field_type) for field in found.fields}
    assert kinds["keys"] == "list<string>"
    assert kinds["properties"] == "map<string, string>"
    assert kinds["born_timestamp"] == "timestamptz"
    assert kinds["body"] == "binary"
    assert "struct<" in kinds["origin"]
    assert {field.name: field.doc for field in found.fields} == {c.name: c.comment for c in MESSAGES.columns}
    assert not any(field.required for field in found.fields)
    others = schema(
        fields(
            ("a", pa.decimal128(12, 3)),
            ("b", pa.float32()),
            ("c", pa.float64()),
            ("d", pa.date32()),
            ("e", pa.int8()),
            ("f", pa.int16()),
            ("g", pa.list_(pa.map_(pa.string(), pa.struct([("h", TIMESTAMP)])))),
        )
    )
    assert [str(field.field_type) for field in others.fields][:6] == [
        "decimal(12, 3)",
        "float",
        "double",
        "date",
        "int",
        "int",
    ]
    assert others.find_type("g.element.value.h") == found.find_type("born_timestamp")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_ids_and_a_mapping_of_all_names(name: str) -> None:
    found = schema(TABLES[name].schema)
    assert sorted(set(found.field_ids)) == list(range(1, found.highest_field_id + 1))

    def ids(mapping: list[dict[str, Any]]) -> list[int]:
        return [each["field-id"] for each in mapping] + [
            number for each in mapping for number in ids(each.get("fields") or [])
        ]

    assert sorted(ids(json.loads(name_mapping(found)))) == sorted(set(found.field_ids))


def test_known_columns_keep_their_ids_wherever_they_stand() -> None:
    before = schema(fields(("a", pa.string()), ("b", pa.struct([("c", pa.int64())]))))
    after = schema(
        fields(
            ("z", pa.string()), ("b", pa.struct([("y", pa.int32()), ("c", pa.int64())])), ("a", pa.string())
        ),
        before,
        7,
    )
    assert {name: after.find_field(name).field_id for name in ("a", "b", "b.c")} == {
        name: before.find_field(name).field_id for name in ("a", "b", "b.c")
    }
    assert {after.find_field("z").field_id, after.find_field("b.y").field_id} == {8, 9}
    assert grew_from(after, before)


@pytest.mark.parametrize(
    "columns",
    [
        (("a", pa.string()),),
        (("a", pa.int64()), ("b", pa.list_(pa.string()))),
        (("a", pa.string()), ("b", pa.string())),
        (("a", pa.string()), ("b", pa.list_(pa.int32()))),
        (("a", pa.string()), ("b", pa.map_(pa.string(), pa.string()))),
    ],
)
def test_columns_that_went_or_are_of_another_type_did_not_grow(columns: tuple[tuple[str, Any], ...]) -> None:
    before = schema(fields(("a", pa.string()), ("b", pa.list_(pa.string()))))
    assert not grew_from(schema(fields(*columns), before, 3), before)


@pytest.mark.parametrize("kind", ["variant", "interval day", "void", {"type": "udt"}])
def test_a_type_that_is_not_known_is_named(kind: object) -> None:
    text = json.dumps(
        {"type": "struct", "fields": [{"name": "odd", "type": kind, "nullable": True, "metadata": {}}]}
    )
    with pytest.raises(NoMirrorError, match="its column odd is of type"):
        iceberg_schema(text, None, 0, 0)


def test_names_that_iceberg_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(NoMirrorError, match="cannot be those of an Iceberg table"):
        schema(fields(("a.b", pa.string()), ("a", pa.struct([("b", pa.string())]))))
