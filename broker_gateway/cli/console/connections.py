"""Connections of the page's port: a request has to be there in time, and to have an end, before anything else is known of who sends it.

| awaited | at most |
|---|---|
| a request with its head and body, from the connection's beginning or the answer before | `request_s` |
| that its answer is read | `answer_s` |
| head of a request | `MOST_HEAD_BYTES`: 400 |

A websocket's limits are the library's: pings that have to be answered, and the gate's number of tabs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import h11

MOST_HEAD_BYTES = 32 << 10


class Connection(H11Protocol):
    """uvicorn's by h11: its other parser takes heads without an end."""

    request_s = 10.0
    answer_s = 120.0
    _timer: asyncio.TimerHandle | None = None
    _awaited_s = 0.0
    """Of what is awaited now; 0 for nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins."""
        super().connection_made(transport)
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        self._rest()
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

    def _rest(self) -> None:
        self._awaited_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
