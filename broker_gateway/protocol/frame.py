"""Frames of the remoting protocol: bytes to commands and back. Knows no sockets.

| field | bytes | note |
|---|---|---|
| length | 4 | of everything behind it; with these four bytes at most 16 MiB (`com.rocketmq.remoting.frameMaxLength`) |
| header length | 4 | top byte: serialization, 0 JSON, 1 ROCKETMQ |
| header | | see `header` |
| body | rest | may be empty |

Rules, each looked at as soon as the bytes it needs are there:
1. length is at least 4 and within the limit.
2. The serialization is known, the header not longer than the frame holds and within MAX_HEADER.
3. The header is sound.
"""

from __future__ import annotations

import struct

from broker_gateway.protocol.command import Command, SerializeType
from broker_gateway.protocol.errors import EncodeError, ProtocolError
from broker_gateway.protocol.header import decode_header, encode_header

MAX_FRAME = 16 << 20
MAX_HEADER = 1 << 20
"""Bytes. Far above what any command needs (properties of a message: 32 KiB); the original lets a header fill the frame."""

_PREFIX = struct.Struct(">II")
assert _PREFIX.size == 8
_LENGTH = struct.Struct(">I")
assert _LENGTH.size == 4


def encode(command: Command, max_frame: int = MAX_FRAME) -> bytes:
    """The frame of a command. Raises EncodeError."""
    return encode_head(command, max_frame) + command.body


def encode_head(command: Command, max_frame: int = MAX_FRAME) -> bytes:
    """The frame of a command up to its body. Raises EncodeError."""
    header = encode_header(command)
    length = 4 + len(header) + len(command.body)
    if len(header) > MAX_HEADER:
        raise EncodeError(f"the header has {len(header)} bytes, {MAX_HEADER} are allowed")
    if 4 + length > max_frame:
        raise EncodeError(
            f"the frame has {4 + length} bytes, {max_frame} are allowed; ask for less at a time"
        )
    return _PREFIX.pack(length, command.serialize_type << 24 | len(header)) + header


class Decoder:
    """Bytes in, commands out. After a ProtocolError it is of no further use."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self.taken = 0
        """Bytes of the newest command's frame."""

    @property
    def buffered(self) -> int:
        """Bytes held that are no command yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_command(self) -> Command | None:
        """The next whole command; None when bytes are missing. Raises ProtocolError."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if length < 4:
            raise ProtocolError(f"frame length {length}: a frame has at least 4 bytes")
        if 4 + length > self._max_frame:
            raise ProtocolError(f"frame length {length}: {self._max_frame - 4} bytes are allowed")
        if len(buffer) < 8:
            return None
        _, marked = _PREFIX.unpack_from(buffer)
        kind, header_length = marked >> 24, marked & 0xFFFFFF
        if kind not in (SerializeType.JSON, SerializeType.ROCKETMQ):
            raise ProtocolError(f"serialization {kind} is unknown; 0 is JSON, 1 is ROCKETMQ")
        if header_length > length - 4:
            raise ProtocolError(f"header length {header_length} in a frame of {length} bytes")
        if header_length > MAX_HEADER:
            raise ProtocolError(f"header length {header_length}: {MAX_HEADER} bytes are allowed")
        if len(buffer) < 4 + length:
            return None
        with memoryview(buffer) as view:
            header, body = bytes(view[8 : 8 + header_length]), bytes(view[8 + header_length : 4 + length])
        del buffer[: 4 + length]
        self.taken = 4 + length
        return decode_header(SerializeType(kind), header, body)
