"""What RFC 9113 says a server MUST do, frame by frame, and what floods it has to stand."""

from __future__ import annotations

import gc
import socket
import struct
import threading
from contextlib import suppress

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from broker_gateway.transport.http2.call import Call
from tests.support.peers.echo_service import SERVICE, Served
from tests.support.peers.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    frame,
    setting,
)
from tests.support.waiting import LIMIT_S, wait_until

PROTOCOL, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, CANCEL, COMPRESSION, CALM = (
    0x1,
    0x3,
    0x5,
    0x6,
    0x8,
    0x9,
    0xB,
)
UNARY = SERVICE + "Unary"


def message(data: bytes) -> bytes:
    return BytesValue(value=data).SerializeToString()


def still_serves(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        call = channel.unary_unary(
            UNARY,
            request_serializer=BytesValue.SerializeToString,
            response_deserializer=BytesValue.FromString,
        )
        assert call(BytesValue(value=b"others"), timeout=LIMIT_S).value == b"others"


def goes_away(peer: RawPeer, *codes: int) -> None:
    codes_seen = [each.code for each in peer.ending() if each.kind == GOAWAY]
    assert codes_seen, "no GOAWAY before the connection closed"
    assert codes_seen[-1] in codes


def test_a_call_by_hand(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        for stream in (1, 3, 5):
            peer.send(peer.request(stream, UNARY, message(b"hello")))
            fields, body = peer.answer(stream)
            assert fields[":status"] == "200"
            assert fields["grpc-status"] == "0"
            assert body[5:] == message(b"hello")


def test_streams_that_ended_leave_nothing_for_the_collector(http2: Served) -> None:
    def calls() -> list[Call]:
        return [each for each in gc.get_objects() if isinstance(each, Call)]

    waits = message(b"W")
    gc.collect()
    gc.disable()
    try:
        with RawPeer(http2.address) as peer:
            for stream in range(1, 31, 2):
                peer.send(peer.request(stream, SERVICE + "Both", None))
                if stream % 3:  # the others wait for their first message
                    peer.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", len(waits)) + waits))
            wait_until(lambda: http2.echo.waiting == 10)
            for stream in range(1, 21, 2):
                peer.send(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
        wait_until(lambda: not calls(), lambda: gc.get_referrers(calls()[0]))
    finally:
        gc.enable()
    still_serves(http2)


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + b"\0" * 30, b"\x16\x03\x01"],
)
def test_what_is_no_preface_closes_the_connection(http2: Served, start: bytes) -> None:
    with RawPeer(http2.address, handshake=False) as peer:
        peer.send(start + b"\0" * 64)
        peer.ending()
    still_serves(http2)


def block(peer: RawPeer, *fields: tuple[str, str]) -> bytes:
    return bytes(peer.encoder.encode(list(fields)))


BROKEN = {
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), PROTOCOL),
    "HEADERS on stream 0": (frame(HEADERS, END_HEADERS, 0, b"\x82"), PROTOCOL),
    "HEADERS on an even stream": (frame(HEADERS, END_HEADERS, 2, b"\x82"), PROTOCOL),
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), PROTOCOL),
    "RST_STREAM on an idle stream": (frame(RST_STREAM, 0, 5, b"\0\0\0\x08"), PROTOCOL),
    "RST_STREAM on stream 0": (frame(RST_STREAM, 0, 0, b"\0\0\0\x08"), PROTOCOL),
    "RST_STREAM of 3 bytes": (frame(RST_STREAM, 0, 1, b"\0\0\0"), FRAME_SIZE),
    "WINDOW_UPDATE on an idle stream": (frame(WINDOW_UPDATE, 0, 5, b"\0\0\0\x01"), PROTOCOL),
    "WINDOW_UPDATE of 0": (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), PROTOCOL),
    "WINDOW_UPDATE of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"), FRAME_SIZE),
    "a window beyond 2**31-1": (frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2, FLOW_CONTROL),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, b"\0" * 5), FRAME_SIZE),
    "SETTINGS acknowledged with a payload": (frame(SETTINGS, ACK, 0, b"\0" * 6), FRAME_SIZE),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "ENABLE_PUSH of 2": (frame(SETTINGS, 0, 0, setting(2, 2)), PROTOCOL),
    "INITIAL_WINDOW_SIZE of 2**31": (frame(SETTINGS, 0, 0, setting(4, 1 << 31)), FLOW_CONTROL),
    "MAX_FRAME_SIZE of 1": (frame(SETTINGS, 0, 0, setting(5, 1)), PROTOCOL),
    "MAX_FRAME_SIZE of 2**24": (frame(SETTINGS, 0, 0, setting(5, 1 << 24)), PROTOCOL),
    "PING of 7 bytes": (frame(PING, 0, 0, b"\0" * 7), FRAME_SIZE),
    "PING on a stream": (frame(PING, 0, 1, b"\0" * 8), PROTOCOL),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, b"\0" * 8), PROTOCOL),
    "PUSH_PROMISE": (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82"), PROTOCOL),
    "CONTINUATION without HEADERS": (frame(CONTINUATION, END_HEADERS, 1, b"\x82"), PROTOCOL),
    "a frame between HEADERS and CONTINUATION": (
        frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, b"\0" * 8),
        PROTOCOL,
    ),
    "a frame beyond the maximum": (frame(DATA, 0, 1, b"\0" * 16_385), FRAME_SIZE),
    "padding longer than the frame": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff\x82"), PROTOCOL),
    "a header block that is none": (
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        COMPRESSION,
    ),
}


