"""What runs for a call: it ends by itself, by its time, when its client goes away or cancels it, or when the server stops.

| what ends it | what happens |
|---|---|
| its time, which begins when it has a place among the statements | the engine is interrupted, the client gets DEADLINE_EXCEEDED; one that does not even take that loses the call |
| the client goes away | the engine is interrupted |
| CancelFlightInfo, CancelQuery | the engine is interrupted, the client gets CANCELLED |
| the server stops | the engine is interrupted, the client gets UNAVAILABLE |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from structured_streaming.embedded.running import PATIENCE_S, Watch
from structured_streaming.flight.failures import CallError, too_many

ANSWER_S = PATIENCE_S + 10.0
"""For an engine that does not stop to be ended, and for the client to take the answer, before its call is ended without one."""
_LOOK_S = 0.25
"""How often one that waits for a place looks whether its call was ended."""


class Work(Watch):
    """One call's; the engine's statements are run under it. Methods may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._reason: CallError | None = None
        self.done = threading.Event()

    def end(self, reason: CallError) -> None:
        """Ends it and what the engine does for it, unless it ended already."""
        if self._reason is None and not self.done.is_set():
            self._reason = reason
        self.cancel()

    def check(self) -> None:
        """Raises CallError where it was ended."""
        if self._reason is not None:
            raise self._reason

    @contextmanager
    def over(self, running: Any) -> Iterator[None]:
        with super().over(running):
            if self._reason is not None:  # which came before there was anything to cancel
                running.cancel()
            yield


class Calls:
    """All that run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[bytes, Work] = {}
        self._others: set[Work] = set()
        self._stopping: CallError | None = None

    @contextmanager
    def begun(self, context: grpc.ServicerContext, id: bytes = b"") -> Iterator[Work]:
        """Within, a call's work runs; `id` is what `cancel` knows it by. Raises CallError."""
        work = Work()
        self._add(work, id)
        gone = CallError(grpc.StatusCode.CANCELLED, "the client went away")
        try:
            if not context.add_callback(lambda: work.end(gone)):
                raise gone
            yield work
        except Exception as error:
            work.check()  # what ended it is the better reason
            # of the requests' iterator, which may hear of the end before the callback does
            if type(error) is grpc.RpcError:
                raise gone from error
            raise
        finally:
            work.done.set()
            with self._lock:
                self._others.discard(work)
                if id:
                    del self._named[id]

    def cancel(self, id: bytes) -> bool:
        """Ends one for a client; whether it ran."""
        with self._lock:
            work = self._named.get(id)
        if work is not None:
            work.end(CallError(grpc.StatusCode.CANCELLED, "the statement was cancelled"))
        return work is not None

    def stop(self) -> None:
        """Ends all there are, and takes no more."""
        stopping = CallError(grpc.StatusCode.UNAVAILABLE, "the server stops; ask again when it is back")
        with self._lock:
            self._stopping = stopping
            found = [*self._named.values(), *self._others]
        for work in found:
            work.end(stopping)

    def _add(self, work: Work, id: bytes) -> None:
        with self._lock:
            if self._stopping is not None:
                raise self._stopping
            if id in self._named:
                raise too_many(
                    "the ticket's statement runs already; ask with GetFlightInfo for another run of it"
                )
            if id:
                self._named[id] = work
            else:
                self._others.add(work)


class Places:
    """For so many statements at a time; others wait a while."""

    def __init__(self, most: int, wait_s: float) -> None:
        self._most = most
        self._wait_s = wait_s
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, work: Work) -> Iterator[None]:
        """Within, one of them is this work's. Raises CallError."""
        self._take(work)
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify()

    def _take(self, work: Work) -> None:
        end = time.monotonic() + self._wait_s
        with self._changed:
            while self._taken >= self._most:
                work.check()
                left = end - time.monotonic()
                if left <= 0:
                    raise too_many(
                        f"as many statements run already as may (--statements {self._most}), and none ended within "
                        f"{self._wait_s:g} s; try again, or start the server with more"
                    )
                self._changed.wait(min(left, _LOOK_S))
            work.check()
            self._taken += 1


@contextmanager
def limited(work: Work, context: grpc.ServicerContext, most_s: float) -> Iterator[None]:
    """Within, the work is ended after `most_s`; its client then has `ANSWER_S` to take the answer that says so."""
    timer = threading.Timer(most_s, _expire, (work, context, most_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _expire(work: Work, context: grpc.ServicerContext, most_s: float) -> None:
    work.end(
        CallError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"a call has {most_s:g} s, to the last row that the client takes; ask for less, or start the server with a "
            "longer --timeout",
        )
    )
    if not work.done.wait(ANSWER_S):
        context.cancel()  # type: ignore[no-untyped-call]
