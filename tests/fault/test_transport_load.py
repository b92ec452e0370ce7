"""What clients may do to the gateway's connections: memory stays bounded, others are served, nothing is doubled.

With LAKEBROKER_EVIDENCE=1 the numbers are those of `LONG`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import EVIDENCE
from tests.support.logs.contents import stored
from tests.support.peers.raw_http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    frame,
    setting,
)
from tests.support.waiting import LIMIT_S

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "load"),)
LONG = {"calls": 1_000_000, "cancelled": 200_000, "connections": 10_000, "reset_s": 60}
SHORT = {"calls": 2_000, "cancelled": 1_000, "connections": 300, "reset_s": 0}
NUMBERS = LONG if EVIDENCE else SHORT
GROWTH_MB = 150
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, mappedFileSizeCommitLog=str(256 << 20)) as started:
        yield started


def rss_anon_mb(gateway: Gateway) -> float:
    assert gateway.process is not None
    for line in Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")


def message(body: bytes, message_id: str = "") -> rpc.SendMessageRequest:
    system = pb.SystemProperties(message_id=message_id or uuid.uuid4().hex, message_type=pb.NORMAL)
    return rpc.SendMessageRequest(
        messages=[pb.Message(topic=pb.Resource(name="load"), body=body, system_properties=system)]
    )


def poll(wait_s: int) -> rpc.ReceiveMessageRequest:
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name="load"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name="load"), id=-1),
        batch_size=4,
    )
    request.invisible_duration.FromSeconds(10)
    request.long_polling_timeout.FromSeconds(wait_s)
    return request


def sender(channel: Any) -> Any:
    return channel.unary_unary(
        SERVICE + "SendMessage",
        request_serializer=rpc.SendMessageRequest.SerializeToString,
        response_deserializer=rpc.SendMessageResponse.FromString,
    )


Note = Callable[[str, object], None]


def test_many_calls_on_one_connection(gateway: Gateway, record_property: Note) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            send = sender(channel)
            left = NUMBERS["calls"]

            async def worker() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    answer = await send(message(b"x"), metadata=METADATA, timeout=LIMIT_S)
                    assert answer.status.code == pb.OK

            await asyncio.gather(*(worker() for _ in range(64)))

    before = rss_anon_mb(gateway)
    asyncio.run(run())
    grown = rss_anon_mb(gateway) - before
    record_property("calls", NUMBERS["calls"])
    record_property("grown_mb", round(grown, 1))
    index_mb = NUMBERS["calls"] * 28 / (1 << 20)  # a queue entry and a start for each record
    assert grown < GROWTH_MB + 2.5 * index_mb


def test_calls_cancelled_at_random_points(gateway: Gateway, record_property: Note) -> None:
    """Sends and polls, cancelled before, while and after they are answered."""
    answered: set[str] = set()
    rng = random.Random(4)

    async def run() -> None:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            send = sender(channel)
            receive = channel.unary_stream(
                SERVICE + "ReceiveMessage",
                request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
                response_deserializer=rpc.ReceiveMessageResponse.FromString,
            )
            left = NUMBERS["cancelled"]

            async def worker() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    if rng.random() < 0.5:
                        message_id = uuid.uuid4().hex
                        call = send(message(b"y" * rng.choice((10, 30_000)), message_id), metadata=METADATA)
                        waiting = asyncio.ensure_future(_result(call))
                    else:
                        message_id = ""
                        call = receive(poll(5), metadata=METADATA)
                        waiting = asyncio.ensure_future(_drained(call))
                    await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01)))
                    call.cancel()
                    if await waiting and message_id:
                        answered.add(message_id)

            await asyncio.gather(*(worker() for _ in range(200)))
            assert (await send(message(b"last"), metadata=METADATA, timeout=LIMIT_S)).status.code == pb.OK

    before = rss_anon_mb(gateway)
    asyncio.run(run())
    grown = rss_anon_mb(gateway) - before
    assert gateway.terminate() == 0
    found = stored(gateway.store)
    record_property("cancelled", NUMBERS["cancelled"])
    record_property("answered_all_the_same", len(answered))
    record_property("stored", len(found))
    record_property("grown_mb", round(grown, 1))
    assert grown < GROWTH_MB
    assert max(found.values()) == 1
    assert answered <= found.keys()


async def _result(call: Any) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        return bool((await call).status.code == pb.OK)
    return False


async def _drained(call: Any) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        async for _ in call:
            pass
    return False


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_streams_opened_and_reset(tmp_path: Path, record_property: Note, transport: str) -> None:
    """Receives that three connections open and reset as fast as they are taken, beside one honest sender."""
    with Gateway(tmp_path, transport=transport) as gateway:
        assert gateway.process is not None
        before = rss_anon_mb(gateway)
        until, counts, ended = time.monotonic() + NUMBERS["reset_s"], [0, 0, 0], threading.Event()
        floods = [
            threading.Thread(
                target=_open_and_reset, args=(gateway.address, ended, counts, number), daemon=True
            )
            for number in range(len(counts))
        ]
        for flood in floods:
            flood.start()
        most, answers = 0.0, 0
        with grpc.insecure_channel(gateway.address) as channel:
            while time.monotonic() < until or min(counts) <= 1500 or not answers:
                code = sender(channel)(message(b"z"), metadata=METADATA, timeout=LIMIT_S).status.code
                assert code == pb.OK
                answers += 1
                most = max(most, rss_anon_mb(gateway) - before)
        ended.set()
        for flood in floods:
            flood.join(LIMIT_S)
        record_property("resets", sum(counts))
        record_property("honest_calls", answers)
        record_property("grown_mb", round(most, 1))
        assert most < 2 * GROWTH_MB
        assert gateway.terminate() == 0


def _open_and_reset(address: str, ended: threading.Event, counts: list[int], place: int) -> None:
    """Begins on another connection when one is closed."""
    while not ended.is_set():
        with contextlib.suppress(OSError), RawPeer(address) as peer:
            peer.socket.settimeout(1)
            stream = 1
            while not ended.is_set():
                burst = b""
                for _ in range(100):
                    request = poll(20).SerializeToString()
                    burst += peer.request(stream, SERVICE + "ReceiveMessage", request, *METADATA)
                    burst += frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                    stream += 2
                peer.send(burst)
                counts[place] += 100
                while select.select([peer.socket], [], [], 0)[0]:
                    if not peer.socket.recv(1 << 16):
                        raise ConnectionResetError


def test_connections_opened_and_dropped(gateway: Gateway, record_property: Note) -> None:
    """Silent ones, half a preface, half a request: dropped at any point, or left open."""
    starts = [
        b"",
        PREFACE[:10],
        PREFACE,
        PREFACE + frame(SETTINGS, 0, 0),
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, b"\x82"),
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    host, _, port = gateway.address.rpartition(":")
    before = rss_anon_mb(gateway)
    kept: list[socket.socket] = []
    for number in range(NUMBERS["connections"]):
        connection = socket.create_connection((host, int(port)), 10)
        connection.sendall(starts[number % len(starts)])
        if number % 20 == 0 and len(kept) < 500:
            kept.append(connection)
        elif number % 3 == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()  # with a reset
        else:
            connection.close()
    with grpc.insecure_channel(gateway.address) as channel:
        assert sender(channel)(message(b"z"), metadata=METADATA, timeout=LIMIT_S).status.code == pb.OK
    grown = rss_anon_mb(gateway) - before
    record_property("connections", NUMBERS["connections"])
    record_property("grown_mb", round(grown, 1))
    assert grown < GROWTH_MB
    for connection in kept:
        connection.close()


def test_replies_of_4_mib_through_tiny_windows(gateway: Gateway) -> None:
    body = os.urandom(4 << 20)
    with grpc.insecure_channel(gateway.address) as channel:
        for _ in range(2):
            assert sender(channel)(message(body), metadata=METADATA, timeout=LIMIT_S).status.code == pb.OK
    with RawPeer(gateway.address, setting(4, 100)) as peer:
        for stream in (1, 3):  # a reply holds one of that size
            request = poll(1).SerializeToString()
            peer.send(peer.request(stream, SERVICE + "ReceiveMessage", request, ("x-mq-client-id", "tiny")))
            assert _trickled(peer, stream).count(body) == 1


def _trickled(peer: RawPeer, stream: int) -> bytes:
    """A response that is taken some bytes at a time."""
    received = b""
    while True:
        found = peer.until(lambda each: each.kind in (DATA, HEADERS))
        if found.kind == DATA:
            received += found.payload
            if found.payload:
                more = struct.pack(">I", min(4096, len(found.payload) * 2))
                peer.send(frame(WINDOW_UPDATE, 0, stream, more) + frame(WINDOW_UPDATE, 0, 0, more))
        if found.flags & END_STREAM:
            return received
