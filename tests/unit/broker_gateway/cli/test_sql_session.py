"""Statements of standard input, and signals that Python swallows."""

from __future__ import annotations

import io
import signal

import pytest

from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.sql_session import Engine, run_input


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Swallowing:
    """Python ignores what a handler raises within."""

    def __init__(self, name: str) -> None:
        self.number = signal.Signals[name]

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)


def typed(monkeypatch: pytest.MonkeyPatch, *statements: str) -> tuple[list[str], str]:
    """Each is the name of a signal. Those that ran, and the signal that left."""
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        Swallowing(name)

    monkeypatch.setattr("sys.stdin", Terminal("".join(f"{each};\n" for each in statements) + "exit\n"))
    try:
        with raised_signals() as signals:
            run_input(Engine(lambda text: (text.strip().split(";")[:-1], ""), run), signals)
    except Signalled as left:
        return ran, str(left)
    return ran, ""


def test_a_swallowed_ctrl_c_does_not_count_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(monkeypatch, "SIGINT", "SIGINT") == (["SIGINT", "SIGINT"], "")


def test_a_swallowed_sigterm_ends_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(monkeypatch, "SIGTERM", "SIGINT") == (["SIGTERM"], "SIGTERM")
