"""How many connections there may be: of all ports together, and of one address.

What the process may open is shared: the store's part is kept back, so that a new segment never waits for a connection
to close. Without room, a connection that has not made a call yet gives way to the next one, the oldest first; one that
has called keeps its place.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

import structlog

from broker_gateway.seldom import Seldom

log = structlog.get_logger(__name__)


class _Network:
    """The connections of one address."""

    __slots__ = ("count", "silent")

    def __init__(self) -> None:
        self.count = 0
        self.silent: dict[Place, None] = {}  # the first was opened first


class Place:
    """One connection's; `close` closes it."""

    __slots__ = ("_name", "_network", "_places", "close")

    def __init__(self, places: Places, name: str, network: _Network, close: Callable[[], object]) -> None:
        self._places: Places | None = places
        self._name = name
        self._network = network
        self.close = close

    def called(self) -> None:
        """The connection has made a call: it does not give way any more."""
        self._network.silent.pop(self, None)
        if self._places is not None:
            self._places._silent.pop(self, None)

    def leave(self) -> None:
        """The connection is closed."""
        self.called()
        places, self._places = self._places, None
        if places is not None:
            places._left(self._name, self._network)


class Places:
    """`most` says how many connections there may be now, `most_of_one` how many of one address; 0: half of them."""

    def __init__(self, most: Callable[[], int], most_of_one: int = 0) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._networks: dict[str, _Network] = {}
        self._silent: dict[Place, None] = {}  # the first was opened first
        self._refused = Seldom()
        self.count = 0

    def take(self, address: str, close: Callable[[], object]) -> Place | None:
        """A place for a connection from `address`, an IP address; None when there is none."""
        name = _network_of(address)
        network = self._networks.get(name) or _Network()
        most = self._most()
        of_one = self._most_of_one or max(1, most // 2)
        if not (_room(network.count, of_one, network.silent) and _room(self.count, most, self._silent)):
            if count := self._refused.count():
                log.warning(
                    "connections are refused; the limit of open files (LimitNOFILE=, ulimit -n) and "
                    "lakeMaxConnectionsPerAddress allow no more",
                    address=address,
                    of_this_address=network.count,
                    most_of_one_address=of_one,
                    open=self.count,
                    most=most,
                    refused=count,
                )
            return None
        place = Place(self, name, network, close)
        self._networks[name] = network
        self._silent[place] = network.silent[place] = None
        network.count += 1
        self.count += 1
        return place

    def _left(self, name: str, network: _Network) -> None:
        self.count -= 1
        network.count -= 1
        if not network.count:
            self._networks.pop(name, None)


def _room(count: int, most: int, silent: dict[Place, None]) -> bool:
    """Whether there is room for one more; a silent one is closed for it."""
    if count < most:
        return True
    oldest = next(iter(silent), None)
    if oldest is None:
        return False
    oldest.leave()
    oldest.close()
    return count <= most


@lru_cache(maxsize=4096)
def _network_of(address: str) -> str:
    """IPv4 addresses count each by itself, IPv6 ones by their first 64 bits, which one host may have all of."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> 64)
