"""Python's values of the formats that no array reads, as columns."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from structured_streaming.typed.decoded import Decoded
from structured_streaming.typed.fields import TypedField

PYTHON_BYTES = 48
"""Memory of Python's values for each byte of a body, about, while they are made columns."""
LEAF_BYTES = 48
"""The same of each field of a list's element, however few bytes of the body it takes."""
_DECIMAL_BYTES = 16
_EXACT = decimal.Context(prec=60)


def one_by_one(
    bodies: pa.BinaryArray,
    fields: Sequence[TypedField],
    decode: Callable[[bytes], tuple[dict[str, Any] | None, int, str | None]],
) -> Decoded:
    """Bodies that no array operation reads; `decode` gives value, version and reason of each. Raises as `table_of_values`."""
    values: list[dict[str, Any] | None] = []
    versions: list[int] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        value, version, reason = decode(body)
        values.append(value)
        versions.append(version)
        reasons.append(reason)
    return Decoded(table_of_values(values, fields), versions, reasons)


def table_of_values(values: Sequence[dict[str, Any] | None], fields: Sequence[TypedField]) -> pa.Table:
    """A row for each value; null where it is None, and where it lacks a field. Raises pa.ArrowException, ValueError,
    OverflowError for what a column cannot hold."""
    columns = []
    for field in fields:
        shape = _shaper(field.type)
        found = [None if value is None else value.get(field.name) for value in values]
        if shape is not None:
            found = [None if value is None else shape(value) for value in found]
        columns.append(pa.array(found, field.type))
    return pa.table(columns, pa.schema([(field.name, field.type) for field in fields]))


def _shaper(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a value Arrow's where it is not: maps are lists of pairs, decimals are no bytes."""
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind.scale)
    if pa.types.is_map(kind):
        inner = _shaper(kind.item_type)
        if inner is None:
            return lambda value: list(value.items())
        return lambda value: [(key, each if each is None else inner(each)) for key, each in value.items()]
    if pa.types.is_list(kind):
        item = _shaper(kind.value_type)
        return item and (lambda value: [each if each is None else item(each) for each in value])
    if pa.types.is_struct(kind):
        shapes = {field.name: shape for field in kind if (shape := _shaper(field.type)) is not None}
        if not shapes:
            return None

        def shaped(value: dict[str, Any]) -> dict[str, Any]:
            return {
                name: shapes[name](each) if name in shapes and each is not None else each
                for name, each in value.items()
            }

        return shaped
    return None


def _decimal(value: bytes | int, scale: int) -> decimal.Decimal:
    if isinstance(value, bytes):
        if len(value) > _DECIMAL_BYTES:
            raise ValueError(f"a decimal of {len(value):,} bytes, at most {_DECIMAL_BYTES} are possible")
        value = int.from_bytes(value, "big", signed=True)
    return decimal.Decimal(value).scaleb(-scale, _EXACT)
