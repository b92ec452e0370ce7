"""Floods on one connection: turned away when they carry nothing, served a share of each turn when they are calls."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from broker_gateway.places import Places
from broker_gateway.transport.http2 import requests, server
from broker_gateway.transport.http2.engine import Connection
from broker_gateway.transport.http2.pace import Pace
from broker_gateway.transport.http2.replies import Replies
from broker_gateway.turn import Turn
from tests.echo_service import SERVICE, Served
from tests.raw_peer import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    frame,
    setting,
)

CALM = 0xB


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(frame(SETTINGS, 0, 0, setting(4, 65_535)), id="settings"),
        pytest.param(frame(SETTINGS, 0, 0), id="empty settings"),
        pytest.param(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"), id="window updates"),
        pytest.param(frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"), id="priorities"),
        pytest.param(frame(PING, ACK, 0, b"12345678"), id="acknowledged pings"),
    ],
)
def test_frames_that_carry_nothing(http2: Served, flood: bytes) -> None:
    with RawPeer(http2.address) as peer:
        sender = threading.Thread(target=_send, args=(peer, flood * 1000, 100))
        sender.start()
        ended = [each for each in peer.ending(30)[0] if each.kind == GOAWAY]
        sender.join(30)
        assert [each.code for each in ended] == [CALM]
    with RawPeer(http2.address) as other:
        other.send(other.request(1, SERVICE + "Unary", b"\x0a\x01a"))
        assert other.answer(1)[0]["grpc-status"] == "0"


def test_updates_for_what_was_read_are_no_flood(http2: Served) -> None:
    """A reply of 20,000 bytes through a window of one byte takes an update of stream and connection for each."""
    size = 20_000
    with RawPeer(http2.address, setting(4, 1)) as peer:
        message = b"\x0a" + _varint(size) + b"w" * size
        peer.send(peer.request(1, SERVICE + "Unary", None) + _data(1, message))
        got = 0
        while got < len(message) + 5:
            found = peer.until(lambda each: each.kind == DATA)
            got += len(found.payload)
            one = struct.pack(">I", 1)
            peer.send(frame(WINDOW_UPDATE, 0, 1, one) + frame(WINDOW_UPDATE, 0, 0, one))


@pytest.mark.parametrize("beside", [0, 15_000])
def test_calls_of_one_read_are_served_in_several_turns(beside: int) -> None:
    """Each takes a while here: others come to their turn between them, and all are served in the end. `beside`: bytes that
    stand between two calls, so that only few are in a piece that is decoded at once."""
    extension = frame(0xFA, 0, 0, bytes(beside)) if beside else b""

    async def run() -> tuple[int, int, int]:
        calls: list[Call] = []
        pace, turn = Pace(), Turn()

        class Call:
            stream_id = 0

            def opened(self, *of: Any) -> None:
                time.sleep(0.001)
                calls.append(self)

            def data(self, payload: bytes, last: bool) -> None: ...

            def ended(self) -> None: ...

            def writable(self) -> None: ...

            def stopped(self) -> None: ...

        place = Places(lambda: 10).take("127.0.0.1", lambda: None)
        assert place is not None
        connection = Connection(
            turn,
            pace,
            Replies(1 << 20, lambda: 0),
            place,
            lambda of: Call(),
            lambda of: None,
            lambda of: None,
            lambda of: None,
            max_header_bytes=1 << 15,
            least_ping_interval_s=5.0,
        )
        transport = Transport()
        connection.connection_made(transport)
        connection.data_received(PREFACE + frame(SETTINGS, 0, 0))
        peer = RawPeer.__new__(RawPeer)
        peer.encoder = _encoder()
        connection.data_received(
            b"".join(peer.request(2 * n + 1, SERVICE + "Unary", b"") + extension for n in range(1000))
        )
        first = len(calls)
        turns = 0
        while len(calls) < 1000 and turns < 10_000:
            turns += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.reading
        return first, turns, len(calls)

    first, turns, served = asyncio.run(run())
    assert first < 500
    assert turns > 10
    assert served == 1000


def test_a_request_that_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_S", 0.2)
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    http2 = Served("http2")
    try:
        with RawPeer(http2.address) as peer:
            peer.send(peer.request(1, SERVICE + "Unary", None))
            peer.send(peer.request(3, SERVICE + "Unary", None) + frame(DATA, 0, 3, b"\0\0"))
            assert peer.answer(1)[0]["grpc-status"] == "4"
            assert peer.answer(3)[0]["grpc-status"] == "4"
            peer.send(peer.request(5, SERVICE + "Unary", b"\x0a\x01a"))
            assert peer.answer(5)[0]["grpc-status"] == "0"
            assert all(connection.streams == 0 for connection in http2.server._connections)  # type: ignore[union-attr]
    finally:
        http2.stop()


def test_a_failed_call_keeps_no_requests_while_its_response_waits_to_be_read() -> None:
    http2 = Served("http2")
    held = http2.server._requests  # type: ignore[union-attr]
    try:
        with RawPeer(http2.address, setting(4, 100)) as peer:
            for stream in range(1, 24, 2):  # together more than the connection's window
                peer.send(
                    peer.request(stream, SERVICE + "Both", None) + _data(stream, _value(1000), last=False)
                )
                peer.until(lambda each, stream=stream: each.kind == DATA and each.stream == stream)
                peer.send(_data(stream, _value(900_000), last=False))
                _wait(lambda: held.held > 900_000)
                peer.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 1 << 30)))
                _wait(lambda: held.held == 0)
                peer.send(frame(DATA, 0, stream, bytes(16_000)))  # more, which nobody takes
                peer.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 5000)))
                assert peer.answer(stream)[0]["grpc-status"] == "8"
            assert held.held == 0
    finally:
        http2.stop()


def test_an_answered_call_keeps_no_requests_while_its_response_waits_to_be_read() -> None:
    http2 = Served("http2")
    held = http2.server._requests  # type: ignore[union-attr]
    try:
        with RawPeer(http2.address, setting(4, 100)) as peer:
            for stream, method in enumerate(("Unary", "Later", "Coroutine", "AllAtOnce")):
                stream = 2 * stream + 1
                peer.send(peer.request(stream, SERVICE + method, None) + _data(stream, _value(500_000)))
                peer.until(lambda each, stream=stream: each.kind == DATA and each.stream == stream)
                _wait(lambda: held.held == 0)
    finally:
        http2.stop()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "requests are still held"
        time.sleep(0.01)


class Transport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None: ...

    def abort(self) -> None: ...


def _encoder() -> Any:
    from hpack import Encoder

    return Encoder()


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes((value & 127 | 128,))
        value >>= 7
    return found + bytes((value,))


def _value(size: int) -> bytes:
    """A message with so many bytes."""
    return b"\x0a" + _varint(size) + b"w" * size


def _data(stream: int, message: bytes, *, last: bool = True) -> bytes:
    framed = b"\0" + struct.pack(">I", len(message)) + message
    starts = range(0, len(framed), 16_384)
    return b"".join(
        frame(
            DATA, END_STREAM if last and at + 16_384 >= len(framed) else 0, stream, framed[at : at + 16_384]
        )
        for at in starts
    )


def _send(peer: RawPeer, data: bytes, times: int) -> None:
    try:
        for _ in range(times):
            peer.send(data)
    except OSError:
        return
