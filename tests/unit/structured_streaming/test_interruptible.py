"""Work on another thread that signals stop, whenever they come."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from structured_streaming.interruptible import Abandoned, inheriting, interruptible, of_jobs
from tests.support.machines.processes import Hanging

WAIT_S = 60.0


class Handled(KeyboardInterrupt):
    """What this test's handler of signals raises."""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    def handle(number: int, _frame: object) -> None:
        raise Handled(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def never(_signals: int) -> None:
    raise AssertionError("nothing is to be stopped")


def test_work_without_a_signal() -> None:
    assert interruptible(lambda: 7, never) == (7, 0)
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, never)
    with pytest.raises(Handled):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_work_and_is_handled_then(number: signal.Signals) -> None:
    stopped, asked = threading.Event(), list[int]()

    def work() -> None:
        os.kill(os.getpid(), number)
        assert stopped.wait(WAIT_S)
        raise RuntimeError("cancelled")

    def stop(signals: int) -> None:
        asked.append(signals)
        if len(asked) == 3:
            stopped.set()

    with pytest.raises(Handled) as handled:
        interruptible(work, stop)
    assert handled.value.args == (number,)
    assert asked[:3] == [1, 1, 1]


def test_a_signal_before_the_thread_runs_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGINT)
        start(thread)

    def work() -> None:
        assert stopped.wait(WAIT_S)
        raise RuntimeError("cancelled")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Handled):
        interruptible(work, lambda signals: stopped.set())


def test_work_that_ends_well_beside_a_signal_has_its_result() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "committed"

    assert interruptible(work, lambda signals: None) == ("committed", signal.SIGINT)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_second_signal_leaves_the_work_alone(hangs: bool) -> None:
    """Also where the JVM answers nothing to what is to stop it."""
    ended = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ended.wait(WAIT_S)

    def stop(signals: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if hangs:
            ended.wait(WAIT_S)

    with pytest.raises(Abandoned) as abandoned:
        interruptible(work, stop)
    assert not ended.is_set()
    ended.set()
    assert abandoned.value.status == 128 + signal.SIGTERM
    with pytest.raises(Handled):
        signal.raise_signal(signal.SIGINT)


class SignalledAgain(Hanging):
    """Sends the process of the test a second signal when `terminate` is called."""

    def terminate(self) -> None:
        super().terminate()
        signal.raise_signal(signal.SIGINT)


def test_work_on_spark_that_is_left_alone_ends_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def abandoned(*_: object) -> None:
        raise Abandoned(signal.SIGTERM)

    for name, value in {
        "interruptible": abandoned,
        "is_ours": lambda _session: True,
        "_PATIENCE_S": 0.1,
    }.items():
        monkeypatch.setattr(f"structured_streaming.interruptible.{name}", value)
    with SignalledAgain() as jvm:
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
        with pytest.raises(KeyboardInterrupt) as ended:
            of_jobs(session, lambda: None)
        assert ended.type is Abandoned
        assert jvm.returncode == -signal.SIGKILL


class Remote:
    """A session of Spark Connect, which has no context."""

    __module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize(
    ("session", "ours", "expected"),
    [
        (SimpleNamespace(sparkContext=object()), False, "inherited"),
        (SimpleNamespace(sparkContext=object()), True, "plain"),
        (Remote(), False, "plain"),
    ],
)
def test_threads_inherit_what_a_platform_set_alone(
    monkeypatch: pytest.MonkeyPatch, session: Any, ours: bool, expected: str
) -> None:
    monkeypatch.setattr("pyspark.inheritable_thread_target", lambda of: lambda work: lambda: "inherited")
    if ours:
        monkeypatch.setattr("structured_streaming.interruptible.is_ours", lambda _session: True)
    assert inheriting(session, lambda: "plain")() == expected


def test_on_another_thread_work_is_only_done() -> None:
    done: list[tuple[int, int]] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    thread = threading.Thread(
        target=lambda: done.append(interruptible(threading.get_ident, lambda signals: None))
    )
    thread.start()
    thread.join()
    assert done == [(thread.ident, 0)]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
