"""Signals as exceptions: the first, and those that come while its consequences are under way."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable

import pytest
from pydantic import BaseModel, field_serializer
from pydantic_core import PydanticSerializationError

from broker_gateway.cli.signals import Signalled, raised_signals, signals_held
from structured_streaming.errors import LakeError


def test_signals_behind_the_first_are_noted_and_raise_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raised_signals(first_alone=True) as came:
        with pytest.raises(Signalled, match="SIGTERM") as stopped:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert [each.status for each in came] == [143, 130, 143]
        assert stopped.value is came[0]
        came[-1].answered = True
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_held_is_raised_at_the_end() -> None:
    done = []
    with raised_signals():
        with pytest.raises(Signalled, match="SIGTERM"), signals_held():
            done.append(signal.raise_signal(signal.SIGTERM))
        assert len(done) == 1
        with pytest.raises(Signalled, match="SIGINT") as stopped:
            signal.raise_signal(signal.SIGINT)
        stopped.value.answered = True
        with signals_held():
            pass


def fail_to_start() -> None:
    signal.raise_signal(signal.SIGTERM)
    subprocess.Popen(["/no/such/program"])


def test_a_signal_that_is_held_is_raised_also_where_the_work_fails() -> None:
    with pytest.raises(Signalled, match="SIGTERM") as stopped, raised_signals(), signals_held():
        fail_to_start()
    assert isinstance(stopped.value.__context__, FileNotFoundError)


class Written(BaseModel):
    """A signal comes while pydantic writes it."""

    number: int = 1

    @field_serializer("number")
    def meet_a_signal(self, number: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return number


def raise_instead() -> None:
    """As DuckDB, which looks for signals while a statement runs."""
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as error:
        raise RuntimeError("Query interrupted") from error


def test_the_error_of_a_library_that_chains_the_signal_is_none_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Signalled, match="SIGTERM"), raised_signals():
        raise_instead()
    assert capsys.readouterr().err == ""


def break_while_it_ends() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        raise RuntimeError("lost the last file")


def test_a_defect_behind_a_signal_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Signalled, match="SIGTERM"), raised_signals():
        break_while_it_ends()
    assert "RuntimeError while SIGTERM ended the command: lost the last file" in capsys.readouterr().err


@pytest.mark.parametrize("first_alone", [False, True])
def test_a_signal_that_a_library_wraps_leaves_as_the_signal(
    capsys: pytest.CaptureFixture[str], *, first_alone: bool
) -> None:
    with pytest.raises(Signalled, match="SIGTERM") as stopped, raised_signals(first_alone=first_alone):
        Written().model_dump_json()
    assert isinstance(stopped.value.__cause__, PydanticSerializationError)
    assert capsys.readouterr().err == ""


def go_on_in_spite_of_a_signal(came: list[Signalled]) -> None:
    with contextlib.suppress(PydanticSerializationError):
        Written().model_dump_json()
    assert [each.status for each in came] == [143]


@pytest.mark.parametrize("first_alone", [False, True])
def test_a_signal_that_a_library_swallows_leaves_at_the_end(*, first_alone: bool) -> None:
    with pytest.raises(Signalled, match="SIGTERM"), raised_signals(first_alone=first_alone) as came:
        go_on_in_spite_of_a_signal(came)


def fail_at_once() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        raise OSError("full")


def fail_later() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except Signalled as stopped:
        stopped.answered = True
    raise OSError("full")


@pytest.mark.parametrize("fail", [fail_at_once, fail_later])
def test_what_fails_while_a_signal_ends_the_work_or_long_behind_it_is_told(fail: Callable[[], None]) -> None:
    with pytest.raises(OSError, match="full"), raised_signals():
        fail()


def fail_in_a_circle() -> None:
    """Errors that cause each other, of which none comes from the signal."""
    with contextlib.suppress(Signalled):
        signal.raise_signal(signal.SIGTERM)
    first, second = OSError("full"), LakeError("no lake")
    first.__cause__, second.__cause__ = second, first
    raise first


def test_errors_that_cause_each_other_are_gone_through_once() -> None:
    with pytest.raises(Signalled, match="SIGTERM") as stopped, raised_signals():
        fail_in_a_circle()
    assert isinstance(stopped.value.__cause__, OSError)
