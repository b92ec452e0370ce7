"""Avro's schemas as fields with types.

| Avro | column |
|---|---|
| `boolean`, `int`, `long`, `float`, `double`, `string`, `bytes` | boolean, int, bigint, float, double, string, binary |
| `fixed`, `enum` | binary, string |
| `record`, `array`, `map` | struct, array, map |
| a union of one type and null | that of the type |
| `date`; `timestamp-millis`, `timestamp-micros`; `decimal` of up to 38 digits | date; timestamp; decimal |
| other logical types | that of the type below |
| a union of several types, null alone | none: left out |
| a type that contains itself, an array of what takes no bytes | the schema is refused: reading could go on without end |
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from structured_streaming.errors import LakeError
from structured_streaming.extras import AVRO, lacking
from structured_streaming.tables import TIMESTAMP
from structured_streaming.typed.fields import MOST_DEPTH, SchemaError, TypedField, check_fields, leaves
from structured_streaming.typed.python_values import LEAF_BYTES

_PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_BYTES = {"null": 0, "float": 4, "double": 8}
"""Least bytes of a value; of others one."""
_DATES = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
}
_MOST_DIGITS = 38
_MOST_NODES = 5000
_REFERENCES = ("fields", "items", "values", "type")


class AvroSchema:
    """A version of a schema: `parsed` for fastavro, `fields`, `left_out`, `bytes_of_lists` as of `Decoder`.

    Raises SchemaError, LakeError without fastavro.
    """

    def __init__(self, text: str) -> None:
        if said := lacking("a schema in Avro", AVRO):
            raise LakeError(said)
        from fastavro import parse_schema
        from fastavro.schema import expand_schema, fingerprint, to_parsing_canonical_form

        self.left_out: list[str] = []
        self.bytes_of_lists = 0.0
        self._nodes = 0
        try:
            given = json.loads(text)
            # of the bytes of a decimal, which may be any number of them, fastavro would make one number first
            self.parsed: Any = parse_schema(_plain(given, keep_decimals=False))
            expanded = expand_schema(_plain(given, keep_decimals=True))
            digest = fingerprint(to_parsing_canonical_form(self.parsed), "CRC-64-AVRO")
        except SchemaError:
            raise
        except Exception as error:
            raise SchemaError(f"the schema is none of Avro: {type(error).__name__}: {error}") from error
        self.fingerprint = bytes.fromhex(digest)
        """Of single-object encoding."""
        if not isinstance(expanded, dict) or expanded.get("type") not in ("record", "error"):
            raise SchemaError("the schema is none of a record")
        kind, _ = self._type(expanded, "the message", 0)
        if kind is None:
            raise SchemaError("the schema has no field that can be a column")
        self.fields = [TypedField(field.name, field.type) for field in kind]
        check_fields(self.fields)

    def _type(self, schema: Any, place: str, depth: int) -> tuple[pa.DataType | None, int]:
        """Type of the column, None without one; least bytes of a value."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise SchemaError(f"the schema leads to more than {_MOST_NODES:,} fields")
        if depth > MOST_DEPTH:
            raise SchemaError(f"{place} is more than {MOST_DEPTH} levels deep")
        if isinstance(schema, list):
            return self._union(schema, place, depth)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, place, depth + 1)
        least = _BYTES.get(kind, 1)
        if kind == "null":
            return self._without(place, "it is null alone"), 0
        if kind in ("record", "error"):
            return self._record(schema, place, depth)
        if kind == "array":
            item, size = self._type(schema["items"], f"{place}[]", depth + 1)
            if not size:
                raise SchemaError(
                    f"{place} is an array of what takes no bytes, which could have any number of them"
                )
            self._list(item, size)
            return (None if item is None else pa.list_(item)), least
        if kind == "map":
            item, size = self._type(schema["values"], f"{place}{{}}", depth + 1)
            self._list(item, size + 1)
            return (None if item is None else pa.map_(pa.string(), item)), least
        if kind == "enum":
            return pa.string(), least
        if kind == "fixed":
            return _decimal(schema) or pa.binary(), int(schema["size"])
        if kind not in _PRIMITIVE:
            raise SchemaError(f"{place} is {kind}, which contains itself; a table has no such columns")
        found = _DATES.get((kind, schema.get("logicalType", "")))
        if found is None and kind == "bytes":
            found = _decimal(schema)
        return found or _PRIMITIVE[kind], least

    def _record(self, schema: Any, place: str, depth: int) -> tuple[pa.DataType | None, int]:
        fields, size = [], 0
        for field in schema["fields"]:
            inner = field["name"] if depth == 0 else f"{place}.{field['name']}"
            kind, least = self._type(field["type"], inner, depth + 1)
            size += least
            if kind is not None:
                fields.append((field["name"], kind))
        if not fields:
            return self._without(place, "none of its fields has a column"), size
        return pa.struct(fields), size

    def _union(self, schema: list[Any], place: str, depth: int) -> tuple[pa.DataType | None, int]:
        others = [each for each in schema if each not in ("null", {"type": "null"})]
        kinds = [self._type(each, place, depth + 1)[0] for each in others]
        if len(kinds) != 1:
            return self._without(place, "a union of several types"), 1
        return kinds[0], 1

    def _list(self, item: pa.DataType | None, size: int) -> None:
        if item is not None:
            self.bytes_of_lists = max(self.bytes_of_lists, LEAF_BYTES * leaves(item) / size)

    def _without(self, place: str, reason: str) -> pa.DataType | None:
        self.left_out.append(f"{place}: {reason}")
        return None


def _decimal(schema: Any) -> pa.DataType | None:
    if schema.get("logicalType") != "decimal":
        return None
    return pa.decimal128(schema["precision"], schema.get("scale", 0))


def _plain(schema: Any, depth: int = 0, *, keep_decimals: bool) -> Any:
    """A schema without the logical types that are no column's."""
    if depth > 4 * MOST_DEPTH:
        raise SchemaError(f"the schema is more than {MOST_DEPTH} levels deep")
    if isinstance(schema, list):
        return [_plain(each, depth + 1, keep_decimals=keep_decimals) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: _plain(value, depth + 1, keep_decimals=keep_decimals) if name in _REFERENCES else value
        for name, value in schema.items()
    }
    if "logicalType" in found and not (_is_date(found) or (keep_decimals and _is_decimal(found))):
        del found["logicalType"]
    return found


def _is_date(schema: dict[str, Any]) -> bool:
    kind, logical = schema.get("type"), schema["logicalType"]
    return isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _DATES


def _is_decimal(schema: dict[str, Any]) -> bool:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    return (
        schema["logicalType"] == "decimal"
        and schema.get("type") in ("bytes", "fixed")
        and isinstance(digits, int)
        and isinstance(scale, int)
        and 0 <= scale <= digits
        and 0 < digits <= _MOST_DIGITS
    )
