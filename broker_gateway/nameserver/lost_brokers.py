"""Brokers that went without a word: their connection closed, or they are silent. They are removed in turns of the loop,
so much work in each (`WORK`), for one host may have thousands of brokers and a million topics.

A broker that has registered anew, or given a sign of life, when its turn comes stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

import structlog

from broker_gateway.nameserver.brokers import BrokerKey, MinBrokerIdChange
from broker_gateway.nameserver.route_table import RouteTable

log = structlog.get_logger(__name__)

WORK = 2000
"""Topics that a tick clears; what else it does counts as so many (`RouteTable.work_of`)."""


class LostBrokers:
    """Calls `notify` with the brokers whose least id has changed."""

    def __init__(self, routes: RouteTable, notify: Callable[[list[MinBrokerIdChange]], None]) -> None:
        self._routes = routes
        self._notify = notify
        self._line: deque[Callable[[], BrokerKey | None]] = deque()
        self._silent: set[BrokerKey] = set()
        self.scheduled: asyncio.Handle | None = None
        """The next tick; None while nothing is left to do."""

    def connection_closed(self, connection: Hashable) -> None:
        """Its brokers are gone, unless they register through another one."""
        if self._routes.live.first_of(connection) is not None:
            self._line.append(lambda: self._routes.live.first_of(connection))
            self.go_on()

    def silent(self, key: BrokerKey, end: Callable[[], None]) -> None:
        """A broker is gone unless it is heard until its turn, which begins with `end`."""
        if key in self._silent:
            return
        self._silent.add(key)
        ended = False

        def gone() -> BrokerKey | None:
            nonlocal ended
            if not self._routes.live.is_expired(key):
                self._silent.discard(key)
                return None
            if not ended:
                ended = True
                end()
            return key

        self._line.append(gone)
        self.go_on()

    def go_on(self) -> None:
        """There is something to do in the next tick."""
        if self.scheduled is None:
            self.scheduled = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        """What is in line stays."""
        if self.scheduled is not None:
            self.scheduled.cancel()

    def _tick(self) -> None:
        self.scheduled = None
        left = WORK
        try:
            while self._line and left > 0:
                left -= self._remove_one(self._line[0])
            if left > 0:
                self._routes.topics.cleanup.clear(left)
        finally:
            if self._line or self._routes.topics.cleanup:
                self.go_on()

    def _remove_one(self, following: Callable[[], BrokerKey | None]) -> int:
        """One name of the broker that is first in line; the work that it took."""
        work, key = 1, None
        try:
            key = following()
            if key is None:
                self._line.popleft()
                return work
            work = self._routes.work_of(*key)
            change = self._routes.unregister_one(*key)
            if change is not None:
                self._notify([change])
        except Exception:
            log.exception(
                "a broker that is gone could not be unregistered; it goes when it is silent", key=key
            )
            self._line.remove(following)
            if key is not None:
                self._silent.discard(key)
        return work
