"""Protobuf's messages as fields with types. A schema is a descriptor set (`protoc --descriptor_set_out --include_imports`).

| Protobuf | column |
|---|---|
| `bool`, `string`, `bytes`, `float`, `double` | boolean, string, binary, float, double |
| `int32` and its like; `int64` and its like, `uint32`; `uint64` | int; bigint; decimal(20, 0) |
| an enum | string: its name, or the number where it has none |
| a message; `repeated`; `map` | struct; array; map |
| `google.protobuf.Timestamp`; `StringValue` and its like | timestamp; what is in it |
| a message that contains itself, `google.protobuf.Struct` | none: left out |

A field is null where it is absent and that can be told: messages, `optional`, members of a `oneof`. Others have their default.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from structured_streaming.rows.arrays import GREATEST_MS, LEAST_MS
from structured_streaming.tables import TIMESTAMP
from structured_streaming.typed.fields import MOST_DEPTH, SchemaError, TypedField, check_fields, leaves
from structured_streaming.typed.python_values import LEAF_BYTES

_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
_WRAPPERS = {message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()}
_TIMESTAMP = "google.protobuf.Timestamp"
_OF_ANYTHING = {message.full_name for message in struct_pb2.DESCRIPTOR.message_types_by_name.values()}
_MOST_NODES = 5000
_Value = Callable[[Any], Any]


class _Read(NamedTuple):
    """Of a field of messages: its column's type, and what makes a value of what Protobuf gives."""

    type: pa.DataType
    value: _Value


