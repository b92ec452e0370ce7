"""Prepared statements: what a client named, and the parameters that it bound. Only texts and values, so bounded by bytes."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from structured_streaming.flight.failures import bad, not_found, too_many

_HANDLE = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many there may be."""

    of_client: int = 64
    in_all: int = 1024
    bytes_in_all: int = 64 << 20
    idle_s: float = 600.0


@dataclass(slots=True)
class _Prepared:
    client: str
    statement: str
    names: tuple[str, ...]
    size: int
    used: float
    values: tuple[object, ...] | None = None
    values_size: int = 0
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A statement that can run; `bound` tells which parameters it has."""

    statement: str
    parameters: list[object] | dict[str, object]
    bound: int


class PreparedStatements:
    """Those of all clients. A client is its connection. Calls raise CallError."""

    def __init__(self, bounds: Bounds = Bounds(), clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()
        self._all: OrderedDict[bytes, _Prepared] = OrderedDict()
        """The one that was used last is last."""
        self._of_client: Counter[str] = Counter()
        self._bytes = 0

    def __len__(self) -> int:
        with self._lock:
            self._forget_idle()
            return len(self._all)

    def check_room(self, client: str) -> None:
        """Before work is done for another one."""
        with self._lock:
            self._check_room(client, 0)

    def add(self, client: str, statement: str, names: tuple[str, ...]) -> bytes:
        """Its handle, which nobody can guess; `names` are those of its parameters, in order."""
        size = len(statement.encode())
        with self._lock:
            self._check_room(client, size)
            handle = os.urandom(_HANDLE)
            self._all[handle] = _Prepared(client, statement, names, size, self._clock())
            self._of_client[client] += 1
            self._bytes += size
            return handle

    def bind(self, handle: bytes, values: tuple[object, ...], size: int) -> None:
        """Sets its parameters; `size` is their bytes."""
        with self._lock:
            found = self._found(handle)
            if len(values) != len(found.names):
                raise bad(
                    f"the statement has {len(found.names)} parameters, and {len(values)} columns were bound; bind one row "
                    "with a column for each"
                )
            self._check_bytes(size - found.values_size)
            self._bytes += size - found.values_size
            found.values, found.values_size = values, size
            found.bound += 1

    def names(self, handle: bytes) -> tuple[str, ...]:
        """Of its parameters, in order."""
        with self._lock:
            return self._found(handle).names

    def ready(self, handle: bytes, bound: int | None = None) -> Ready:
        """The statement with its parameters; with `bound`, only as they were bound then."""
        with self._lock:
            found = self._found(handle)
            if bound is not None and bound != found.bound:
                raise bad("parameters were bound anew since this ticket; ask again with GetFlightInfo")
            if found.names and found.values is None:
                raise bad(f"the statement has {len(found.names)} parameters; bind them first")
            values = found.values or ()
            by_place = all(name.isdecimal() for name in found.names)
            parameters = list(values) if by_place else dict(zip(found.names, values, strict=True))
            return Ready(found.statement, parameters, found.bound)

    def close(self, handle: bytes) -> None:
        """Forgets it; one that is gone already is no error, since drivers close what expired."""
        with self._lock:
            if handle in self._all:
                self._forget(handle)

    def _found(self, handle: bytes) -> _Prepared:
        self._forget_idle()
        found = self._all.get(handle)
        if found is None:
            raise not_found(
                f"no prepared statement has this handle; those not used for {self._bounds.idle_s:g} s are closed: prepare it again"
            )
        found.used = self._clock()
        self._all.move_to_end(handle)
        return found

    def _check_room(self, client: str, size: int) -> None:
        self._forget_idle()
        if self._of_client[client] >= self._bounds.of_client:
            raise too_many(
                f"a connection has {self._bounds.of_client} prepared statements at most; close some"
            )
        if len(self._all) >= self._bounds.in_all:
            raise too_many(
                f"there are {self._bounds.in_all:,} prepared statements already; close some, or try again later"
            )
        self._check_bytes(size)

    def _check_bytes(self, more: int) -> None:
        if self._bytes + more > self._bounds.bytes_in_all:
            raise too_many(
                f"prepared statements and their parameters may have {self._bounds.bytes_in_all:,} bytes in all; close some, or "
                "try again later"
            )

    def _forget_idle(self) -> None:
        before = self._clock() - self._bounds.idle_s
        while self._all:
            handle, oldest = next(iter(self._all.items()))
            if oldest.used > before:
                return
            self._forget(handle)

    def _forget(self, handle: bytes) -> None:
        found = self._all.pop(handle)
        self._bytes -= found.size + found.values_size
        self._of_client[found.client] -= 1
        if not self._of_client[found.client]:
            del self._of_client[found.client]
