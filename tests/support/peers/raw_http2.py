"""An HTTP/2 client that sends whatever frames a test wants."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple

from hpack import Decoder, Encoder

from tests.support.waiting import LIMIT_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, ACK, PADDED = 0x1, 0x4, 0x1, 0x8


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4], "big")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def setting(identifier: int, value: int) -> bytes:
    return struct.pack(">HI", identifier, value)


class RawPeer:
    """A connection; with `handshake` preface and settings are exchanged first."""

    def __init__(
        self, address: str, settings: bytes = b"", *, handshake: bool = True, source: str = ""
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.encoder = Encoder()
        self.decoder = Decoder()
        if handshake:
            self.send(PREFACE + frame(SETTINGS, 0, 0, settings))
            self.until(lambda each: each.kind == SETTINGS and each.flags & ACK != 0)
            self.send(frame(SETTINGS, ACK, 0))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, stream: int, path: str, body: bytes | None, *extra: tuple[str, str]) -> bytes:
        """Frames of a unary gRPC call; a body of None leaves the stream open."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *extra,
        ]
        block = self.encoder.encode(fields)
        head = frame(HEADERS, END_HEADERS, stream, block)
        if body is None:
            return head
        return head + frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(body)) + body)

    def read(self) -> Frame | None:
        """The next frame; None when the connection was closed."""
        while True:
            if len(self._buffer) >= 9:
                size = int.from_bytes(self._buffer[:3], "big") + 9
                if len(self._buffer) >= size:
                    found, self._buffer = self._buffer[:size], self._buffer[size:]
                    stream = int.from_bytes(found[5:9], "big") & 0x7FFFFFFF
                    return Frame(found[3], found[4], stream, found[9:])
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data

    def until(self, wanted: object) -> Frame:
        """Reads up to the first frame that is wanted; fails when the connection closes before it."""
        while True:
            found = self.read()
            assert found is not None, "the connection was closed"
            if wanted(found):  # type: ignore[operator]
                return found

    def ending(self) -> list[Frame]:
        """Every frame until the connection closes."""
        frames = []
        while (found := self.read()) is not None:
            frames.append(found)
        return frames

    def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """Headers and trailers together, and the body, of a response that fits the windows."""
        fields: dict[str, str] = {}
        body = b""
        while True:
            found = self.read()
            assert found is not None, "the connection was closed"
            if found.kind == HEADERS:
                decoded = {str(name): str(content) for name, content in self.decoder.decode(found.payload)}
                if found.stream == stream:
                    fields |= decoded
            if found.stream != stream:
                continue
            assert found.kind != RST_STREAM, f"stream {stream} was reset with {found.code}"
            if found.kind == DATA:
                body += found.payload
            if found.kind in (HEADERS, DATA) and found.flags & END_STREAM:
                return fields, body