ENGINE_SAYS = {
    # The connection ends as it must; the engine (Rust's h2) names another reason than the RFC.
    "RST_STREAM of 3 bytes": PROTOCOL,
    "WINDOW_UPDATE of 3 bytes": PROTOCOL,
    "SETTINGS of 5 bytes": PROTOCOL,
    "SETTINGS acknowledged with a payload": PROTOCOL,
    "INITIAL_WINDOW_SIZE of 2**31": PROTOCOL,
    "PING of 7 bytes": PROTOCOL,
    "GOAWAY on a stream": 0,
    "a header block that is none": PROTOCOL,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_of_the_connection_ends_it(http2: Served, case: str) -> None:
    data, code = BROKEN[case]
    with RawPeer(http2.address) as peer:
        peer.send(data)
        goes_away(peer, ENGINE_SAYS.get(case, code))
    still_serves(http2)


def test_stream_ids_only_grow(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(peer.request(5, UNARY, message(b"a")))
        peer.answer(5)
        peer.send(peer.request(3, UNARY, message(b"b")))
        goes_away(peer, PROTOCOL, STREAM_CLOSED)


MALFORMED: dict[str, list[tuple[str, str]]] = {
    "an upper-case name": [(":method", "POST"), (":scheme", "http"), (":path", UNARY), ("X-Upper", "1")],
    "no path": [(":method", "POST"), (":scheme", "http")],
    "two paths": [(":method", "POST"), (":scheme", "http"), (":path", UNARY), (":path", UNARY)],
    "an unknown pseudo-header": [(":method", "POST"), (":scheme", "http"), (":path", UNARY), (":x", "1")],
    "a pseudo-header of responses": [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", UNARY),
        (":status", "200"),
    ],
    "a pseudo-header behind others": [(":method", "POST"), ("x", "1"), (":scheme", "http"), (":path", UNARY)],
    "a connection header": [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", UNARY),
        ("connection", "close"),
    ],
    "a te that is not trailers": [(":method", "POST"), (":scheme", "http"), (":path", UNARY), ("te", "gzip")],
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_reset_and_the_connection_lives(http2: Served, case: str) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(peer, *MALFORMED[case])))
        reset = peer.until(lambda each: each.kind in (RST_STREAM, GOAWAY))
        assert reset.code == PROTOCOL
        if reset.kind == GOAWAY:  # as RFC 9113, 5.4, allows for any stream error
            assert case in ("an upper-case name", "an unknown pseudo-header")
            return
        peer.send(peer.request(3, UNARY, message(b"next")))
        assert peer.answer(3)[0]["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (
            [(":method", "GET"), (":scheme", "http"), (":path", UNARY), ("content-type", "application/grpc")],
            "405",
        ),
        ([(":method", "POST"), (":scheme", "http"), (":path", UNARY)], "415"),
        ([(":method", "POST"), (":scheme", "http"), (":path", UNARY), ("content-type", "text/html")], "415"),
    ],
)
def test_what_is_not_grpc_gets_a_plain_status(
    http2: Served, fields: list[tuple[str, str]], status: str
) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(peer, *fields)))
        assert peer.answer(1)[0][":status"] == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", "13"),
        (b"\0\0\0", "13"),
        (b"\0\0\0\0\x05abc", "13"),
        (b"\0\0\0\0\x01abc", "13"),
        (b"\x02\0\0\0\0", "13"),
        (b"\x01\0\0\0\0", "13"),
        (b"\0\xff\xff\xff\xff", "8"),
    ],
)
def test_a_forged_length_is_answered(http2: Served, body: bytes, status: str) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(peer.request(1, UNARY, None) + frame(DATA, END_STREAM, 1, body))
        assert peer.answer(1)[0]["grpc-status"] == status


