"""Floods on one connection: turned away when they carry nothing, ended when they never come to an end."""

from __future__ import annotations

import struct
import threading

import pytest

from broker_gateway.transport.http2 import requests, server
from broker_gateway.transport.http2.call import Call
from broker_gateway.transport.http2.pace import Backlogged, Pace
from tests.support.peers.echo_service import SERVICE, Served
from tests.support.peers.raw_http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    PING,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    frame,
    setting,
)
from tests.support.waiting import LIMIT_S, wait_until

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
        ended = [each for each in peer.ending() if each.kind == GOAWAY]
        sender.join(LIMIT_S)
        assert [each.code for each in ended] == [CALM]
    with RawPeer(http2.address) as other:
        other.send(other.request(1, SERVICE + "Unary", b"\x0a\x01a"))
        assert other.answer(1)[0]["grpc-status"] == "0"


def test_updates_for_what_was_read_are_no_flood(http2: Served) -> None:
    """A reply of 9,000 bytes through a window of one byte takes an update of stream and connection for each."""
    size = 9_000
    with RawPeer(http2.address, setting(4, 1)) as peer:
        message = b"\x0a" + _varint(size) + b"w" * size
        peer.send(peer.request(1, SERVICE + "Unary", None) + _data(1, message))
        got = 0
        while got < len(message) + 5:
            found = peer.until(lambda each: each.kind == DATA)
            got += len(found.payload)
            one = struct.pack(">I", 1)
            peer.send(frame(WINDOW_UPDATE, 0, 1, one) + frame(WINDOW_UPDATE, 0, 0, one))


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
            assert all(connection.streams == 0 for connection in http2.server.connections)  # type: ignore[union-attr]
    finally:
        http2.stop()


def test_large_requests_behind_much_work_wait_for_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    put_off: list[object] = []
    defer = Pace.defer

    def counted(pace: Pace, work: Backlogged) -> None:
        if isinstance(work, Call):
            put_off.append(work)
        defer(pace, work)

    monkeypatch.setattr(Pace, "crowded", True)
    monkeypatch.setattr(Pace, "defer", counted)
    http2 = Served("http2")
    try:
        with RawPeer(http2.address) as peer:
            for stream, size in ((1, 100), (3, 40_000), (5, 100)):
                peer.send(peer.request(stream, SERVICE + "Unary", None) + _data(stream, _value(size)))
                assert peer.answer(stream)[0]["grpc-status"] == "0"
    finally:
        http2.stop()
    assert len(put_off) == 1


def test_a_failed_call_keeps_no_requests_while_its_response_waits_to_be_read() -> None:
    http2 = Served("http2")
    held = http2.server.requests  # type: ignore[union-attr]
    try:
        with RawPeer(http2.address, setting(4, 100)) as peer:
            for stream in range(1, 24, 2):  # together more than the connection's window
                peer.send(
                    peer.request(stream, SERVICE + "Both", None) + _data(stream, _value(1000), last=False)
                )
                peer.until(lambda each, stream=stream: each.kind == DATA and each.stream == stream)
                peer.send(_data(stream, _value(900_000), last=False))
                wait_until(lambda: held.held > 900_000)
                peer.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 1 << 30)))
                wait_until(lambda: held.held == 0)
                peer.send(frame(DATA, 0, stream, bytes(16_000)))  # more, which nobody takes
                peer.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 5000)))
                assert peer.answer(stream)[0]["grpc-status"] == "8"
            assert held.held == 0
    finally:
        http2.stop()


def test_an_answered_call_keeps_no_requests_while_its_response_waits_to_be_read() -> None:
    http2 = Served("http2")
    held = http2.server.requests  # type: ignore[union-attr]
    try:
        with RawPeer(http2.address, setting(4, 100)) as peer:
            for stream, method in enumerate(("Unary", "Later", "Coroutine", "AllAtOnce")):
                stream = 2 * stream + 1
                peer.send(peer.request(stream, SERVICE + method, None) + _data(stream, _value(500_000)))
                peer.until(lambda each, stream=stream: each.kind == DATA and each.stream == stream)
                wait_until(lambda: held.held == 0)
    finally:
        http2.stop()


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
