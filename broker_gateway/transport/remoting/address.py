"""Addresses as RocketMQ writes them: `host:port`, several divided by `;`."""

from __future__ import annotations

import ipaddress

from broker_gateway.protocol.errors import ConnectError


def parse_address(address: str) -> tuple[str, int]:
    """Host and port; an IPv6 host may stand in brackets. Raises ConnectError."""
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) <= 65535:
        raise ConnectError(f"address {address[:80]!r}: write it as host:port, with a port of 1 to 65535")
    return host, int(port)


def written_address(host: str, port: int) -> str:
    """`host:port`; an IPv6 host stands in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the numeric address is this machine's own."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
