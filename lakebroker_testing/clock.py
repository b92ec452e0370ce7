"""A clock in the test's hand, and an event loop that lives by it.

The loop runs what is ready; when nothing is, its time stands still until the test moves the clock. Work given to a
thread is done at once, in line: nothing of a test depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from broker_gateway.runtime import clock

P = ParamSpec("P")
T = TypeVar("T")
_BEGIN_NS = 1_000_000_000_000
"""Where the monotonic clock begins: small, so that a float of seconds keeps nanoseconds."""
_THREAD_LOOK_S = 1.0


class ManualClock:
    """Wall and monotonic clock of this process while `in_place`; begins at the real time, in whole ms."""

    def __init__(self, start_ms: int | None = None) -> None:
        self.wall_ns = (time.time_ns() // 1_000_000 if start_ms is None else start_ms) * 1_000_000
        self.monotonic_ns = _BEGIN_NS

    @property
    def now_ms(self) -> int:
        """The wall clock, ms since the epoch."""
        return self.wall_ns // 1_000_000

    def move(self, nanoseconds: int) -> None:
        """Moves both on; timers that are due by then have not run yet."""
        self.wall_ns += nanoseconds
        self.monotonic_ns += nanoseconds

    def set_wall(self, now_ms: int) -> None:
        """Sets the wall clock alone, as an administrator would; it may go back."""
        self.wall_ns = now_ms * 1_000_000

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The broker's code reads this clock. Raises RuntimeError while another one is in place."""
        with clock.replaced(lambda: self.wall_ns, lambda: self.monotonic_ns):
            yield


class EscapedError(Exception):
    """An exception reached the event loop itself: nobody in the broker caught it. Its cause is the exception."""


class _InLine(ThreadPoolExecutor):
    """Does what is submitted at once; has no thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _Selector(selectors.DefaultSelector):
    """Tells the loop that it has nothing to do, where another would sleep."""

    idle: Callable[[float | None], float]
    selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.selects += 1
        if timeout is None or timeout > 0:
            timeout = self.idle(timeout)
        return super().select(timeout)


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is the clock. `busy` says whether a thread is going to call back: that is waited for."""

    def __init__(self, manual: ManualClock, busy: Callable[[], bool] = lambda: False) -> None:
        self._selecting = selector = _Selector()
        selector.idle = self._idle
        super().__init__(selector)
        self._manual = manual
        self._busy = busy
        self._until_ns = manual.monotonic_ns
        self._from_threads = 0
        self._escaped: list[BaseException] = []
        self.set_default_executor(_InLine(max_workers=1))
        self.set_exception_handler(self._keep)

    @property
    def iterations(self) -> int:
        """How many it has begun: what is done within one of them holds up everything else."""
        return self._selecting.selects

    def time(self) -> float:
        return self._manual.monotonic_ns / 1e9

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return super().run_in_executor(None, func, *args)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._from_threads += 1
        return super().call_soon_threadsafe(callback, *args, context=context)

    def settle(self) -> None:
        """Runs what is ready and what that brings, until nothing is. Raises EscapedError."""
        while True:
            seen = self._from_threads
            self.run_forever()
            if seen == self._from_threads:  # else it may have come while the loop was stopping
                break
        if self._escaped:
            first, self._escaped = self._escaped[0], []
            raise EscapedError(f"{type(first).__name__} reached the event loop: {first}") from first

    def advance(self, seconds: float) -> None:
        """Moves the clock on; every timer on the way runs at its time. Raises EscapedError."""
        self._until_ns = self._manual.monotonic_ns + round(seconds * 1e9)
        self.settle()

    def jump(self, seconds: float) -> None:
        """Moves the clock on at once, as if the process had been stopped meanwhile; what is due runs once."""
        self._manual.move(round(seconds * 1e9))
        self.settle()

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, and what is ready beside it.

        Raises what it raises, EscapedError, and TimeoutError when it waits for the clock.
        """
        task = self.create_task(work)
        self.settle()
        if not task.done():
            task.cancel()
            self.settle()
            raise TimeoutError(f"{task.get_coro()} waits for the clock; begin it and advance the clock")
        return task.result()

    def abandon(self) -> None:
        """Cancels every task; what they do about it is done. Raises EscapedError."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.settle()

    def _idle(self, timeout: float | None) -> float:
        """Nothing is ready for `timeout` seconds (None: no timer). How long to wait for threads, in real time."""
        if self._busy():
            return _THREAD_LOOK_S
        left = self._until_ns - self._manual.monotonic_ns
        if left <= 0:
            self.stop()
        else:
            self._manual.move(left if timeout is None else min(left, max(round(timeout * 1e9), 1)))
        return 0.0

    def _keep(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._escaped.append(error if error is not None else RuntimeError(str(context.get("message"))))
