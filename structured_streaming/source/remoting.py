"""One request of RocketMQ's remoting protocol and its answer, as name servers and brokers take it. Plaintext; no secrets.

| field of a frame | bytes | note |
|---|---|---|
| length | 4 | of everything behind it; at most `MAX_FRAME` |
| header length | 4 | top byte: serialization, 0 is JSON |
| header | | JSON: `code`, `opaque`, `flag`, ... |
| body | rest | may be empty |
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from typing import Any

from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.addresses import parse_address

MAX_FRAME = 4 << 20
"""Bytes. A broker is some 200 of them in what a name server tells."""
GET_BROKER_CONFIG = 26
GET_BROKER_CLUSTER_INFO = 106
_SUCCESS = 0
_RESPONSE_FLAG = 1
_OPAQUE = 1
_VERSION_5_5_0 = 513
_PREFIX = struct.Struct(">II")
assert _PREFIX.size == 8
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*+"?)|([{,]\s*+)(-?\d++)(?=\s*+:)', re.DOTALL)
"""A whole string, which is passed over, or a key that Java's fastjson writes without quotes."""


def ask(address: str, code: int, timeout_s: float) -> bytes:
    """The body of a server's answer to a request without fields.

    Raises UnreachableError when none comes within `timeout_s` (and the look-up of the host name), SourceError for one
    that refuses or makes no sense.
    """
    host, port = parse_address(address, "name servers and brokers")
    until = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(_left(until))
            connection.sendall(_request(code))
            length, marked = _PREFIX.unpack(_received(connection, _PREFIX.size, until))
            header_length = marked & 0xFFFFFF
            if marked >> 24 or not 4 + header_length <= length <= MAX_FRAME:
                raise SourceError(f"{address} speaks no remoting protocol; give the port of a name server")
            rest = _received(connection, length - 4, until)
    except TimeoutError as error:
        raise UnreachableError(f"{address} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise UnreachableError(f"{address}: {error.strerror or error}") from error
    answer = parsed(rest[:header_length], address)
    if not isinstance(answer, dict) or answer.get("opaque") != _OPAQUE:
        raise SourceError(f"{address} answered another request")
    if answer.get("code") != _SUCCESS:
        remark = str(answer.get("remark") or "")[:200]
        raise SourceError(f"{address} refused request {code} with code {answer.get('code')}: {remark}")
    return rest[header_length:]


def parsed(text: bytes, address: str) -> Any:
    """JSON as fastjson writes it. Raises SourceError."""
    try:
        decoded = text.decode("utf-8")
        return json.loads(_BARE_KEY.sub(_quoted, decoded))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{address} answered what is no JSON: {error}") from error


def _quoted(match: re.Match[str]) -> str:
    string, before, key = match.groups()
    return string if string is not None else f'{before}"{key}"'


def _request(code: int) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "language": "PYTHON",
            "opaque": _OPAQUE,
            "serializeTypeCurrentRPC": "JSON",
            "version": _VERSION_5_5_0,
        }
    ).encode()
    return _PREFIX.pack(4 + len(header), len(header)) + header


def _received(connection: socket.socket, size: int, until: float) -> bytes:
    """So many bytes. Raises OSError, TimeoutError after `until`."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(_left(until))
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise ConnectionResetError("the connection was closed before the answer")
        data += part
    return bytes(data)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
