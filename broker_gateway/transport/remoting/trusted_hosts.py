"""Hosts that may speak for brokers at other addresses, as `lakeBrokerAddresses` lists them."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_MOST = 1024
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedHosts:
    """IP addresses, networks and host names. A name stands for itself: it is compared, never looked up."""

    def __init__(self, networks: list[Network], names: set[str]) -> None:
        self._networks = networks
        self._names = names

    def __contains__(self, host: str) -> bool:
        if host in self._names:
            return True
        address = _ip(host)
        return address is not None and any(address in network for network in self._networks)


def same_host(one: str, other: str) -> bool:
    """Whether two hosts are written alike; IP addresses are compared by value."""
    return one == other or ((address := _ip(one)) is not None and address == _ip(other))


@lru_cache(maxsize=16)
def trusted_hosts(text: str) -> TrustedHosts:
    """Reads `10.0.0.0/8;192.168.1.7;broker-b.example`. Raises ValueError, which names the part that is wrong."""
    networks: list[Network] = []
    names: set[str] = set()
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if len(parts) > _MOST:
        raise ValueError(f"{len(parts)} hosts: {_MOST} are allowed; list networks")
    for part in parts:
        try:
            networks.append(ipaddress.ip_network(part.removeprefix("[").removesuffix("]")))
        except ValueError as error:
            if "/" in part or ":" in part or not _NAME.fullmatch(part):
                raise ValueError(
                    f"{part[:80]!r} is no IP address, network or host name ({error}); write them as "
                    "10.0.0.0/8;192.168.1.7;broker-b.example"
                ) from error
            names.add(part)
    return TrustedHosts(networks, names)


def _checked(text: str) -> str:
    trusted_hosts(text)
    return text


HostList = Annotated[str, AfterValidator(_checked)]


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
