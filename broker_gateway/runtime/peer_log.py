"""Log lines that peers cause, as often as they like: bounded for each address, with how many there were.

Of each event an address has its lines at once, one unless the caller allows more; what else it causes within
`EVERY_S` is counted and told in one line, with the last one's details, when that time is over (without an event loop:
with the next event of anybody). So many addresses and events are told apart; the others are counted together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from broker_gateway.runtime.delayed_report import DelayedReport, kept
from broker_gateway.runtime.shares import network_of

log = structlog.get_logger(__name__)

EVERY_S = 60.0
MOST_APART = 256
_OTHERS = "others"


class _Since:
    """What an address caused of an event since its first line."""

    __slots__ = ("began", "details", "level", "lines", "untold")

    def __init__(self, began: float, untold: int) -> None:
        self.began = began
        self.lines = 0
        self.untold = untold
        self.level = ""
        self.details: dict[str, Any] = {}

    def tell(self, event: str) -> None:
        times = {"times": self.untold} if self.untold > 1 else {}
        getattr(log, self.level)(event, **self.details, **times)
        self.untold, self.details = 0, {}


class PeerLog:
    """`host` is the address that an event comes from, `lines` how many of it are told at once. `clock` gives s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], _Since] = {}  # the first began first
        self._rest = DelayedReport(self._tell_rest)

    def info(self, host: str, event: str, /, lines: int = 1, **details: Any) -> None:
        self._happened("info", host, event, lines, details)

    def warning(self, host: str, event: str, /, lines: int = 1, **details: Any) -> None:
        self._happened("warning", host, event, lines, details)

    def error(self, host: str, event: str, /, lines: int = 1, **details: Any) -> None:
        self._happened("error", host, event, lines, details)

    def _happened(self, level: str, host: str, event: str, lines: int, details: dict[str, Any]) -> None:
        now, key = self._clock(), (network_of(host), event)
        if key not in self._since and len(self._since) >= MOST_APART:
            self._end(now, key)
            if len(self._since) >= MOST_APART:
                key = (_OTHERS, event)
        untold = self._end(now, key)
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = _Since(now, untold)
        since.untold += 1
        since.level = level
        if since.lines < lines:
            since.lines += 1
            since.details = details
            since.tell(event)
        else:
            since.details = kept(details)
            self._rest.within(since.began + EVERY_S - now)

    def _tell_rest(self, ends: bool) -> None:
        """Tells what was counted where the time is over, or of all at the end; the next line is due after as long."""
        now = self._clock()
        for key, since in list(self._since.items()):
            if not since.untold:
                continue
            if now - since.began < EVERY_S and not ends:
                self._rest.within(since.began + EVERY_S - now)
                break
            since.tell(key[1])
            since.began = now
            self._since[key] = self._since.pop(key)

    def _end(self, now: float, coming: tuple[str, str]) -> int:
        """Tells what was counted and forgets it, where the time is over; how many of `coming`, for its next line."""
        while self._since:
            key, since = next(iter(self._since.items()))
            if now - since.began < EVERY_S:
                break
            del self._since[key]
            if key == coming:
                return since.untold + self._end(now, coming)
            if since.untold:
                since.tell(key[1])
        return 0
