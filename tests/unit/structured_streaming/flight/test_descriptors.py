"""Our definitions of Flight and Flight SQL against those that the ADBC driver carries: what both know is the same."""

from __future__ import annotations

from pathlib import Path

import adbc_driver_flightsql
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from lakebroker_pb.arrow.flight.protocol import flight_pb2
from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2

_KNOWN = {field.number for field in FileDescriptorProto.DESCRIPTOR.fields}
Facts = dict[str, tuple[object, ...]]


@pytest.mark.parametrize(
    ("ours", "name"), [(flight_pb2, "Flight.proto"), (flight_sql_pb2, "FlightSql.proto")]
)
def test_every_name_number_and_type_is_that_of_the_driver(ours: object, name: str) -> None:
    mine = FileDescriptorProto()
    ours.DESCRIPTOR.CopyToProto(mine)  # type: ignore[attr-defined]
    theirs = carried(name)
    assert mine.package == theirs.package
    assert len(facts(mine)) >= 80
    known = facts(theirs)
    assert {name: fact for name, fact in facts(mine).items() if known.get(name) != fact} == {}


def carried(name: str) -> FileDescriptorProto:
    """A file's descriptor out of the driver's library, which holds its bytes."""
    (library,) = Path(adbc_driver_flightsql.__file__).parent.glob("libadbc_driver_flightsql.*")
    data = library.read_bytes()
    start = data.index(b"\n" + bytes([len(name)]) + name.encode())
    return FileDescriptorProto.FromString(data[start : end_of(data, start)])


def end_of(data: bytes, at: int) -> int:
    """Where the fields of a file's descriptor end: they are lengths and bytes alone, and its name is the first."""
    start = at
    while True:
        tag, behind = varint(data, at)
        if tag & 7 != 2 or tag >> 3 not in _KNOWN or (tag >> 3 == 1 and at > start):
            return at
        size, behind = varint(data, behind)
        at = behind + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def facts(file: FileDescriptorProto) -> Facts:
    found: Facts = {}
    for service in file.service:
        for method in service.method:
            found[f"{service.name}.{method.name}"] = (
                method.input_type,
                method.output_type,
                method.client_streaming,
                method.server_streaming,
            )
    for message in file.message_type:
        found |= of_message(message, "")
    for enum in file.enum_type:
        found |= of_enum(enum, "")
    return found


def of_message(message: DescriptorProto, outer: str) -> Facts:
    name = f"{outer}{message.name}"
    found: Facts = {}
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        found[f"{name}.{field.name}"] = (field.number, field.type, field.label, field.type_name, oneof)
    for inner in message.nested_type:
        found |= of_message(inner, f"{name}.")
    for enum in message.enum_type:
        found |= of_enum(enum, f"{name}.")
    return found


def of_enum(enum: EnumDescriptorProto, outer: str) -> Facts:
    return {f"{outer}{enum.name}.{value.name}": (value.number,) for value in enum.value}
