"""SIGINT and SIGTERM as exceptions of the main thread, for commands that end what they began."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from broker_gateway.cli.output import warn
from structured_streaming.errors import LakeError, with_causes
from structured_streaming.signal_handlers import handled_by

_OF_A_STOP = (OSError, LakeError, typer.Exit)
"""Errors of ours, and of the system's, with which a command may fail once a signal has it end."""
_OF_SIGNALS = re.compile(r"(click|typer|pydantic_core|_?duckdb)\b|builtins RuntimeError Query interrupted")
"""Module, type and text of errors that say no more than that a signal came: typer's prompt, pydantic, DuckDB."""


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
def raised_signals(*, first_alone: bool = False) -> Iterator[list[Signalled]]:
    """Within, signals raise Signalled, unless others take them meanwhile. Other threads than the main one get none.

    Yields those that came: a library may swallow the exception, or raise its own in its place. The newest leaves at the end if nobody
    took it. `first_alone`: later ones are in the list and not raised, so that a stop which the first began may call a library that an
    exception would leave halfway, and still see that it is to hurry.
    """
    came: list[Signalled] = []

    def take(number: int, _frame: object) -> None:
        came.append(Signalled(number))
        if not (first_alone and came[1:]):
            raise came[-1]

    with _left_as_signalled(came), handled_by(take):
        yield came


@contextmanager
def _left_as_signalled(came: list[Signalled]) -> Iterator[None]:
    """Raises the newest signal at the end, unless somebody took it; also in place of a library's own error for it. An error of ours
    that the signal caused is raised as it is; any other error is printed before the signal is raised."""
    try:
        yield
    except Exception as error:
        if not came or came[-1].answered or (isinstance(error, _OF_A_STOP) and _follows_signal(error)):
            raise
        name = type(error).__name__
        if not _OF_SIGNALS.match(f"{type(error).__module__} {name} {error}"):
            warn([f"{name} while {came[-1]} ended the command: {error}"])
        raise came[-1] from error
    if came and not came[-1].answered:
        raise came[-1]


def _follows_signal(error: BaseException) -> bool:
    return any(isinstance(each, Signalled) for each in with_causes(error))


@contextmanager
def signals_held() -> Iterator[None]:
    """Within `raised_signals`: a signal that comes meanwhile is raised at the end.

    A process that is being started would be nobody's to end where an exception comes before `Popen` has returned.
    """
    held: list[int] = []
    try:
        with handled_by(lambda number, _frame: held.append(number)):
            yield
    finally:
        if held:
            signal.raise_signal(held[0])
