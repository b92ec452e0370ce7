"""The address server: an HTTP server whose answer is the list of name servers in one line.

Source of the URL and of the answer's form: `MixAll.getWSAddr` and `DefaultTopAddressing` of Apache RocketMQ.
"""

from __future__ import annotations

import asyncio
import contextlib

from broker_gateway.config.registration import RegistrationOptions, name_server_addresses

TIMEOUT_S = 3.0
MAX_ANSWER = 16 << 10
"""Bytes of the whole answer, headers too."""
_PORT = 8080


class AddressServerError(Exception):
    """The address server gave no list; the text says why."""


def url_parts(options: RegistrationOptions) -> tuple[str, int, str]:
    """Host, port and path that are asked."""
    host, _, port = options.rmq_address_server_domain.partition(":")
    return host, int(port or _PORT), f"/rocketmq/{options.rmq_address_server_sub_group}"


async def fetch_name_servers(options: RegistrationOptions) -> list[str]:
    """The list of name servers, each address checked. Raises AddressServerError."""
    host, port, path = url_parts(options)
    url = f"http://{options.rmq_address_server_domain}{path}"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await _get(host, port, path)
    except TimeoutError as error:
        raise AddressServerError(f"{url}: no answer in {TIMEOUT_S:g} s") from error
    except (OSError, OverflowError, UnicodeError) as error:
        raise AddressServerError(f"{url}: {error}") from error
    return parsed(answer, url)


def parsed(answer: bytes, url: str) -> list[str]:
    """The list in an HTTP answer. Raises AddressServerError."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = lines[0].split(" ", 2)
    if not separator or len(status) < 2 or not status[0].startswith("HTTP/1."):
        raise AddressServerError(f"{url}: {lines[0][:80]!r} is no HTTP answer")
    if status[1] != "200":
        raise AddressServerError(f"{url}: status {status[1][:10]}, where 200 is needed")
    if any(line.lower().startswith("transfer-encoding:") for line in lines[1:]):
        raise AddressServerError(f"{url}: the answer is chunked, which HTTP/1.0 does not know")
    text = body.decode("utf-8", "replace").strip()
    line = text.splitlines()[0] if text else ""
    try:
        found = name_server_addresses(line)
    except ValueError as error:
        raise AddressServerError(f"{url}: {error}") from error
    if not found:
        raise AddressServerError(f"{url}: the answer is empty, where name servers as host:port;… are needed")
    return found


async def _get(host: str, port: int, path: str) -> bytes:
    """HTTP/1.0, whose answers end with the connection."""
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_ANSWER)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        answer = bytearray()
        while chunk := await reader.read(4096):
            answer += chunk
            if len(answer) > MAX_ANSWER:
                raise AddressServerError(f"http://{host}:{port}{path}: more than {MAX_ANSWER} bytes")
        return bytes(answer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
