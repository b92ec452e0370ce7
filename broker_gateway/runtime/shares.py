"""Shares of what is limited: no host takes alone what all need.

| taken by all together | a host may have |
|---|---|
| up to `free`, half of the limit | what is there |
| more | `most`, a percentage of the limit |

Whether what a host took of the first half counts is up to who counts: for calls it does not, for the others it does.

Who counts says what: calls, clients, bytes, connections, registered brokers.
"""

from __future__ import annotations

import ipaddress
import sys
from functools import lru_cache

LEAST_SHARED = 16
"""Less than this is not shared out."""


class Shares:
    """What each host has, and whether it may have more."""

    __slots__ = ("_of", "free", "most")

    def __init__(self, limit: int = 0, percent: int = 100) -> None:
        self._of: dict[str, int] = {}
        self.share_out(limit, percent)

    def share_out(self, limit: int, percent: int) -> None:
        """Beyond the first half of `limit` a host has `percent` of it at most; 100: no shares."""
        if limit >= LEAST_SHARED and percent < 100:
            self.free, self.most = limit // 2, max(limit * percent // 100, 1)
        else:
            self.free = self.most = sys.maxsize

    def bound_each(self, most: int) -> None:
        """A host has `most`, however few there are."""
        self.free, self.most = 0, most

    def refuse(self, host: str, taken: int, more: int = 1) -> bool:
        """Whether `host` may not have so many more, `taken` being what all have; fewer it always may."""
        return more > 0 and taken + more > self.free and self._of.get(host, 0) + more > self.most

    def of(self, host: str) -> int:
        """What is counted of `host`."""
        return self._of.get(host, 0)

    def count(self, host: str, change: int = 1) -> None:
        """`host` has so many more, or fewer. Raises ValueError when it gives back what it does not have."""
        left = self._of.get(host, 0) + change
        if left > 0:
            self._of[host] = left
        elif left == 0:
            self._of.pop(host, None)
        else:
            raise ValueError(f"{host} has {left - change} and gives back {-change}")

    def __bool__(self) -> bool:
        """Whether anybody has something."""
        return bool(self._of)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """What counts as one host: an IPv4 address, of IPv6 a network of 64 bits, which one host may have all of."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


def address_of(peer: str) -> str:
    """The address of a peer, `address:port` or `[address]:port`, without its port; of something else it is that itself."""
    return peer.rpartition(":")[0] or peer


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """What counts as the host of a peer: see `network_of`."""
    return network_of(address_of(peer).strip("[]"))
