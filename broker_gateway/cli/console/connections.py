"""Connections of the page's port: a request has to be there in time, and to have an end, before anything else is known of who sends it.

| awaited | at most |
|---|---|
| a request with its head and body, from the connection's beginning or the answer before | `request_s` |
| that its answer is read | `answer_s` |
| head of a request | `MOST_HEAD_BYTES`: 400 |
| connections of one address, of IPv6 of one /64 | `MOST_OF_ADDRESS`: the next are closed; of this machine, and of what a proxy passes on, as many as there are |

A websocket's limits are the library's: pings that have to be answered, and the gate's number of tabs.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import h11

MOST_HEAD_BYTES = 32 << 10
MOST_OF_ADDRESS = 200
"""A fifth of all that the port takes."""


def counted_as(peer: str) -> str | None:
    """As what the connections of an address count; None for this machine's, which are not counted."""
    address = ipaddress.ip_address(peer.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return None
    return (
        str(address) if address.version == 4 else str(ipaddress.ip_network((int(address), 64), strict=False))
    )


class Connection(H11Protocol):
    """uvicorn's by h11: its other parser takes heads without an end. `by_address`: connections that there are, of addresses that are
    counted."""

    by_address: ClassVar[Counter[str]] = Counter()
    _of: str | None = None

    request_s = 10.0
    answer_s = 120.0
    _timer: asyncio.TimerHandle | None = None
    _awaited_s = 0.0
    """Of what is awaited now; 0 for nothing."""

    def counted(self, peer: str) -> str | None:
        """As what a connection from an address counts; None: not at all."""
        return counted_as(peer)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins, or is closed where its address has as many as one may."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        of = self.counted(peer[0]) if peer else None
        if of is not None and self.by_address[of] >= MOST_OF_ADDRESS:
            transport.abort()
            return
        if of is not None:
            self._of = of
            self.by_address[of] += 1
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        self._rest()
        self._uncount()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Bytes came, or those that waited have their turn."""
        super().handle_events()
        self._await()

    def on_response_complete(self) -> None:
        """The next request is awaited."""
        self._rest()
        super().on_response_complete()
        self._await()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """It is another protocol's from now on."""
        super().handle_websocket_upgrade(event)
        self._rest()
        self._uncount()

    def _await(self) -> None:
        """A byte more does not begin the time anew."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._rest()
            return
        whole = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        awaited_s = self.answer_s if whole else self.request_s
        if self._awaited_s != awaited_s:
            self._rest()
            self._awaited_s = awaited_s
            self._timer = self.loop.call_later(awaited_s, self.transport.abort)

    def _uncount(self) -> None:
        if self._of is not None:
            self.by_address[self._of] -= 1
            if not self.by_address[self._of]:
                del self.by_address[self._of]
            self._of = None

    def _rest(self) -> None:
        self._awaited_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PassedOn(Connection):
    """By a proxy: all have its address, and are not counted."""

    def counted(self, peer: str) -> None:
        """Not at all."""
