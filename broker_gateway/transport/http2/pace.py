"""How much of the event loop a peer gets: frames are served for a share of each turn, floods are turned away.

| what | bound |
|---|---|
| all | QUANTUM_S a turn for the connections of an address; what is left is served in later turns, the addresses in turns |
| large requests | none in a turn of which TURN_S were taken, by whomever: with many addresses each brings one |
| SETTINGS | 100 at once, 20 a second |
| WINDOW_UPDATE, PRIORITY, acknowledged PING | 10,000 at once, 1,000 a second, and one for each 4 bytes sent to the peer |

The engine bounds empty DATA and CONTINUATION frames, sizes of header blocks and resets of its own making.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from broker_gateway.line import Line

QUANTUM_S = 0.0015
"""What the connections of an address may take of a turn; what they have beyond it is deferred."""
TURN_S = 0.003
"""What may be done of a turn of what was deferred, for all addresses; who sends large requests behind it is put off."""
_SETTINGS, _SETTINGS_A_S = 100, 20.0
_OVERHEAD, _OVERHEAD_A_S, _BYTES_EACH = 10_000, 1000.0, 4


class Backlogged(Protocol):
    """A connection, or a call, with work that waits for its turn; `host` is its peer's, see `shares.network_of`."""

    @property
    def host(self) -> str: ...

    def go_on(self, until: float) -> None:
        """Does some of it, up to a time; what is still left is deferred again."""


class Pace:
    """Shares the turns of the event loop between the addresses that connections come from.

    An address that took more than its share of a turn, by one large request perhaps, waits for as many turns longer.
    """

    def __init__(self) -> None:
        self._waiting: Line[Backlogged] = Line()
        self._scheduled = False
        self._spent: dict[str, float] = {}
        """Seconds by address, of this turn and what was too much in those before."""
        self._taken = 0.0
        """Seconds of this turn, by all addresses."""

    def until(self, host: str, now: float) -> float:
        """Up to when a connection of `host` may serve, by the monotonic clock; `now` or before it: not in this turn."""
        return now + QUANTUM_S - self._spent.get(host, 0.0)

    def spent(self, host: str, seconds: float) -> None:
        """What a connection of `host` took of this turn."""
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._turn_over)
        self._spent[host] = self._spent.get(host, 0.0) + seconds
        self._taken += seconds

    @property
    def crowded(self) -> bool:
        """Whether so much was done in this turn that large requests are put off to others."""
        return self._taken > TURN_S

    def _turn_over(self) -> None:
        self._taken = 0.0
        self._spent = {host: spent - QUANTUM_S for host, spent in self._spent.items() if spent > QUANTUM_S}
        if self._spent:
            asyncio.get_running_loop().call_soon(self._turn_over)

    def defer(self, connection: Backlogged) -> None:
        """Lets `connection` go on in a later turn; addresses take turns, and so do the connections of one."""
        self._waiting.append(connection.host, connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """The addresses that have something left of their shares take turns, as far as the time goes."""
        self._scheduled = False
        now = time.monotonic()
        end, passed = now + TURN_S, 0
        try:
            while passed < self._waiting.hosts and now < end:
                until = self.until(self._waiting.next_host, now)
                if until <= now:
                    self._waiting.pass_over()
                    passed += 1
                    continue
                passed = 0
                connection = self._waiting.pop()
                connection.go_on(until)
                after = time.monotonic()
                self.spent(connection.host, after - now)
                now = after
        finally:
            if self._waiting:
                self._schedule()


class Overhead:
    """Frames of one connection that carry nothing; `settings` and `other` say whether one more, at `now`, is too many."""

    __slots__ = ("_other", "_other_at", "_settings", "_settings_at", "sent")

    def __init__(self, now: float) -> None:
        self._settings = self._other = 0.0
        self._settings_at = self._other_at = now
        self.sent = 0
        """Bytes sent to the peer since an `other` came."""

    def settings(self, now: float) -> bool:
        self._settings = max(0.0, self._settings - (now - self._settings_at) * _SETTINGS_A_S) + 1
        self._settings_at = now
        return self._settings > _SETTINGS

    def other(self, now: float) -> bool:
        earned = (now - self._other_at) * _OVERHEAD_A_S + self.sent / _BYTES_EACH
        self._other = max(0.0, self._other - earned) + 1
        self._other_at, self.sent = now, 0
        return self._other > _OVERHEAD
