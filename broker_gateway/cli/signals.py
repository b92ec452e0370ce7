"""SIGINT and SIGTERM as exceptions of the main thread, for commands that end what they began."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from structured_streaming.signal_handlers import handled_by


class Signalled(KeyboardInterrupt):
    """A signal came; `status` is what a command that it ended answers."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.status = 128 + number


def status_of(stopped: KeyboardInterrupt) -> int:
    """What a command answers that a signal ended; Signalled and Abandoned know which."""
    status: int = getattr(stopped, "status", 128 + signal.SIGINT)
    return status


@contextmanager
def raised_signals() -> Iterator[None]:
    """Within, signals raise Signalled, unless others take them meanwhile. Other threads than the main one get none."""

    def take(number: int, _frame: object) -> None:
        raise Signalled(number)

    with handled_by(take):
        yield


@contextmanager
def first_signal_raised() -> Iterator[list[Signalled]]:
    """As `raised_signals`, for the first alone. Yields a list of the later signals.

    A stop may then call a library that an exception would leave halfway, and still see that it is to hurry.
    """
    later: list[Signalled] = []
    came = False

    def take(number: int, _frame: object) -> None:
        nonlocal came
        if came:
            later.append(Signalled(number))
            return
        came = True
        raise Signalled(number)

    with handled_by(take):
        yield later


@contextmanager
def signals_held() -> Iterator[None]:
    """Within `raised_signals`: a signal that comes meanwhile is raised at the end.

    A process that is being started would be nobody's to end where an exception comes before `Popen` has returned.
    """
    held: list[int] = []
    with handled_by(lambda number, _frame: held.append(number)):
        yield
    if held:
        raise Signalled(held[0])
