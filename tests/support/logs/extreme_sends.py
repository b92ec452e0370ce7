"""Messages whose every field is driven to its extremes, one field at a time, by their descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as AnyMessage

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import message

_NUMBERS: dict[int, tuple[int, ...]] = {
    FieldDescriptor.TYPE_INT64: (-(2**63), -(2**62), -1, 0, 1, 253402300799, 253402300800, 2**62, 2**63 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), -1, 0, 1, 999_999_999, 1_000_000_000, 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), -1, 0, 1, 2, 3, 4, 5, 6, 99, 2**31 - 1),
}
_TEXTS = (
    "",
    " ",
    "\x00",
    "\x01",
    "\x02",
    "a\x7fb",
    "|",
    "é",
    "\U0010ffff" * 9,
    "x" * 127,
    "x" * 128,
    "x" * 255,
    "x" * 256,
    "x" * 16_384,
    "x" * 16_385,
    "x" * 32_766,
    "x" * 100_000,
    "é" * 16_400,
)
_BODIES = (b"", b"\x00", b"x" * 4095, b"x" * 4096, b"x" * (1 << 18), b"x" * ((1 << 18) + 1))
SMALL_BODY = b"a body of nothing special"


class Extreme(NamedTuple):
    """`name`: the field and its value, for the reader."""

    name: str
    message: pb.Message


def extreme_messages(topic: str) -> Iterator[Extreme]:
    """One message for each field and value; of type NORMAL for that topic, but for that field."""
    usual = message(topic, SMALL_BODY)
    for name, change in _changes(pb.Message.DESCRIPTOR, ""):
        odd = pb.Message()
        odd.CopyFrom(usual)
        change(odd)
        yield Extreme(name, odd)
    for count in (64, 128, 129, 1025):
        odd = pb.Message()
        odd.CopyFrom(usual)
        for number in range(count):
            odd.user_properties[f"k{number}"] = "v"
        yield Extreme(f"{count} user properties", odd)
    for text in _TEXTS:
        for key, value in ((text, "v"), ("k", text)):
            odd = pb.Message()
            odd.CopyFrom(usual)
            odd.user_properties[key] = value
            yield Extreme(f"user property {_shown(key)}={_shown(value)}", odd)


def _changes(descriptor: Any, path: str) -> Iterator[tuple[str, Any]]:
    for field in descriptor.fields:
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            yield f"{name} there", lambda odd, name=name: _of(odd, name).SetInParent()
            yield from _changes(field.message_type, f"{name}.")
            continue
        for value in _values(field):
            yield f"{name}={_shown(value)}", _setter(name, field, value)


def _values(field: FieldDescriptor) -> tuple[Any, ...]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _BODIES
    return _NUMBERS[field.type]


def _setter(name: str, field: FieldDescriptor, value: Any) -> Any:
    def change(odd: pb.Message) -> None:
        parent, _, last = name.rpartition(".")
        holder = _of(odd, parent) if parent else odd
        if field.is_repeated:
            del getattr(holder, last)[:]
            getattr(holder, last).append(value)
        else:
            setattr(holder, last, value)

    return change


def _of(odd: AnyMessage, path: str) -> Any:
    holder: Any = odd
    for part in path.split("."):
        holder = getattr(holder, part)
    return holder


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:12]}... of {len(value)}"