class ProtobufSchema:
    """A version of a schema: `parse` makes a message of bytes, `values` a dict of it; `fields`, `left_out`, `bytes_of_lists` as
    of `Decoder`. Raises SchemaError."""

    def __init__(self, text: str, name: str) -> None:
        self.left_out: list[str] = []
        self.bytes_of_lists = 0.0
        self._nodes = 0
        descriptor = _descriptor(text, name)
        self.indexes = _indexes(descriptor)
        """Where the message is in its file: numbers from the outermost message to it."""
        self.parse: Callable[[bytes], Any] = message_factory.GetMessageClass(descriptor).FromString
        made = self._message(descriptor, "the message", (), 0)
        if made is None:
            raise SchemaError(f"message {name} has no field that can be a column")
        self.fields = [TypedField(field.name, field.type) for field in made.type]
        self.values: Callable[[Any], dict[str, Any]] = made.value
        check_fields(self.fields)

    def _message(self, of: Descriptor, place: str, within: tuple[str, ...], depth: int) -> _Read | None:
        if of.full_name in within:
            return self._without(place, f"{of.full_name} contains itself")
        if depth > MOST_DEPTH:
            raise SchemaError(f"{place} is more than {MOST_DEPTH} levels deep")
        readers: list[tuple[str, bool, _Value]] = []
        fields = []
        for field in of.fields:
            inner = field.name if depth == 0 else f"{place}.{field.name}"
            made = self._field(field, inner, (*within, of.full_name), depth + 1)
            if made is not None:
                readers.append((field.name, field.has_presence, made.value))
                fields.append((field.name, made.type))
        if not fields:
            return self._without(place, "none of its fields has a column")

        def value(message: Any) -> dict[str, Any]:
            return {
                name: read(getattr(message, name)) if not optional or message.HasField(name) else None
                for name, optional, read in readers
            }

        return _Read(pa.struct(fields), value)

    def _field(self, field: FieldDescriptor, place: str, within: tuple[str, ...], depth: int) -> _Read | None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise SchemaError(f"the schema leads to more than {_MOST_NODES:,} fields")
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            return self._map(kind, place, within, depth)
        single = self._single(field, place, within, depth)
        if single is None or not field.is_repeated:
            return single
        self._list(single.type, 2 if kind is not None else 1)
        read = single.value
        return _Read(pa.list_(single.type), lambda values: [read(each) for each in values])

    def _map(self, entry: Descriptor, place: str, within: tuple[str, ...], depth: int) -> _Read | None:
        key = self._single(entry.fields_by_name["key"], place, within, depth)
        item = self._single(entry.fields_by_name["value"], f"{place}{{}}", within, depth + 1)
        if key is None or item is None:
            return None
        self._list(item.type, 2)
        of_key, of_item = key.value, item.value
        return _Read(
            pa.map_(key.type, item.type),
            lambda values: {of_key(name): of_item(values[name]) for name in values},
        )

    def _single(
        self, field: FieldDescriptor, place: str, within: tuple[str, ...], depth: int
    ) -> _Read | None:
        """Of a field, or of what it repeats."""
        if field.message_type is not None:
            name = field.message_type.full_name
            if name == _TIMESTAMP:
                return _Read(TIMESTAMP, _microseconds)
            if name in _OF_ANYTHING:
                return self._without(place, f"{name} may hold anything")
            if name in _WRAPPERS:
                inner = self._single(field.message_type.fields_by_name["value"], place, within, depth)
                assert inner is not None
                read = inner.value
                return _Read(inner.type, lambda message: read(message.value))
            return self._message(field.message_type, place, within, depth)
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return _Read(pa.string(), lambda number: names.get(number, str(number)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _Read(pa.binary(), _same)
        return _Read(_SCALARS[field.cpp_type], _same)

    def _list(self, item: pa.DataType, size: int) -> None:
        self.bytes_of_lists = max(self.bytes_of_lists, LEAF_BYTES * leaves(item) / size)

    def _without(self, place: str, reason: str) -> _Read | None:
        self.left_out.append(f"{place}: {reason}")
        return None


def _descriptor(text: str, name: str) -> Descriptor:
    """Of a message in a descriptor set in base64. Raises SchemaError."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text, validate=True)).file
    except (binascii.Error, DecodeError) as error:
        raise SchemaError(f"the schema is no descriptor set: {error}") from error
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    try:
        _add(pool, {file.name: file for file in files}, [file.name for file in files], added)
        found: Descriptor = pool.FindMessageTypeByName(name)
    except KeyError as error:
        there = sorted(each for file in files for each in _names(file))
        raise SchemaError(
            f"the schema has no message {name!r}; it has {', '.join(there)[:300] or 'none'}"
        ) from error
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the descriptor set cannot be used: {error}") from error
    return found


def _add(
    pool: Any, files: dict[str, descriptor_pb2.FileDescriptorProto], names: Iterable[str], added: set[str]
) -> None:
    """Files after those that they import; an import that is not there is Protobuf's own, or refused."""
    todo = [(name, False) for name in reversed(list(names))]
    under_way: set[str] = set()
    while todo:
        name, ready = todo.pop()
        if name in added:
            continue
        if name not in files and name not in _KNOWN:
            raise SchemaError(
                f"the schema imports {name}, which is not in it; make the descriptor set with --include_imports"
            )
        if ready:
            pool.AddSerializedFile(files[name].SerializeToString() if name in files else _KNOWN[name])
            added.add(name)
            continue
        if name in under_way:
            raise SchemaError(f"{name} imports itself")
        under_way.add(name)
        todo.append((name, True))
        if name in files:
            todo += [(each, False) for each in files[name].dependency if each not in added]


def _names(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """Full names of its outermost messages."""
    return [f"{file.package}.{message.name}".lstrip(".") for message in file.message_type]


def _indexes(of: Descriptor) -> list[int]:
    if of.containing_type is None:
        return [list(of.file.message_types_by_name).index(of.name)]
    return [*_indexes(of.containing_type), list(of.containing_type.nested_types_by_name).index(of.name)]


def _same(value: Any) -> Any:
    return value


def _microseconds(time: Any) -> int:
    """Raises ValueError for a time that no column holds."""
    found: int = time.seconds * 1_000_000 + time.nanos // 1000
    if not LEAST_MS * 1000 <= found < (GREATEST_MS + 1) * 1000:
        raise ValueError("a time outside of the years 1 to 9999")
    return found
