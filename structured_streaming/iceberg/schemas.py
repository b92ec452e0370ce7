"""A Delta table's columns as Iceberg's, and the ids that they keep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from structured_streaming.iceberg.report import NoMirrorError

_PRIMITIVES: Mapping[str, IcebergType] = {
    "string": StringType(),
    "long": LongType(),
    "integer": IntegerType(),
    "short": IntegerType(),
    "byte": IntegerType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
}
"""Iceberg's `timestamptz` has microseconds, and is UTC."""


def iceberg_schema(delta: str, known: Schema | None, last_id: int, schema_id: int) -> Schema:
    """The columns of Delta's `schemaString`, every one optional: readers fill what a file lacks with nulls.

    Ids are those of `known` by name; what it has not gets ids above `last_id`. Raises NoMirrorError.
    """
    ids = index_by_name(known) if known is not None else {}
    fields = json.loads(delta)["fields"]
    try:
        made = _Types(ids, itertools.count(last_id + 1)).fields(fields, "")
        schema = Schema(*made, schema_id=schema_id)
        index_by_name(schema)
    except ValueError as error:
        raise NoMirrorError(f"its columns cannot be those of an Iceberg table: {error}") from error
    return schema


def grew_from(schema: Schema, known: Schema) -> bool:
    """Whether all columns of `known` are there as they were: then its snapshots are read as before."""
    there, before = index_by_name(schema), index_by_name(known)
    return all(
        there.get(name) == number and _shape(schema.find_type(number)) == _shape(known.find_type(number))
        for name, number in before.items()
    )


def name_mapping(schema: Schema) -> str:
    """The value of `schema.name-mapping.default`."""
    return create_mapping_from_schema(schema).model_dump_json()


def _shape(kind: IcebergType) -> object:
    """A type without what is in it, which has a name of its own."""
    return kind if kind.is_primitive else type(kind)


class _Types:
    """Types with ids by the names of what they are of, as pyiceberg forms them; new ones ascend column by column."""

    def __init__(self, ids: Mapping[str, int], new: Iterator[int]) -> None:
        self._ids = ids
        self._new = new

    def fields(self, fields: list[dict[str, Any]], parent: str) -> list[NestedField]:
        return [self._field(field, f"{parent}{field['name']}") for field in fields]

    def _field(self, field: Mapping[str, Any], name: str) -> NestedField:
        number = self._id(name)
        comment = (field.get("metadata") or {}).get("comment")
        return NestedField(
            number, field["name"], self._type(field["type"], name), required=False, doc=comment
        )

    def _type(self, kind: Any, name: str) -> IcebergType:
        if isinstance(kind, str):
            return _primitive(kind, name)
        match kind["type"]:
            case "struct":
                return StructType(*self.fields(kind["fields"], f"{name}."))
            case "array":
                element = f"{name}.element"
                number = self._id(element)
                return ListType(number, self._type(kind["elementType"], element), element_required=False)
            case "map":
                key, value = f"{name}.key", f"{name}.value"
                ids = self._id(key), self._id(value)
                key_type, value_type = self._type(kind["keyType"], key), self._type(kind["valueType"], value)
                return MapType(ids[0], key_type, ids[1], value_type, value_required=False)
        raise NoMirrorError(f"its column {name} is of type {kind['type']}, which is none of Iceberg's")

    def _id(self, name: str) -> int:
        return self._ids[name] if name in self._ids else next(self._new)


def _primitive(kind: str, name: str) -> IcebergType:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return DecimalType(int(precision), int(scale))
    raise NoMirrorError(f"its column {name} is of type {kind}, which this mirror does not know")
