"""Protobuf bodies: types, presence, framing, and bytes of anybody."""

from __future__ import annotations

import base64
import datetime
import decimal
import random
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from structured_streaming.typed.declaration import PROTOBUF, Declaration, Schema
from structured_streaming.typed.fields import SchemaError
from structured_streaming.typed.protobuf_schema import ProtobufSchema
from structured_streaming.typed.topic import TypedTopic
from tests.support.lakes.typed_batches import read

F = descriptor_pb2.FieldDescriptorProto


def field(
    name: str, number: int, kind: Any, of: str = "", *, many: bool = False, optional: int | None = None
) -> Any:
    made = F(name=name, number=number, type=kind, label=F.LABEL_REPEATED if many else F.LABEL_OPTIONAL)
    if of:
        made.type_name = of
    if optional is not None:
        made.proto3_optional = True
        made.oneof_index = optional
    return made


def order_file(*more: Any) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=[
            "google/protobuf/timestamp.proto",
            "google/protobuf/wrappers.proto",
            "google/protobuf/struct.proto",
        ],
    )
    file.message_type.add(name="Other").field.add().CopyFrom(field("x", 1, F.TYPE_INT32))
    line = file.message_type.add(name="Line")
    line.field.extend([field("sku", 1, F.TYPE_STRING), field("count", 2, F.TYPE_UINT32)])
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.extend([field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_MESSAGE, ".shop.Line")])
    order.enum_type.add(name="Colour").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=at)
            for at, name in enumerate(("RED", "BLUE"))
        ]
    )
    order.oneof_decl.add(name="_note")
    order.field.extend(
        [
            field("id", 1, F.TYPE_INT64),
            field("note", 2, F.TYPE_STRING, optional=0),
            field("big", 3, F.TYPE_UINT64),
            field("data", 4, F.TYPE_BYTES),
            field("colour", 5, F.TYPE_ENUM, ".shop.Order.Colour"),
            field("lines", 6, F.TYPE_MESSAGE, ".shop.Line", many=True),
            field("tags", 7, F.TYPE_MESSAGE, ".shop.Order.TagsEntry", many=True),
            field("at", 8, F.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            field("name", 9, F.TYPE_MESSAGE, ".google.protobuf.StringValue"),
            field("any", 10, F.TYPE_MESSAGE, ".google.protobuf.Struct"),
            field("first", 11, F.TYPE_MESSAGE, ".shop.Line"),
            field("sizes", 12, F.TYPE_SINT32, many=True),
            *more,
        ]
    )
    return file


def text(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()


def message_class(file: descriptor_pb2.FileDescriptorProto) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def topic(*files: Any, registry: str = "", ids: tuple[int, ...] = ()) -> TypedTopic:
    versions = tuple(
        Schema(at + 1, text(file), "shop.Order", ids[at] if ids else 0) for at, file in enumerate(files)
    )
    return TypedTopic(Declaration("orders", "typed_orders", PROTOBUF, versions, registry=registry))


def whole(file: descriptor_pb2.FileDescriptorProto) -> Any:
    order = message_class(file)(id=-1, note="", big=(1 << 64) - 1, data=b"\xff", colour=1, sizes=[-1, 2])
    order.lines.add(sku="a", count=(1 << 32) - 1)
    order.tags["t"].sku = "b"
    order.at.FromDatetime(datetime.datetime(2026, 11, 25, 12, 0, 0, 123456))
    order.name.value = ""
    order.any["x"] = 1
    order.first.SetInParent()
    return order


def test_types_of_columns_and_their_values() -> None:
    file = order_file()
    made = topic(file)
    assert {each.name: str(each.type) for each in made.decoder.fields} == {
        "id": "int64",
        "note": "string",
        "big": "decimal128(20, 0)",
        "data": "binary",
        "colour": "string",
        "lines": "list<item: struct<sku: string, count: int64>>",
        "tags": "map<string, struct<sku: string, count: int64>>",
        "at": "timestamp[us, tz=UTC]",
        "name": "string",
        "first": "struct<sku: string, count: int64>",
        "sizes": "list<item: int32>",
    }
    assert made.decoder.left_out == ["any: google.protobuf.Struct may hold anything"]
    ((row, version, reason),) = read(made, whole(file).SerializeToString())
    assert (version, reason) == (1, None)
    assert row == {
        "id": -1,
        "note": "",
        "big": decimal.Decimal((1 << 64) - 1),
        "data": b"\xff",
        "colour": "BLUE",
        "lines": [{"sku": "a", "count": (1 << 32) - 1}],
        "tags": [("t", {"sku": "b", "count": 0})],
        "at": datetime.datetime(2026, 11, 25, 12, 0, 0, 123456, datetime.UTC),
        "name": "",
        "first": {"sku": "", "count": 0},
        "sizes": [-1, 2],
    }
    ((row, version, _),) = read(made, b"")
    assert version == 1
    assert (row["id"], row["note"], row["at"], row["name"], row["first"], row["colour"]) == (
        0,
        None,
        None,
        None,
        None,
        "RED",
    )


def test_what_does_not_fit_has_a_reason() -> None:
    file = order_file()
    late = message_class(file)(id=1)
    late.at.seconds = 1 << 60
    later = order_file(field("extra", 20, F.TYPE_STRING))
    found = read(
        topic(file),
        b"{}",
        b"\xff\xff",
        b"\x12\x01\xff",
        late.SerializeToString(),
        message_class(later)(extra="x").SerializeToString(),
        message_class(later)(id=1, extra="x").SerializeToString(),
        message_class(file)(id=1, colour=7).SerializeToString(),
    )
    assert [version for _, version, _ in found] == [0, 0, 0, 0, 0, 1, 1]
    assert "years 1 to 9999" in str(found[3][2])
    assert "none of its fields is one of the schema" in str(found[4][2])
    assert found[6][0]["colour"] == "7"


def test_fields_that_a_later_schema_adds() -> None:
    file, later = order_file(), order_file(field("extra", 20, F.TYPE_STRING, many=True))
    found = read(
        topic(file, later),
        message_class(file)(id=1).SerializeToString(),
        message_class(later)(id=2, extra=["x"]).SerializeToString(),
    )
    assert [(row["id"], row["extra"], version) for row, version, _ in found] == [(1, [], 2), (2, ["x"], 2)]


def test_a_body_with_a_registrys_id_names_its_message() -> None:
    file = order_file()
    body = message_class(file)(id=5).SerializeToString()
    made = topic(file, registry="http://127.0.0.1:1/subjects/orders-value", ids=(9,))
    frame = b"\0\0\0\0\x09"
    found = read(
        made,
        frame + b"\x02\x04" + body,
        frame + b"\x00" + body,
        frame + body[:1],
        body,
        b"\0\0\0\0\x08\x02\x04" + body,
    )
    assert [version for _, version, _ in found] == [1, 0, 0, 0, 0]
    assert "it is message [0] of the schema's file, the topic's is [2]" in str(found[1][2])


def test_damaged_bodies_have_a_row_or_a_reason_each() -> None:
    rng = random.Random(5)
    file = order_file()
    good = whole(file).SerializeToString()
    bodies = []
    for _ in range(2000):
        body = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        bodies.append(bytes(body[: rng.choice((len(body), rng.randrange(len(body))))]))
    found = read(topic(file), *bodies)
    assert len(found) == len(bodies)
    assert all((version == 0) == (reason is not None) for _, version, reason in found)
    assert 20 < sum(version > 0 for _, version, _ in found) < 1900


@pytest.mark.parametrize(
    ("schema", "name", "problem"),
    [
        ("?", "shop.Order", "no descriptor set"),
        (base64.b64encode(b"\xff\xff").decode(), "shop.Order", "no descriptor set"),
        (
            text(order_file()),
            "shop.Basket",
            "no message 'shop.Basket'; it has shop.Line, shop.Order, shop.Other",
        ),
        (
            text(descriptor_pb2.FileDescriptorProto(name="a", dependency=["b"])),
            "A",
            "imports b, which is not in it",
        ),
        (text(descriptor_pb2.FileDescriptorProto(name="a", dependency=["a"])), "A", "imports itself"),
        (text(order_file(field("x", 1, F.TYPE_STRING))), "shop.Order", "cannot be used"),
    ],
)
def test_schemas_that_no_table_can_be_made_of(schema: str, name: str, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        ProtobufSchema(schema, name)
    assert problem in str(raised.value)
