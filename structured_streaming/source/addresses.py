"""Addresses of gateways and name servers: `host:port`, an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from structured_streaming.errors import SourceError

_LOCALHOST = ("localhost", "localhost.")


def parse_address(text: str, option: str, least_port: int = 1) -> tuple[str, int]:
    """Host, without brackets, and port. Raises SourceError, which names the option that has the address."""
    host, _, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    numeric = port.isascii() and port.isdecimal() and least_port <= int(port[:6]) <= 65535
    if not bare or not numeric or (":" in bare and bare == host) or any(each in bare for each in "/;, \t"):
        raise SourceError(
            f"{option}: address {text[:80]!r}: write it as host:port, with a port of {least_port} to 65535 (IPv6 as [::1]:8081)"
        )
    return bare, int(port)


def written(host: str, port: int) -> str:
    """`host:port`; an IPv6 host stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses(texts: Sequence[str], option: str) -> list[str]:
    """Addresses of a list, each once, without what is empty. Raises SourceError."""
    found = dict.fromkeys(written(*parse_address(each, option)) for each in texts if each.strip())
    return list(found)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name alone: no name but localhost, which could be looked up to anything."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() in _LOCALHOST
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
