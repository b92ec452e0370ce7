"""How long a log is left alone: longer each time it fails, never longer because it is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from structured_streaming.errors import UnreachableError
from structured_streaming.source import log_watch
from structured_streaming.source.log_watch import LogWatch
from tests.written_log import written


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def watch(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> LogWatch:
    monkeypatch.setattr(log_watch, "SHORTEST_REST_S", 0.001)
    monkeypatch.setattr(log_watch, "AGAIN_S", 0.001)
    store = written(tmp_path / "store", "broker-a", 1)
    return LogWatch([f"store:{store}"], None, notes.append, 0.05)


def present(watch: LogWatch) -> list[str]:
    """The logs that are there, once one is."""
    until = time.monotonic() + 60
    while not (states := watch.states()):
        assert time.monotonic() < until, watch.missing()
        time.sleep(0.005)
    return list(states)


def rests(watch: LogWatch, notes: list[str], call: Callable[[Any], None], answer: threading.Event) -> str:
    """What is noted of the rest that a call leads to; the log is there again afterwards."""
    notes.clear()
    (target,) = present(watch)
    answer.clear()
    assert watch.each({target: call}) == {}
    answer.set()
    present(watch)
    return notes[0].partition("(left alone for ")[2].partition(")")[0]


def test_a_slow_log_is_not_left_alone_longer_each_time(watch: LogWatch, notes: list[str]) -> None:
    answer = threading.Event()
    assert [rests(watch, notes, lambda log: answer.wait() and None, answer) for _ in range(3)] == [
        "0.001 s"
    ] * 3


def test_a_log_that_fails_is_left_alone_longer_each_time(watch: LogWatch, notes: list[str]) -> None:
    answer = threading.Event()

    def fail(log: Any) -> None:
        raise UnreachableError("gone")

    def fail_late(log: Any) -> None:
        answer.wait()
        fail(log)

    calls = (fail, fail_late, fail)
    assert [rests(watch, notes, call, answer) for call in calls] == ["0.001 s", "0.001 s", "0.004 s"]
