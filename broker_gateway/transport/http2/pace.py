"""How much of the event loop a connection gets: frames are served for a share of each turn, floods are turned away.

| frames | bound |
|---|---|
| all | QUANTUM_S a turn, less where many connections have more to serve; what is left is served in later turns |
| SETTINGS | 100 at once, 20 a second |
| WINDOW_UPDATE, PRIORITY, acknowledged PING | 10,000 at once, 1,000 a second, and one for each 4 bytes sent to the peer |

The engine bounds empty DATA and CONTINUATION frames, sizes of header blocks and resets of its own making.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

QUANTUM_S = 0.005
_LEAST_QUANTUM_S = 0.0005
TURN_S = 0.02
"""For all connections that have something left from turns before."""
_SETTINGS, _SETTINGS_A_S = 100, 20.0
_OVERHEAD, _OVERHEAD_A_S, _BYTES_EACH = 10_000, 1000.0, 4


class Backlogged(Protocol):
    """A connection with frames that wait for their turn."""

    def go_on(self) -> None:
        """Serves some; what is still left is deferred again."""


class Pace:
    """Shares the turns of the event loop between connections."""

    def __init__(self) -> None:
        self._waiting: deque[Backlogged] = deque()

    def until(self, now: float) -> float:
        """Up to when a connection may serve that begins `now`, by the monotonic clock."""
        share = TURN_S / (1 + len(self._waiting))
        return now + min(QUANTUM_S, max(_LEAST_QUANTUM_S, share))

    def defer(self, connection: Backlogged) -> None:
        """Lets `connection` go on in a later turn; those that wait take turns."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(connection)

    def _go_on(self) -> None:
        until = time.monotonic() + TURN_S
        left = len(self._waiting)
        try:
            while left and time.monotonic() < until:
                left -= 1
                try:
                    self._waiting[0].go_on()
                finally:
                    self._waiting.popleft()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)


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
