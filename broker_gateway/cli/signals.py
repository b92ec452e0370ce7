"""SIGINT and SIGTERM as exceptions of the main thread, for commands that end what they began."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from structured_streaming.signal_handlers import handled_by


class Signalled(KeyboardInterrupt):
    """A signal came; `status` is what a command that it ended answers. `answered`: somebody took it, and the command goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.status = 128 + number
        self.answered = False


def status_of(stopped: KeyboardInterrupt) -> int:
    """What a command answers that a signal ended; Signalled and Abandoned know which."""
    status: int = getattr(stopped, "status", 128 + signal.SIGINT)
    return status


@contextmanager
def raised_signals() -> Iterator[list[Signalled]]:
    """Within, signals raise Signalled, unless others take them meanwhile. Other threads than the main one get none.

    Yields those that came: a library may swallow the exception. The error that one raises in its place leaves as Signalled.
    """
    came: list[Signalled] = []

    def take(number: int, _frame: object) -> None:
        came.append(Signalled(number))
        raise came[-1]

    with _left_as_signalled(came), handled_by(take):
        yield came


@contextmanager
def first_signal_raised() -> Iterator[list[Signalled]]:
    """As `raised_signals`, for the first alone. Yields a list of the later signals.

    A stop may then call a library that an exception would leave halfway, and still see that it is to hurry.
    """
    first: list[Signalled] = []
    later: list[Signalled] = []

    def take(number: int, _frame: object) -> None:
        if first:
            later.append(Signalled(number))
            return
        first.append(Signalled(number))
        raise first[0]

    with _left_as_signalled(first), handled_by(take):
        yield later


@contextmanager
def _left_as_signalled(came: list[Signalled]) -> Iterator[None]:
    """An error whose chain has no Signalled, though one came and nobody took it, is a library's own word for it: pydantic raises
    its error in place of whatever a function that it calls has raised. What fails once Signalled is on its way stays what it is."""
    try:
        yield
    except Exception as error:
        if not came or came[-1].answered or _follows_signal(error):
            raise
        raise came[-1] from error


def _follows_signal(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Signalled):
        error = error.__cause__ or error.__context__
    return error is not None


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
