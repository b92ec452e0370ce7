"""How long a log is left alone: longer each time it fails, never longer because it is slow; that it is back is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.logs import written
from structured_streaming.errors import UnreachableError
from structured_streaming.source import log_watch
from structured_streaming.source.access import Access
from structured_streaming.source.log_watch import LogWatch, Question
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def watch(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> LogWatch:
    monkeypatch.setattr(log_watch, "SHORTEST_REST_S", 0.001)
    monkeypatch.setattr(log_watch, "AGAIN_S", 0.001)
    store = written(tmp_path / "store", "broker-a", 1)
    return LogWatch([f"store:{store}"], Access(), notes.append, 0.05)


def present(watch: LogWatch) -> list[str]:
    """The logs that are there, once one is."""
    return list(wait_until(watch.states, watch.missing))


def rests(watch: LogWatch, notes: list[str], call: Callable[[Any], None], answer: threading.Event) -> str:
    """What is noted of the rest that a call leads to; the log is there again afterwards."""
    notes.clear()
    (target,) = present(watch)
    answer.clear()
    assert watch.each({target: Question(object(), call)}, LIMIT_S if call is fail else None) == {}
    answer.set()
    present(watch)
    return "".join(notes[:1]).partition("(left alone for ")[2].partition(")")[0]


def fail(log: Any) -> None:
    raise UnreachableError("gone")


def test_a_slow_log_is_not_left_alone_longer_each_time(watch: LogWatch, notes: list[str]) -> None:
    answer = threading.Event()
    assert rests(watch, notes, lambda log: answer.wait() and None, answer) == "0.001 s"
    for _ in range(3):
        assert rests(watch, notes, lambda log: answer.wait() and None, answer) == "", "told once"
    assert rests(watch, notes, fail, answer) == "0.001 s"


def test_a_log_that_is_known_to_be_slow_is_not_waited_for(watch: LogWatch, notes: list[str]) -> None:
    answer = threading.Event()
    rests(watch, notes, lambda log: answer.wait() and None, answer)
    watch.patience_s = 3600.0
    for number in range(3):
        answer.clear()
        (target,) = present(watch)
        assert watch.each({target: Question(number, lambda log: answer.wait())}) == {}
        answer.set()


def test_an_answer_that_came_too_late_is_the_next_batch_s(watch: LogWatch) -> None:
    answer = threading.Event()
    asked: list[str] = []

    def ask(about: str) -> dict[str, str]:
        def call(log: Any) -> str:
            asked.append(about)
            answer.wait()
            return f"answer {len(asked)}"

        (target,) = present(watch)
        return watch.each({target: Question(about, call)})

    for number in range(1, 4):
        answer.clear()
        assert ask(f"from {number}") == {}
        answer.set()
        assert list(ask(f"from {number}").values()) == [f"answer {number}"]
    assert asked == ["from 1", "from 2", "from 3"]
    answer.clear()
    assert ask("from 4") == {}
    answer.set()
    present(watch)
    assert "answer 4" not in ask("from elsewhere").values()


def test_a_log_that_fails_is_left_alone_longer_each_time(watch: LogWatch, notes: list[str]) -> None:
    answer = threading.Event()

    def fail_late(log: Any) -> None:
        answer.wait()
        fail(log)

    calls = (fail, fail_late, fail)
    assert [rests(watch, notes, call, answer) for call in calls] == ["0.001 s", "0.001 s", "0.004 s"]
    (target,) = watch.targets
    assert notes[1:] == [f"{target.replace(':', ' ', 1)} answers again"]


@pytest.mark.parametrize(
    ("alone", "said"),
    [(True, "it is asked again"), (False, "the other logs are read on, this one is asked again")],
)
def test_others_are_named_where_there_are_some(
    tmp_path: Path, notes: list[str], alone: bool, said: str
) -> None:
    stores = [written(tmp_path / name, name, 1) for name in ("broker-a", "broker-b")]
    watch = LogWatch(
        [f"store:{store}" for store in stores[: 1 if alone else 2]], Access(), notes.append, 60.0
    )
    target, *_ = watch.states()
    watch.rest(target, "gone")
    assert [note.partition("; ")[2] for note in notes] == [said]
