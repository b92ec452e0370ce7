"""What a reput needs and does not find now, such as a broker or an object store: it is waited for as long as it takes.

Such an error is a `NotThereError`. What fails within Spark comes back as text, in which the names of errors and of their
causes are found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from threading import Lock, Thread
from typing import TypeVar

from structured_streaming.errors import CatalogAwayError, StoreAwayError, UnreachableError

OURS = "structured_streaming.errors."
TELL_S = 300.0
"""Between two lines about what is away."""
_LOOK_S = 0.1
T = TypeVar("T")


def is_absence(text: str) -> bool:
    """Whether Spark's report of an error tells that something is away."""
    return names(text, CatalogAwayError, StoreAwayError, UnreachableError)


def names(text: str, *kinds: type[Exception]) -> bool:
    """Whether Spark's report has an error of one of these kinds; traces show lines of code, which have their names too."""
    return any(f"{OURS}{kind.__name__}: " in text for kind in kinds)


def as_spark_reports(error: BaseException) -> str:
    """An error of ours in the driver: a line for each cause, the error last."""
    return "\n".join(f"{OURS}{type(each).__name__}: {' '.join(str(each).split())}" for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)
    yield error


class Telling:
    """Says when to report that something is away: at first, then every `TELL_S`."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self) -> bool:
        """Counts as told."""
        now = time.monotonic()
        due = now >= self._next
        if due:
            self._next = now + TELL_S
        return due

    def over(self) -> None:
        """What was away is there again: the next absence is another."""
        self._next = 0.0


def unless(given_up: Callable[[], bool], work: Callable[[], T], undo: Callable[[T], None]) -> T | None:
    """The result of `work`, which may wait for what is away; None once `given_up` says so. A result that comes later is
    undone.

    It runs on a thread of its own, so that a signal is seen meanwhile.
    """
    future: Future[T] = Future()
    lock = Lock()
    left = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            return
        with lock:
            if not left:
                future.set_result(result)
                return
        undo(result)

    Thread(target=run, daemon=True, name="reput").start()
    while not future.done():
        wait([future], _LOOK_S)
        if not given_up():
            continue
        with lock:
            left = not future.done()
        if left:
            return None
    return future.result()
