"""Signals as exceptions: the first, and those that come while its consequences are under way."""

from __future__ import annotations

import signal

import pytest

from broker_gateway.cli.signals import Signalled, first_signal_raised, raised_signals, signals_held


def test_signals_behind_the_first_are_noted_and_raise_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with first_signal_raised() as later:
        with pytest.raises(Signalled, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert [each.status for each in later] == [130, 143]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_held_is_raised_at_the_end() -> None:
    done = []
    with raised_signals():
        with pytest.raises(Signalled, match="SIGTERM"), signals_held():
            done.append(signal.raise_signal(signal.SIGTERM))
        assert len(done) == 1
        with pytest.raises(Signalled, match="SIGINT"):
            signal.raise_signal(signal.SIGINT)
        with signals_held():
            pass
