"""Single calls of hostile clients: a request that becomes large when it is read, a reply that nobody takes.

Memory stays bounded and others are served, whatever the call.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from tests.support.peers.hostile_remoting import memory_mib
from tests.support.peers.raw_http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    WINDOW_UPDATE,
    RawPeer,
    frame,
    setting,
)
from tests.support.waiting import LIMIT_S, wait_until

SERVICE = "/apache.rocketmq.v2.MessagingService/"
ID = ("x-mq-client-id", "hostile")
EMPTY_ENTRY = {"SendMessage": b"\x0a\x00", "AckMessage": b"\x1a\x00", "Telemetry": b"\x12\x02\x22\x00"}
"""Two bytes of a repeated message, or settings whose last part comes again and again."""
GROWTH_MIB = 150


@pytest.fixture(params=["http2", "grpcio"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, transport=request.param) as started:
        # which takes memory of its own
        wait_until(lambda: "compiled code loaded" in started.log.read_text())
        yield started
        assert Client(started.address).send("t", b"honest").status.code == pb.OK


ON_HTTP2 = pytest.mark.parametrize("gateway", ["http2"], indirect=True)


def framed(message: bytes, *, compressed: bool) -> bytes:
    payload = gzip.compress(message, 9) if compressed else message
    return bytes((compressed,)) + struct.pack(">I", len(payload)) + payload


def data(stream: int, body: bytes, *, last: bool) -> bytes:
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    ends = [END_STREAM if last and piece is pieces[-1] else 0 for piece in pieces]
    return b"".join(frame(DATA, end, stream, piece) for piece, end in zip(pieces, ends, strict=True))


def ended(peer: RawPeer, stream: int) -> str:
    """The call's status; credit is given as the server's own windows allow."""
    found = peer.until(lambda each: each.kind == HEADERS and each.stream == stream)
    fields = {str(name): str(value) for name, value in peer.decoder.decode(found.payload)}
    return fields.get("grpc-status", "")


def send_within_windows(peer: RawPeer, size: int) -> None:
    """So many bytes of a request on stream 1."""
    room = {0: 8 << 20, 1: (1 << 20) - 16_384}
    while size > 0:
        while min(room.values()) < 16_384:
            found = peer.until(lambda each: each.kind in (WINDOW_UPDATE, HEADERS))
            if found.kind == HEADERS:
                return  # refused meanwhile
            room[found.stream] += int.from_bytes(found.payload, "big")
        peer.send(frame(DATA, 0, 1, bytes(16_384)))
        size -= 16_384
        room = {each: left - 16_384 for each, left in room.items()}


@pytest.mark.parametrize("method", ["AckMessage", "SendMessage"])
def test_a_compressed_request_of_many_entries(gateway: Gateway, method: str) -> None:
    bomb = framed(EMPTY_ENTRY[method] * (30 << 20), compressed=True)
    assert len(bomb) < 64 << 10
    before = memory_mib(gateway.process)
    with RawPeer(gateway.address) as peer:
        stream = 1
        peer.send(peer.request(stream, SERVICE + method, None, ID, ("grpc-encoding", "gzip")))
        peer.send(data(stream, bomb, last=True))
        assert ended(peer, stream) in ("8", "12"), "grpcio takes no compressed requests"
    assert memory_mib(gateway.process, "VmHWM") - before < GROWTH_MIB


@pytest.mark.parametrize("method", ["AckMessage", "SendMessage"])
def test_a_request_of_many_entries(gateway: Gateway, method: str) -> None:
    """40 MiB of them, as they are: what is received is held, what it would become is not."""
    body = framed(EMPTY_ENTRY[method] * (20 << 20), compressed=False)
    before = memory_mib(gateway.process)
    client = Client(gateway.address)
    call = client.channel.unary_unary(SERVICE + method)
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        call(body[5:], metadata=client.metadata, timeout=LIMIT_S)
    assert memory_mib(gateway.process, "VmHWM") - before < GROWTH_MIB


@ON_HTTP2
def test_telemetry_to_a_client_that_takes_nothing(gateway: Gateway) -> None:
    """Its window is 0, and each command would be 60 MiB once it is decompressed."""
    bomb = framed(EMPTY_ENTRY["Telemetry"] * (15 << 20), compressed=True)
    before = memory_mib(gateway.process)
    with RawPeer(gateway.address, setting(4, 0)) as peer:
        peer.send(peer.request(1, SERVICE + "Telemetry", None, ID, ("grpc-encoding", "gzip")))
        for _ in range(4):
            peer.send(data(1, bomb, last=False))
        assert ended(peer, 1) == "8"
    assert memory_mib(gateway.process, "VmHWM") - before < GROWTH_MIB


@ON_HTTP2
def test_telemetry_of_honest_size_to_a_client_that_takes_nothing(gateway: Gateway) -> None:
    """Commands are read as their answers are taken, so that the windows hold the client back."""
    entries = [pb.SubscriptionEntry(topic=pb.Resource(name=f"t{n}")) for n in range(1000)]
    settings = pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name="g"), subscriptions=entries),
    )
    command = framed(rpc.TelemetryCommand(settings=settings).SerializeToString(), compressed=True)
    before = memory_mib(gateway.process)
    with RawPeer(gateway.address, setting(4, 0)) as peer:
        head = [
            peer.request(1 + 2 * n, SERVICE + "Telemetry", None, ID, ("grpc-encoding", "gzip"))
            for n in range(20)
        ]
        for n, each in enumerate(head):
            peer.send(each + data(1 + 2 * n, command * 80, last=False))
        assert Client(gateway.address).send("t", b"honest").status.code == pb.OK
    assert memory_mib(gateway.process, "VmHWM") - before < GROWTH_MIB


@ON_HTTP2
def test_a_message_of_telemetry_that_is_too_large_is_refused_by_its_length(gateway: Gateway) -> None:
    """It began with 12 MiB announced; one byte a frame behind them made copies of all that was there."""
    with RawPeer(gateway.address) as peer:
        peer.send(peer.request(1, SERVICE + "Telemetry", None, ID))
        peer.send(frame(DATA, 0, 1, b"\0" + struct.pack(">I", 12 << 20) + b"x" * 1000))
        assert ended(peer, 1) == "8"


@ON_HTTP2
def test_half_sent_requests(gateway: Gateway) -> None:
    """300 MiB in requests that never end: those held longest fail, who sends a whole one is answered."""
    before = memory_mib(gateway.process)
    peers = [RawPeer(gateway.address) for _ in range(10)]
    try:
        for peer in peers:
            peer.send(peer.request(1, SERVICE + "SendMessage", None, ID))
            peer.send(frame(DATA, 0, 1, b"\0" + struct.pack(">I", 60 << 20)))
            send_within_windows(peer, 30 << 20)
        client = Client(gateway.address)
        for _ in range(5):
            assert client.send("t", b"m" * (1 << 20)).status.code == pb.OK
        assert ended(peers[0], 1) == "8"
    finally:
        for peer in peers:
            peer.socket.close()
    assert memory_mib(gateway.process, "VmHWM") - before < 2 * GROWTH_MIB


@ON_HTTP2
def test_replies_that_nobody_takes(gateway: Gateway) -> None:
    """Each of the calls asks for 3 MiB with its window at 0; of 180 MiB the connection keeps a part."""
    client = Client(gateway.address)
    for _ in range(60):
        assert client.send("large", b"r" * (3 << 20)).status.code == pb.OK
    before = memory_mib(gateway.process, "RssAnon")
    with RawPeer(gateway.address, setting(4, 0)) as peer:
        refused = 0
        for n in range(60):
            request = rpc.ReceiveMessageRequest(
                group=pb.Resource(name="g"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name="large"), id=-1),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=1,
            )
            request.invisible_duration.FromSeconds(60)
            request.long_polling_timeout.FromSeconds(5)
            peer.send(peer.request(1 + 2 * n, SERVICE + "ReceiveMessage", request.SerializeToString(), ID))
            found = peer.until(lambda each: each.kind == HEADERS)
            fields = {str(name): str(value) for name, value in peer.decoder.decode(found.payload)}
            refused += fields.get("grpc-status") == "8"
        assert memory_mib(gateway.process, "RssAnon") - before < GROWTH_MIB
        assert refused > 20