@pytest.mark.parametrize("timeout", ["", "5", "S", "999999999S", "-1S", "1d"])
def test_a_malformed_timeout_is_answered(http2: Served, timeout: str) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(peer.request(1, UNARY, message(b""), ("grpc-timeout", timeout)))
        assert peer.answer(1)[0]["grpc-status"] == "13"


def test_an_encoding_nobody_knows(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(peer.request(1, UNARY, message(b""), ("grpc-encoding", "snappy")))
        assert peer.answer(1)[0]["grpc-status"] == "12"


def test_ping_is_answered_and_unknown_frames_are_passed_over(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(
            frame(0x42, 0xFF, 7, b"what")
            + frame(PRIORITY, 0, 1, b"\0\0\0\0\x10")
            + frame(PING, 0, 0, b"12345678")
        )
        answer = peer.until(lambda each: each.kind == PING)
        assert (answer.flags, answer.payload) == (ACK, b"12345678")


@pytest.mark.parametrize("method", ["Unary", "Later", "Coroutine"])
@pytest.mark.parametrize("size", [16_374, 16_375, 16_379, 16_384, 32_768, 60_000])
def test_a_reply_in_frames_no_larger_than_the_default(http2: Served, method: str, size: int) -> None:
    data = message(b"f" * size)
    with RawPeer(http2.address) as peer:
        for stream in (1, 3):
            peer.send(peer.request(stream, SERVICE + method, None))
            framed = b"\0" + struct.pack(">I", len(data)) + data
            for start in range(0, len(framed), 16_384):
                last = END_STREAM if start + 16_384 >= len(framed) else 0
                peer.send(frame(DATA, last, stream, framed[start : start + 16_384]))
            fields, body = peer.answer(stream)
            assert (fields["grpc-status"], body[5:]) == ("0", data)
            peer.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(body))))


def test_a_reply_through_windows_of_one_byte(http2: Served) -> None:
    data = message(b"w" * 300)
    with RawPeer(http2.address, setting(4, 1)) as peer:
        peer.send(peer.request(1, UNARY, data))
        body = b""
        while len(body) < len(data) + 5:
            found = peer.until(lambda each: each.kind == DATA)
            assert len(found.payload) == 1
            body += found.payload
            peer.send(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\x01"))
        assert body[5:] == data
        peer.until(lambda each: each.kind == HEADERS and each.flags & END_STREAM != 0)


def test_a_window_that_shrinks_below_zero(http2: Served) -> None:
    data = message(b"n" * 1000)
    with RawPeer(http2.address, setting(4, 500)) as peer:
        peer.send(peer.request(1, UNARY, data))
        body = peer.until(lambda each: each.kind == DATA).payload
        assert len(body) == 500
        peer.send(frame(SETTINGS, 0, 0, setting(4, 100)) + frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 300)))
        peer.send(frame(PING, 0, 0, b"still 0?"))
        while (found := peer.read()) is not None and found.kind != PING:
            assert found.kind != DATA
        peer.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 10_000)))
        while len(body) < len(data) + 5:
            body += peer.until(lambda each: each.kind == DATA).payload
        assert body[5:] == data


