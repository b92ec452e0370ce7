"""Requests on their way: they cost what they are, count until they are taken, and give way to others."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

from google.protobuf.wrappers_pb2 import BytesValue

from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.http2 import call as real
from broker_gateway.transport.http2.engine import headers
from broker_gateway.transport.http2.framing import compressed_frame, frame
from broker_gateway.transport.http2.requests import Requests, RequestStream
from broker_gateway.transport.methods import REQUEST_S, methods
from tests.support.peers.echo_service import DESCRIPTOR, SERVICE, Echo

MIB = 1 << 20


class Call:
    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.failed = ""
        self.stream: RequestStream | None = None

    def fail(self, code: str, message: str) -> None:
        self.failed = code
        self.requests.finished(self)
        if self.stream is not None:
            self.stream.drop()


class Connection:
    """Counts what is released to the peer; as the engine's, it takes no count below 0."""

    def __init__(self) -> None:
        self.released = 0

    def release(self, stream_id: int, count: int) -> None:
        if count < 0:
            raise OverflowError(f"a release of {count} bytes")
        self.released += count


def stream(requests: Requests, call: Call, connection: Connection, limit: int = 64 * MIB) -> RequestStream:
    def parse(payload: bytes, compressed: bool) -> bytes:
        return payload

    loop: Any = asyncio.get_running_loop()
    call.stream = RequestStream(call, connection, 1, requests, limit, parse, loop)  # type: ignore[arg-type]
    return call.stream


def test_the_longest_held_gives_way() -> None:
    requests = Requests(10 * MIB)
    calls = [Call(requests) for _ in range(5)]
    for call in calls[:4]:
        requests.wait(call, 2 * MIB)
    requests.wait(calls[0], MIB)
    requests.wait(calls[4], 2 * MIB)
    assert [call.failed for call in calls] == ["RESOURCE_EXHAUSTED", "", "", "", ""]
    assert requests.held == 8 * MIB
    assert requests.use(4 * MIB)
    assert calls[1].failed
    assert not calls[2].failed
    assert requests.held == 10 * MIB
    assert not requests.use(9 * MIB), "what is being served does not give way"
    assert all(call.failed for call in calls)
    requests.used(4 * MIB)
    assert requests.held == 0


def test_requests_that_do_not_come_end() -> None:
    requests = Requests(10 * MIB)
    silent, slow, young = Call(requests), Call(requests), Call(requests)
    requests.opened(silent, 100.0)
    requests.opened(slow, 100.0)
    requests.wait(slow, MIB)
    requests.opened(young, 150.0)
    requests.expire(100.0 + REQUEST_S)
    assert not silent.failed
    requests.expire(101.0 + REQUEST_S)
    assert [each.failed for each in (silent, slow, young)] == ["DEADLINE_EXCEEDED", "", ""]
    requests.expire(100.0 + 10 * REQUEST_S)
    assert slow.failed
    assert young.failed
    assert requests.held == 0


def test_a_stream_holds_what_the_service_has_not_taken() -> None:
    async def run() -> None:
        requests, connection = Requests(10 * MIB), Connection()
        call = Call(requests)
        found = stream(requests, call, connection)
        sent = b"".join(frame(bytes([n]) * n * 1000) for n in range(4))
        for at in range(0, len(sent), 700):
            found.feed(sent[at : at + 700])
        assert requests.held >= len(sent)
        assert connection.released == 0
        for n in range(4):
            assert await anext(found) == bytes([n]) * n * 1000
        assert requests.held == 0
        assert connection.released == len(sent)

    asyncio.run(run())


def test_a_message_larger_than_the_window_is_let_in() -> None:
    async def run() -> None:
        requests, connection = Requests(10 * MIB), Connection()
        found = stream(requests, Call(requests), connection)
        sent = frame(b"s") + frame(b"x" * (3 * MIB)) + frame(b"y")
        room = MIB
        for at in range(0, len(sent), 16_384):
            piece = sent[at : at + 16_384]
            room -= len(piece)
            assert room + connection.released >= 0, "the peer would be stuck"
            found.feed(piece)
        assert [len(await anext(found)) for _ in range(3)] == [1, 3 * MIB, 1]
        assert connection.released == len(sent)
        assert requests.held == 0

    asyncio.run(run())


def test_a_call_that_gives_way_to_its_own_bytes_ends_alone() -> None:
    """Within a message that the window cannot hold, and at the end of a message that another follows."""

    async def fails(limit: int, pieces: list[bytes]) -> None:
        requests, connection = Requests(limit), Connection()
        call = Call(requests)
        found = stream(requests, call, connection)
        for piece in pieces[:-1]:
            found.feed(piece)
        assert not call.failed
        released = connection.released
        found.feed(pieces[-1])
        assert call.failed == "RESOURCE_EXHAUSTED"
        assert connection.released == released, "nothing is released for a call that has ended"
        found.feed(b"what was on its way")
        assert not found.within_a_message
        assert requests.held == 0
        assert [each async for each in found] == []

    part = bytes(MIB)
    head = b"\0" + struct.pack(">I", 8 * MIB)
    asyncio.run(fails(3 * MIB, [head + part, part, part]))
    asyncio.run(fails(MIB + 64, [frame(part[:-5]) + head]))


def test_a_byte_costs_the_same_behind_a_large_part() -> None:
    """CPU of 20,000 pieces of a byte, behind 12 MiB of their message and behind nothing."""

    async def cost(before: int) -> float:
        requests = Requests(64 * MIB)
        found = stream(requests, Call(requests), Connection())
        found.feed(b"\0" + struct.pack(">I", 32 * MIB) + bytes(before))
        began = time.process_time()
        for _ in range(20_000):
            found.feed(b"x")
        return time.process_time() - began

    few = min(asyncio.run(cost(0)) for _ in range(3))
    many = min(asyncio.run(cost(12 * MIB)) for _ in range(3))
    assert many < 10 * few


class Peer(Connection):
    """What a call sees of its connection."""

    called_at = last_heard = 0.0
    peer, host, full = "127.0.0.1:1", "127.0.0.1", False

    ended = False

    def respond(self, stream_id: int, fields: Any, end: bool) -> None:
        self.ended = self.ended or end

    def trailers(self, stream_id: int, fields: Any) -> None:
        self.ended = True


def test_a_call_that_gives_way_to_its_own_request_gives_all_back() -> None:
    """It has held bytes for longest when the request before them is unpacked and finds no room."""

    async def run() -> int:
        requests, tick = Requests(MIB), Tick()
        served = {method.path: method for method in methods(DESCRIPTOR, Echo(tick))}
        loop = asyncio.get_running_loop()
        peer = Peer()
        call = real.Call(peer, served, requests, set(), ("127.0.0.1", 1), loop)  # type: ignore[arg-type]
        fields = headers({"content-type": "application/grpc", "grpc-encoding": "gzip"})
        call.opened("POST", SERVICE + "Up", fields, False)
        large = BytesValue(value=bytes(1_000_000)).SerializeToString()
        call.data(compressed_frame(large) + frame(bytes(200_000)), False)
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.ended
        return requests.held

    assert asyncio.run(run()) == 0
