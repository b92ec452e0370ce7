"""Columns of a typed table, and which types may follow which when a schema changes. Imports no pyspark.

| a field of the newer schema | then its column |
|---|---|
| is new | is added, null in the rows that are there; no file is rewritten |
| is gone | stays: null in new rows that lack it |
| has the same type, or one whose every value the column's type holds (an int in a long) | stays |
| is an object, or a list of objects, with new fields | gets them, null in the rows that are there |
| has any other type | is refused: rows that are there could not be read as it |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from structured_streaming.errors import LakeError
from structured_streaming.tables import MESSAGES, Column, Table

MOST_FIELDS, MOST_DEPTH = 500, 16
"""Of a schema: fields at all levels, and levels."""
_OF_MESSAGES = (
    "broker",
    "log_id",
    "physical_offset",
    "topic",
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "message_id",
)
OWN = (
    *(column for name in _OF_MESSAGES for column in MESSAGES.columns if column.name == name),
    Column("schema_version", pa.int32(), "version of the declared schema that it fits; null with a reason"),
    Column("reason", pa.string(), "why the message does not fit the schema; null where it does"),
)
"""Columns that every typed table has before those of its schema."""
_RESERVED = frozenset(column.name for column in OWN)
PREFIX = "value_"
"""Of a field's column where the name is one of those."""
_NO_NAME = re.compile(r"[ ,;{}()\n\t=.`\x00-\x1f]")
"""What Delta, or SQL, does not take in the name of a column."""
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int64(): (pa.int32(),),
    pa.float64(): (pa.float32(), pa.int32()),
}
"""Types whose every value the first holds."""


class SchemaError(LakeError):
    """A schema, or a change of one, that no table can be made of."""


class TypedField(NamedTuple):
    """A field at the top of a message: its name there, and the type of its column."""

    name: str
    type: pa.DataType


def column_name(field: str) -> str:
    """Of a field at the top of a message."""
    name = _NO_NAME.sub("_", field)
    return PREFIX + name if name.lower() in _RESERVED else name


def joined(old: Sequence[TypedField], new: Sequence[TypedField]) -> list[TypedField]:
    """Fields that hold what both schemas have; the old ones come first. Raises SchemaError."""
    found = {field.name: field.type for field in old}
    for field in new:
        before = found.get(field.name)
        found[field.name] = field.type if before is None else _joined(field.name, before, field.type)
    fields = [TypedField(name, kind) for name, kind in found.items()]
    check_fields(fields)
    return fields


def check_fields(fields: Sequence[TypedField]) -> None:
    """Raises SchemaError for fields that cannot be columns together."""
    if not fields:
        raise SchemaError("the schema has no field that can be a column")
    _check_names([column_name(field.name) for field in fields], "")
    count = 0
    for field in fields:
        count += _check(field.type, field.name, 1)
    if count > MOST_FIELDS:
        raise SchemaError(f"the schema has {count} fields, at most {MOST_FIELDS} can be columns")


def typed_table(name: str, topic: str, fields: Iterable[TypedField]) -> Table:
    """The table of a typed topic; `fields` of all versions of its schema."""
    columns = [Column(column_name(field.name), field.type, f"field {field.name}") for field in fields]
    comment = f"The messages of topic {topic} by their schema; with a reason where one does not fit it."
    return Table(
        name, comment, (*OWN, *columns), ("broker", "log_id", "physical_offset"), ("store_timestamp",)
    )


def list_leaves(kind: pa.DataType) -> int:
    """How many values an element of a list takes in memory at least: the most of any list in the type, 0 without lists."""
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        element = kind.value_type if pa.types.is_list(kind) else pa.struct([kind.key_field, kind.item_field])
        return max(leaves(element), list_leaves(element))
    if pa.types.is_struct(kind):
        return max((list_leaves(field.type) for field in kind), default=0)
    return 0


def leaves(kind: pa.DataType) -> int:
    """How many values one of a type has at least, in memory."""
    if pa.types.is_struct(kind):
        return 1 + sum(leaves(field.type) for field in kind)
    return 1


def _joined(place: str, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if old == new or new in _WIDER.get(old, ()):
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        found = {field.name: field.type for field in old}
        for field in new:
            before = found.get(field.name)
            found[field.name] = (
                field.type if before is None else _joined(f"{place}.{field.name}", before, field.type)
            )
        return pa.struct(list(found.items()))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(_joined(f"{place}[]", old.value_type, new.value_type))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        return pa.map_(old.key_type, _joined(f"{place}{{}}", old.item_type, new.item_type))
    raise SchemaError(
        f"field {place} is {_shown(new)} in this schema and {_shown(old)} in the table, which cannot hold it; keep its type, "
        "give the field another name, or declare the topic into another table (--table)"
    )


def _check(kind: pa.DataType, place: str, depth: int) -> int:
    """The fields in a type, itself included."""
    if depth > MOST_DEPTH:
        raise SchemaError(f"field {place} is more than {MOST_DEPTH} levels deep; leave such fields out")
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise SchemaError(f"field {place} is an object without fields")
        _check_names([field.name for field in kind], place)
        return 1 + sum(_check(field.type, f"{place}.{field.name}", depth + 1) for field in kind)
    if pa.types.is_list(kind):
        return 1 + _check(kind.value_type, f"{place}[]", depth + 1)
    if pa.types.is_map(kind):
        return 1 + _check(kind.item_type, f"{place}{{}}", depth + 1)
    return 1


def _check_names(names: Sequence[str], place: str) -> None:
    where = f" of {place}" if place else ""
    seen: dict[str, str] = {}
    for name in names:
        if not name or len(name) > 200 or (place and _NO_NAME.search(name)):
            raise SchemaError(f"field {name!r}{where} cannot be the name of a column; give it another name")
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise SchemaError(
                f"fields {other!r} and {name!r}{where} are one name to SQL, which does not tell upper from lower case; leave one "
                "out of the schema"
            )


def _shown(kind: pa.DataType) -> str:
    return str(kind)[:200]
