"""Answers that list much and are the same until the route table changes: worked out once, kept encoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.frame import MAX_FRAME

_FREE_NS = 5_000_000
_SHARE = 10


class Encodable(Protocol):
    def encode(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    about: str
    body: bytes
    size: int
    until_ns: int


class Answers:
    """One body of each kind. A table that changes all the time has costly ones (more than 5 ms of processor time)
    worked out anew for a tenth of the time at most: until then they are those of a moment ago."""

    def __init__(self, table: RouteTable, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._table = table
        self._clock_ns = clock_ns
        self._kept: dict[str, _Kept] = {}

    def body(self, kind: str, query: Callable[[], Encodable], about: str = "") -> bytes:
        """The encoded answer of a kind, about one thing at a time. Raises RequestError when it fits no frame."""
        kept = self._kept.get(kind)
        current = kept is not None and kept.about == about and self._is_current(kept)
        if kept is None or not current:
            kept = self._kept[kind] = self._worked_out(query, about)
        if kept.size > MAX_FRAME:
            raise RequestError(
                f"the list has {kept.size} bytes, more than a frame of {MAX_FRAME}; ask for less, such as one topic's route"
            )
        return kept.body

    def _is_current(self, kept: _Kept) -> bool:
        return kept.version == self._table.version or self._clock_ns() < kept.until_ns

    def _worked_out(self, query: Callable[[], Encodable], about: str) -> _Kept:
        version, began_ns = self._table.version, time.thread_time_ns()
        body = query().encode()
        cost_ns = time.thread_time_ns() - began_ns
        wait_ns = cost_ns * _SHARE if cost_ns > _FREE_NS else 0
        fits = len(body) <= MAX_FRAME
        return _Kept(version, about, body if fits else b"", len(body), self._clock_ns() + wait_ns)
