"""gRPC's framing over HTTP/2: length-prefixed messages, compression, timeouts, status messages. No IO.

Source: gRPC's "gRPC over HTTP2" specification.
"""

from __future__ import annotations

import gzip
import urllib.parse
import zlib

from broker_gateway.transport.request_limits import RequestLimits

PREFIX_BYTES = 5
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_GZIP_WBITS = 31


class FramingError(Exception):
    """A call whose bytes break gRPC's rules; `code` is the name of the status to answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def frame(payload: bytes) -> bytes:
    """A message as it stands on the wire, not compressed."""
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


def compressed_frame(payload: bytes) -> bytes:
    """A message as it stands on the wire, compressed with gzip."""
    packed = gzip.compress(payload, 1, mtime=0)
    return b"\x01" + len(packed).to_bytes(4, "big") + packed


def length_at(buffer: bytes | bytearray, position: int, limit: int) -> int:
    """Length of the message whose prefix stands at `position`. Raises FramingError beyond `limit`."""
    length = int.from_bytes(buffer[position + 1 : position + PREFIX_BYTES], "big")
    if buffer[position] > 1:
        raise FramingError("INTERNAL", f"the compressed flag is {buffer[position]}, it must be 0 or 1")
    if length > limit:
        raise FramingError("RESOURCE_EXHAUSTED", f"a message of {length} bytes, at most {limit} are taken")
    return length


def unpacked(payload: bytes, encoding: str, limits: RequestLimits) -> bytes:
    """Undoes the compression of a message whose flag is set, as far as `limits` let it. Raises FramingError."""
    if encoding in ("", "identity"):
        raise FramingError("INTERNAL", "the compressed flag is set, but grpc-encoding names no compression")
    engine = zlib.decompressobj(_GZIP_WBITS)
    most = limits.decompressed(len(payload))
    try:
        plain = engine.decompress(payload, most + 1)
    except zlib.error as error:
        raise FramingError("INTERNAL", f"a message does not decompress: {error}") from error
    if len(plain) > most:
        raise FramingError(
            "RESOURCE_EXHAUSTED",
            f"a message of {len(payload)} bytes decompresses to more than the {most} that are taken of it; "
            "send it uncompressed, or less in one",
        )
    if not engine.eof or engine.unused_data:
        raise FramingError("INTERNAL", "a compressed message is cut off, or more follows it")
    return plain


def timeout_s(text: bytes) -> float:
    """`grpc-timeout` in seconds. Raises FramingError."""
    digits = text[:-1]
    unit = _UNITS_S.get(text[-1:])
    if unit is None or not digits.isdigit() or len(digits) > 8:
        raise FramingError("INTERNAL", f"malformed grpc-timeout {text[:20].decode('ascii', 'replace')!r}")
    return int(digits) * unit


def percent_encoded(message: str) -> str:
    """A status message as `grpc-message` carries it: printable ASCII but `%`, the rest percent-encoded."""
    return urllib.parse.quote(message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