def test_a_goaway_of_the_peer_lets_its_calls_end(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(peer.request(1, SERVICE + "Down", message(b"50 1000")))
        peer.send(frame(GOAWAY, 0, 0, b"\0" * 8))
        body = b""
        while True:
            found = peer.until(lambda each: each.kind in (DATA, HEADERS))
            body += found.payload if found.kind == DATA else b""
            if found.flags & END_STREAM:
                break
        assert len(body) > 50_000
        peer.ending()


# ----- floods: others are served, the connection is bounded or ended -----


def test_headers_beyond_the_limit(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.encoder.header_table_size = 0
        peer.send(peer.request(1, UNARY, message(b""), *((f"x-{n}", "v" * 2000) for n in range(7))))
        peer.answer(1)
        many = block(
            peer,
            (":method", "POST"),
            (":scheme", "http"),
            (":path", UNARY),
            *((f"x-{n}", "v" * 2000) for n in range(30)),
        )
        pieces = [many[at : at + 16_000] for at in range(0, len(many), 16_000)]
        peer.send(frame(HEADERS, 0, 3, pieces[0]))
        for number, piece in enumerate(pieces[1:], 1):
            peer.send(frame(CONTINUATION, END_HEADERS if number == len(pieces) - 1 else 0, 3, piece))
        refused = peer.until(
            lambda each: each.kind in (RST_STREAM, GOAWAY) or (each.kind == HEADERS and each.stream == 3)
        )
        assert refused.kind in (RST_STREAM, GOAWAY, HEADERS)
    still_serves(http2)


def test_a_flood_of_continuations_ends_the_connection(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(frame(HEADERS, 0, 1, b"\x82"))
        _flood(peer, frame(CONTINUATION, 0, 1, b"\x40\x01x\x01y" * 10) * 100, 200)
        peer.ending()
    still_serves(http2)


def test_a_flood_of_pings_is_turned_away(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        peer.send(frame(PING, 0, 0, b"12345678") * 100)
        goes_away(peer, CALM)
    still_serves(http2)


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(frame(SETTINGS, 0, 0, setting(4, 65_535)), id="settings"),
        pytest.param(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"), id="window updates"),
        pytest.param(frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"), id="priorities"),
        pytest.param(frame(0x42, 0, 0, b""), id="unknown frames"),
    ],
)
def test_a_flood_that_is_never_read_back(http2: Served, flood: bytes) -> None:
    """The answers pile up in the kernel, not in the server, and others are served meanwhile."""
    with RawPeer(http2.address) as peer:
        sender = threading.Thread(target=_flood, args=(peer, flood * 1000, 300))
        sender.start()
        for _ in range(5):
            still_serves(http2)
        with suppress(OSError):  # ended by the server
            peer.socket.shutdown(socket.SHUT_RDWR)  # else it waits for ever
        sender.join()
    still_serves(http2)


def _flood(peer: RawPeer, data: bytes, times: int) -> None:
    try:
        for _ in range(times):
            peer.send(data)
    except OSError:
        return  # turned away, or no longer read


def test_rapid_resets(http2: Served) -> None:
    """Opened and reset at once, many times: the server goes on with others and with this one."""
    with RawPeer(http2.address) as peer:
        stream = 1
        for _ in range(100):
            burst = b""
            for _ in range(100):
                burst += peer.request(stream, SERVICE + "Coroutine", message(b"W"))
                burst += frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                stream += 2
            peer.send(burst)
        still_serves(http2)
        peer.send(peer.request(stream, UNARY, message(b"after")))
        assert peer.answer(stream)[0]["grpc-status"] == "0"
    assert http2.server.calls == set()  # type: ignore[union-attr]


def test_more_streams_than_allowed_are_refused(http2: Served) -> None:
    with RawPeer(http2.address) as peer:
        data = b"".join(peer.request(2 * n + 1, SERVICE + "Coroutine", message(b"W")) for n in range(20_010))
        sender = threading.Thread(target=peer.send, args=(data,))
        sender.start()
        refused = [peer.until(lambda each: each.kind == RST_STREAM) for _ in range(10)]
        assert {each.code for each in refused} == {0x7}
        sender.join(LIMIT_S)
    still_serves(http2)
