"""Our definitions against those that the official Python client carries.

What the client knows must be the same here: an element that differs is one that is misread on the wire. What only
we have is listed below; the test fails when the list and the facts part, in either direction.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from lakebroker_pb.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from lakebroker_testing.official_client import interpreter

Facts = dict[str, tuple[Any, ...]]

# Elements that client 5.1.2 does not know, the outermost name only: a new message stands for its fields.
UNKNOWN_TO_CLIENT: Mapping[str, frozenset[str]] = {
    "definition.proto": frozenset(
        {
            "Code.INVALID_CLIENT_PROPERTIES",
            "Settings.ClientPropertiesEntry",
            "Settings.client_properties",
        }
    ),
    "service.proto": frozenset(),
    "admin.proto": frozenset(
        {
            "Admin.AdminSendMessage",
            "Admin.DeleteSubscription",
            "Admin.DescribeGroupAccumulation",
            "Admin.DescribeSubscription",
            "Admin.DescribeTopicStatus",
            "Admin.GetConsumerRunningInfo",
            "Admin.GetProxyRuntimeStats",
            "Admin.GetTopicRoute",
            "Admin.ListConsumerConnection",
            "Admin.ListSubscription",
            "Admin.PrintThreadStackTrace",
            "Admin.QueryMessage",
            "Admin.QueryTimeSpan",
            "Admin.ResetGroupOffset",
            "Admin.VerifyMessage",
            "AdminSendMessageRequest",
            "AdminSendMessageResponse",
            "ClientInfo",
            "ConsumeStatus",
            "ConsumerRunningInfo",
            "DeleteSubscriptionRequest",
            "DeleteSubscriptionResponse",
            "DescribeGroupAccumulationRequest",
            "DescribeGroupAccumulationResponse",
            "DescribeSubscriptionRequest",
            "DescribeSubscriptionResponse",
            "DescribeTopicStatusRequest",
            "DescribeTopicStatusResponse",
            "GetConsumerRunningInfoRequest",
            "GetConsumerRunningInfoResponse",
            "GetProxyRuntimeStatsRequest",
            "GetProxyRuntimeStatsResponse",
            "GetTopicRouteRequest",
            "GetTopicRouteResponse",
            "ListConsumerConnectionRequest",
            "ListConsumerConnectionResponse",
            "ListMessageRequest",
            "ListMessageResponse",
            "ListSubscriptionRequest",
            "ListSubscriptionResponse",
            "MessageModel",
            "MessageQueueItem",
            "PrintThreadStackTraceRequest",
            "PrintThreadStackTraceResponse",
            "ProcessQueueInfo",
            "QueryTimeSpanRequest",
            "QueryTimeSpanResponse",
            "ResetGroupOffsetRequest",
            "ResetGroupOffsetResponse",
            "SubscriptionInfo",
            "VerifyMessageRequest",
            "VerifyMessageResponse",
        }
    ),
}


def elements(file: FileDescriptorProto) -> Facts:
    """{full name: what the wire and the callers depend on} of everything that a file declares."""
    facts: Facts = {file.package: ("package", file.syntax)}
    for message in file.message_type:
        facts.update(_message(f"{file.package}.{message.name}", message))
    for enum in file.enum_type:
        facts.update(_enum(f"{file.package}.{enum.name}", enum))
    for service in file.service:
        facts[f"{file.package}.{service.name}"] = ("service",)
        for method in service.method:
            streaming = (method.client_streaming, method.server_streaming)
            name = f"{file.package}.{service.name}.{method.name}"
            facts[name] = ("rpc", method.input_type, method.output_type, *streaming)
    return facts


def _message(name: str, message: DescriptorProto) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield name, ("message", message.options.map_entry)
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        shape = (field.number, field.type, field.label, field.type_name, oneof, field.proto3_optional)
        yield f"{name}.{field.name}", ("field", *shape)
    for nested in message.nested_type:
        yield from _message(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        yield from _enum(f"{name}.{enum.name}", enum)


def _enum(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield name, ("enum",)
    for value in enum.value:
        yield f"{name}.{value.name}", ("value", value.number)


def outermost(names: set[str]) -> set[str]:
    """The names without those inside another of them."""
    return {name for name in names if name.rpartition(".")[0] not in names}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """The client's files by base name, read in its own process."""
    done = subprocess.run(
        [
            str(interpreter()),
            str(Path(__file__).parents[1] / "support" / "rocketmq" / "client_descriptors.py"),
        ],
        check=True,
        capture_output=True,
        env={"HOME": str(tmp_path_factory.mktemp("home"))},
    )
    carried = json.loads(done.stdout)
    return {
        Path(name).name: FileDescriptorProto.FromString(base64.b64decode(data))
        for name, data in carried.items()
    }


@pytest.fixture(scope="module")
def ours() -> dict[str, FileDescriptorProto]:
    files = {}
    for module in (definition_pb2, service_pb2, admin_pb2):
        proto = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        files[Path(proto.name).name] = proto
    return files


def test_same_files(ours: dict[str, FileDescriptorProto], theirs: dict[str, FileDescriptorProto]) -> None:
    assert ours.keys() == theirs.keys() == UNKNOWN_TO_CLIENT.keys()


@pytest.mark.parametrize("name", UNKNOWN_TO_CLIENT)
def test_what_the_client_knows_is_identical(
    name: str, ours: dict[str, FileDescriptorProto], theirs: dict[str, FileDescriptorProto]
) -> None:
    mine, known = elements(ours[name]), elements(theirs[name])
    assert len(known) > 1
    assert {key: mine.get(key) for key in known} == known


@pytest.mark.parametrize("name", UNKNOWN_TO_CLIENT)
def test_what_only_we_have_is_listed(
    name: str, ours: dict[str, FileDescriptorProto], theirs: dict[str, FileDescriptorProto]
) -> None:
    unknown = elements(ours[name]).keys() - elements(theirs[name]).keys()
    short = {full.removeprefix("apache.rocketmq.v2.") for full in outermost(set(unknown))}
    assert short == UNKNOWN_TO_CLIENT[name]
