"""Schemas of a registry are anybody's: each makes a table or is refused, and nothing else is raised, which would end the reput."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from structured_streaming.commit.typed_refresh import with_registered
from structured_streaming.registry.subject import Registered
from structured_streaming.typed.declaration import AVRO, PROTOBUF, Declaration, Schema
from structured_streaming.typed.fields import SchemaError
from structured_streaming.typed.topic import TypedTopic

Field = descriptor_pb2.FieldDescriptorProto


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)})


def message_of(own: Field, package: str = "google.protobuf") -> str:
    """A file that declares Protobuf's `StringValue` itself, with one field, and a message with one of these."""
    wrapped = Field(name="t", number=1, label=1, type=11, type_name=".google.protobuf.StringValue")
    file = descriptor_pb2.FileDescriptorProto(
        name="x.proto",
        package=package,
        message_type=[
            descriptor_pb2.DescriptorProto(name="StringValue", field=[own]),
            descriptor_pb2.DescriptorProto(name="M", field=[wrapped]),
        ],
    )
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()


GOOD = record({"name": "id", "type": "long"})
HOSTILE = {
    "a size that is none": (AVRO, record({"name": "f", "type": {"type": "fixed", "name": "f", "size": "x"}})),
    "a name that is none": (AVRO, record({"name": {"x": 1}, "type": "int"})),
    "a name that is no text": (
        AVRO,
        r'{"type":"record","name":"r","fields":[{"name":"\ud800","type":"int"}]}',
    ),
    "a wrapper without a value": (PROTOBUF, message_of(Field(name="x", number=1, label=1, type=9))),
    "a wrapper of itself": (
        PROTOBUF,
        message_of(Field(name="value", number=1, label=1, type=11, type_name=".google.protobuf.StringValue")),
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused(what: str) -> None:
    form, text = HOSTILE[what]
    message = "google.protobuf.M" if form == PROTOBUF else ""
    with pytest.raises(SchemaError):
        TypedTopic(Declaration("orders", "typed_orders", form, (Schema(1, text, message),)))


def test_one_of_a_registry_is_remembered_with_the_reason() -> None:
    declared = Declaration("orders", "typed_orders", AVRO, (Schema(1, GOOD, id=1),))
    bad = HOSTILE["a size that is none"][1]
    better = record(
        {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}
    )
    found = with_registered(
        declared,
        [Registered(AVRO, Schema(2, bad, id=2)), Registered(AVRO, Schema(3, better, id=3))],
        [2, 3, 4],
    )
    assert [each.id for each in found.schemas] == [1, 3]
    refused = dict(found.refused)
    assert sorted(refused) == [2, 4]
    assert "size" in refused[2] or "'x'" in refused[2]
