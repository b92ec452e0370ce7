"""A reply that is given later in the turn, or when something arrives; without a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Reply(Generic[T]):
    """`set` by a service once; `cancel`led by a transport whose peer went away. May be awaited."""

    __slots__ = ("_callback", "_on_cancel", "_value", "done")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._callback: Callable[[T], None] | None = None
        self._on_cancel = on_cancel
        self._value: T | None = None
        self.done = False
        """Whether it was set, or nobody waits for it any more."""

    def set(self, value: T) -> None:
        """Gives the reply; nothing happens when it is done already."""
        if self.done:
            return
        self.done = True
        self._value = value
        callback, self._callback, self._on_cancel = self._callback, None, None  # no cycle stays behind
        if callback is not None:
            callback(value)

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
        on_cancel, self._callback, self._on_cancel = self._on_cancel, None, None
        if on_cancel is not None:
            on_cancel()

    def __await__(self) -> Generator[Any, None, T]:
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda ended: self.cancel() if ended.cancelled() else None)
        self.when_set(lambda value: None if waiter.done() else waiter.set_result(value))
        return (yield from waiter.__await__())
