"""A reply that is given later in the tick, or when something arrives; without a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Bulkhead(Protocol):
    """Where calls are counted while they are under way."""

    def enter(self, peer: str) -> str:
        """Counts one of `peer`, `host:port`; what it returns is to be given to `leave`."""

    def leave(self, entered: str) -> None:
        """It is under way no more."""


class Reply(Generic[T]):
    """`set` by a service once; `cancel`led by a transport whose peer went away. May be awaited.

    It counts as under way in `bulkhead` until then. What the other side raises when it is told is logged and goes no
    further: whoever sets one reply has others to set.
    """

    __slots__ = ("_bulkhead", "_callback", "_entered", "_on_cancel", "_value", "done")

    def __init__(
        self, on_cancel: Callable[[], None] | None = None, bulkhead: Bulkhead | None = None, peer: str = ""
    ) -> None:
        self._callback: Callable[[T], None] | None = None
        self._on_cancel = on_cancel
        self._bulkhead = bulkhead
        self._entered = "" if bulkhead is None else bulkhead.enter(peer)
        self._value: T | None = None
        self.done = False
        """Whether it was set, or nobody waits for it any more."""

    def set(self, value: T) -> None:
        """Gives the reply; nothing happens when it is done already."""
        if self.done:
            return
        self.done = True
        if self._bulkhead is not None:
            self._bulkhead.leave(self._entered)
        self._value = value
        callback, self._callback, self._on_cancel = self._callback, None, None  # no cycle stays behind
        if callback is not None:
            try:
                callback(value)
            except Exception:
                log.exception("a reply could not be passed on")

    def when_set(self, callback: Callable[[T], None]) -> None:
        """Calls `callback` with the reply, at once if it is there already. One callback."""
        if self.done:
            callback(self._value)  # type: ignore[arg-type]
        else:
            self._callback = callback

    def cancel(self) -> None:
        """Nobody waits for it any more; the service hears of it."""
        if self.done:
            return
        self.done = True
        if self._bulkhead is not None:
            self._bulkhead.leave(self._entered)
        on_cancel, self._callback, self._on_cancel = self._on_cancel, None, None
        if on_cancel is not None:
            try:
                on_cancel()
            except Exception:
                log.exception("a service was not told that nobody waits for its reply")

    def abandon(self) -> None:
        """It will not be given, and nobody is told: the call was refused another way."""
        self._on_cancel = None
        self.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda ended: self.cancel() if ended.cancelled() else None)
        self.when_set(lambda value: None if waiter.done() else waiter.set_result(value))
        return (yield from waiter.__await__())
