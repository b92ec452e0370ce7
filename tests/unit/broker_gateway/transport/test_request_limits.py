"""What a request may be is decided before it is parsed, and agrees with the parser about what a message is."""

from __future__ import annotations

import gzip
import random

import pytest

from broker_gateway.transport.context import RpcError
from broker_gateway.transport.http2.framing import FramingError, unpacked
from broker_gateway.transport.request_limits import LARGEST, RequestLimits, limits_of, parser
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2.service_pb2 import DESCRIPTOR

ACK = limits_of("/apache.rocketmq.v2.MessagingService/AckMessage")
SEND = limits_of("/apache.rocketmq.v2.MessagingService/SendMessage")


def code(call: object, payload: bytes) -> str:
    with pytest.raises(RpcError) as refused:
        call(payload)  # type: ignore[operator]
    return refused.value.code


@pytest.mark.parametrize(
    ("message", "limits", "payload"),
    [
        (rpc.AckMessageRequest, ACK, b"\x1a\x00" * 40_000),
        (rpc.AckMessageRequest, ACK, b"\x1a\x06\x0a\x01a\x12\x01b" * 20_000),
        (rpc.SendMessageRequest, SEND, b"\x0a\x00" * 70_000),
        (rpc.SendMessageRequest, SEND, b"\x78\x01" * 70_000),
        (
            rpc.TelemetryCommand,
            limits_of("/apache.rocketmq.v2.MessagingService/Telemetry"),
            b"\x22\x00" * 20_000,
        ),
    ],
    ids=["empty entries", "small entries", "empty messages", "unknown fields", "settings again and again"],
)
def test_too_many_fields(message: type, limits: RequestLimits, payload: bytes) -> None:
    message.FromString(payload)  # type: ignore[attr-defined]
    assert code(parser(message, limits), payload) == "RESOURCE_EXHAUSTED"


def test_fields_of_messages_within_messages_count() -> None:
    message = pb.Message(system_properties=pb.SystemProperties(keys=["k"] * 70_000))
    payload = rpc.SendMessageRequest(messages=[message]).SerializeToString()
    assert code(parser(rpc.SendMessageRequest, SEND), payload) == "RESOURCE_EXHAUSTED"
    inner = pb.Message(user_properties={f"{n}": "v" for n in range(30_000)})
    payload = rpc.SendMessageRequest(messages=[inner]).SerializeToString()
    assert code(parser(rpc.SendMessageRequest, SEND), payload) == "RESOURCE_EXHAUSTED"


def test_the_largest_requests_of_honest_clients() -> None:
    entries = [rpc.AckMessageEntry(message_id="i" * 64, receipt_handle="h" * 256) for _ in range(4096)]
    acks = rpc.AckMessageRequest(entries=entries)
    assert parser(rpc.AckMessageRequest, ACK)(acks.SerializeToString()) == acks
    messages = [
        pb.Message(
            topic=pb.Resource(name="t"),
            user_properties={f"k{n}": "v" for n in range(5)},
            system_properties=pb.SystemProperties(message_id="m" * 32, keys=["a", "b"], tag="t"),
            body=b"b" * 1024,
        )
        for _ in range(1024)
    ]
    send = rpc.SendMessageRequest(messages=messages)
    assert parser(rpc.SendMessageRequest, SEND)(send.SerializeToString()) == send
    body = rpc.SendMessageRequest(messages=[pb.Message(body=bytes(4 << 20))])
    assert parser(rpc.SendMessageRequest, SEND)(body.SerializeToString()) == body


def test_what_the_parser_takes_is_not_refused_and_what_is_refused_is_no_message() -> None:
    """Damaged requests above the size from which fields are counted."""
    chance = random.Random(5)
    whole = rpc.SendMessageRequest(
        messages=[
            pb.Message(
                topic=pb.Resource(name="t"),
                user_properties={"a": "b"},
                system_properties=pb.SystemProperties(message_id=f"{n}"),
                body=chance.randbytes(chance.randrange(100)),
            )
            for n in range(400)
        ]
    ).SerializeToString()
    parse = parser(rpc.SendMessageRequest, SEND)
    taken = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.randint(0, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payload = bytes(damaged[: len(damaged) - chance.choice((0, 0, 1, 50))])
        try:
            expected = rpc.SendMessageRequest.FromString(payload)
        except Exception:
            assert code(parse, payload) == "INTERNAL"
        else:
            assert parse(payload) == expected
            taken += 1
    assert taken > 20


def test_decompression_stops_at_what_is_taken() -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    with pytest.raises(FramingError) as refused:
        unpacked(bomb, "gzip", ACK)
    assert refused.value.code == "RESOURCE_EXHAUSTED"
    assert "send it uncompressed" in refused.value.message
    honest = gzip.compress(b"squeeze" * 100_000)
    assert unpacked(honest, "gzip", LARGEST) == b"squeeze" * 100_000
    assert unpacked(gzip.compress(b"a" * 60_000), "gzip", ACK) == b"a" * 60_000


def test_every_rpc_of_the_public_api_has_limits() -> None:
    service = DESCRIPTOR.services_by_name["MessagingService"]
    for method in service.methods:
        limits = limits_of(f"/{service.full_name}/{method.name}")
        assert limits == LARGEST or limits.size <= 4 << 20
