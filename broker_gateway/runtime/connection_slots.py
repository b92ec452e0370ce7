"""How many connections there may be: of all ports together, and of one address.

What the process may open is shared: the store's part is kept back, so that a new segment never waits for a connection
to close. Without room, a connection that has not made a call yet gives way to the next one, the oldest first; one that
has called keeps its slot.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from broker_gateway.runtime.shares import Shares, network_of

log = structlog.get_logger(__name__)


class ConnectionSlot:
    """One connection's; `close` closes it."""

    __slots__ = ("_network", "_slots", "close")

    def __init__(self, slots: ConnectionSlots, network: str, close: Callable[[], object]) -> None:
        self._slots: ConnectionSlots | None = slots
        self._network = network
        self.close = close

    def called(self) -> None:
        """The connection has made a call: it does not give way any more."""
        if self._slots is not None:
            self._slots._called(self, self._network)

    def leave(self) -> None:
        """The connection is closed."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._called(self, self._network)
            slots._left(self._network)


class ConnectionSlots:
    """`most` says how many connections there may be now, `most_of_one` how many of one address; 0: half of them."""

    def __init__(self, most: Callable[[], int], most_of_one: int = 0) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._shares = Shares()
        self._silent: dict[ConnectionSlot, None] = {}  # the first was opened first
        self._silent_of: dict[str, dict[ConnectionSlot, None]] = {}
        self._refused = RateLimitedLog("refused")
        self.count = 0

    def take(self, address: str, close: Callable[[], object]) -> ConnectionSlot | None:
        """A slot for a connection from `address`, an IP address; None when there is none."""
        network, most = network_of(address), self._most()
        self._shares.bound_each(self._most_of_one or max(1, most // 2))
        if not (self._room_of_one(network) and self._room(most)):
            self._refused.happened(
                log.warning,
                "connections are refused; the limit of open files (LimitNOFILE=, ulimit -n) and "
                "lakeMaxConnectionsPerAddress allow no more",
                address=address,
                of_this_address=self._shares.of(network),
                most_of_one_address=self._shares.most,
                open=self.count,
                most=most,
            )
            return None
        slot = ConnectionSlot(self, network, close)
        self._silent[slot] = self._silent_of.setdefault(network, {})[slot] = None
        self._shares.count(network)
        self.count += 1
        return slot

    def _room_of_one(self, network: str) -> bool:
        """Whether an address may have one more; a silent one of its own is closed for it."""
        if not self._shares.refuse(network, self.count):
            return True
        return _closed(self._silent_of.get(network, {})) and not self._shares.refuse(network, self.count)

    def _room(self, most: int) -> bool:
        """Whether there may be one more; a silent one is closed for it."""
        return self.count < most or (_closed(self._silent) and self.count < most)

    def _called(self, slot: ConnectionSlot, network: str) -> None:
        self._silent.pop(slot, None)
        silent = self._silent_of.get(network, {})
        silent.pop(slot, None)
        if not silent:
            self._silent_of.pop(network, None)

    def _left(self, network: str) -> None:
        self.count -= 1
        self._shares.count(network, -1)


def _closed(silent: dict[ConnectionSlot, None]) -> bool:
    """Closes the oldest of them, if there is one."""
    oldest = next(iter(silent), None)
    if oldest is None:
        return False
    oldest.leave()
    oldest.close()
    return True
