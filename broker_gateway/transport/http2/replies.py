"""Replies that peers do not take: what is held of them, and whose connection gives way when it is too much.

A reply waits here because the peer's windows are closed, or because it does not read what was written. Beyond
CONNECTION_BYTES of one connection its further replies fail with RESOURCE_EXHAUSTED; beyond `limit` of all, the
connection closes that has held some for longest without a moment of holding none: who reads is never that one for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CONNECTION_BYTES = 32 << 20
"""Of one connection, beside the reply that goes beyond it."""


class Reader(Protocol):
    """A connection whose peer is to take replies."""

    peer: str

    def abort(self) -> None: ...


class Replies:
    """Bytes of replies that wait, by connection."""

    def __init__(self, limit: int, closed: Callable[[str, int], None]) -> None:
        """`closed` is told a peer whose connection is closed, and the bytes held for it."""
        self._limit = limit
        self._closed = closed
        self._held: dict[Reader, int] = {}  # the first has held some for longest
        self.held = 0

    def holds(self, reader: Reader, count: int) -> None:
        """`reader` holds `count` bytes now; connections may be closed by this."""
        self.held += count - self._held.get(reader, 0)
        if count:
            self._held[reader] = count
        else:
            self._held.pop(reader, None)
        while self.held > self._limit:
            longest = next(iter(self._held))
            held = self._held.pop(longest)
            self.held -= held
            self._closed(longest.peer, held)
            longest.abort()
