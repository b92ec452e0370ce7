"""The work of calls: it ends with them, whenever they hear of their end, and no more of it runs at a time than there are places."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from structured_streaming.flight.failures import CallError
from structured_streaming.flight.running import Calls, Places, Work, limited
from tests.support.waiting import wait_until

ENDED = CallError(grpc.StatusCode.CANCELLED, "ended")
LONG_S = 60.0


class Statement:
    """What the engine runs."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def look(self) -> None:
        pass


class Context:
    """A call that its client may leave."""

    def __init__(self, *, active: bool = True) -> None:
        self._active = active
        self._callbacks: list[Callable[[], None]] = []
        self.cancelled = threading.Event()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return self._active

    def leave(self) -> None:
        for each in self._callbacks:
            each()

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.mark.parametrize("first", [True, False])
def test_a_statement_is_cancelled_whether_its_call_ended_before_it_began_or_behind(first: bool) -> None:
    work, statement = Work(), Statement()
    if first:
        work.end(ENDED)
    with work.over(statement):
        assert statement.cancelled is first
        work.end(ENDED)
        assert statement.cancelled
    with pytest.raises(CallError, match="ended"):
        work.check()


def test_the_reason_that_came_first_is_told_whatever_the_engine_says() -> None:
    calls = Calls()
    context: Any = Context()
    with pytest.raises(CallError, match="went away"), calls.begun(context):
        interrupted(context, calls)
    with pytest.raises(CallError, match="the server stops"), calls.begun(context):
        pass


def interrupted(context: Context, calls: Calls) -> None:
    """As an engine fails whose statement was cancelled."""
    context.leave()
    calls.stop()
    raise ValueError("interrupted")


@pytest.mark.parametrize("told", [True, False])
def test_a_client_that_goes_while_it_is_heard_is_no_failure(told: bool) -> None:
    """The messages of its request end with an error of gRPC's, also before the call itself is told."""
    context: Any = Context()
    with pytest.raises(CallError, match="went away"), Calls().begun(context):
        heard(context, told)


def heard(context: Context, told: bool) -> None:
    if told:
        context.leave()
    raise grpc.RpcError


def test_a_call_that_is_gone_already_does_nothing() -> None:
    context: Any = Context(active=False)
    with pytest.raises(CallError, match="went away"), Calls().begun(context):
        pytest.fail("it worked for nobody")


def test_a_call_is_cancelled_by_its_id_while_it_runs() -> None:
    calls = Calls()
    context: Any = Context()
    assert not calls.cancel(b"one")
    with calls.begun(context, b"one") as work:
        with pytest.raises(CallError, match="runs already"), calls.begun(context, b"one"):
            pass
        assert not calls.cancel(b"other")
        work.check()
        assert calls.cancel(b"one")
        with pytest.raises(CallError, match="was cancelled"):
            work.check()
    assert not calls.cancel(b"one")


def test_time_ends_work_and_then_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structured_streaming.flight.running.ANSWER_S", 0.05)
    context: Any = Context()
    work = Work()
    with limited(work, context, 0.05):
        assert context.cancelled.wait(LONG_S)
        with pytest.raises(CallError, match=r"a call has 0\.05 s"):
            work.check()


def test_places_are_given_back_and_waited_for() -> None:
    places, work = Places(2, LONG_S), Watched()
    got = threading.Event()
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(places.taken(Work()))
        waiting = threading.Thread(target=took, args=(places, work, got))
        waiting.start()
        wait_until(lambda: work.checks == 2 or got.is_set(), "a second look for a place")
        assert not got.is_set()
    assert got.wait(LONG_S)
    waiting.join(LONG_S)


def test_nobody_waits_for_a_place_without_end() -> None:
    places = Places(1, 0.05)
    refused = pytest.raises(CallError, match=r"may \(--statements 1\)")
    with places.taken(Work()), refused, places.taken(Work()):
        pass


def test_one_that_waits_for_a_place_is_ended_too() -> None:
    places, work = Places(1, LONG_S), Work()
    with places.taken(Work()):
        threading.Timer(0.05, work.end, (ENDED,)).start()
        with pytest.raises(CallError, match="ended"), places.taken(work):
            pass
    with places.taken(Work()):
        pass


class Watched(Work):
    """Counts how often it is looked whether it was ended: before each wait for a place, and with the place."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        super().check()


def took(places: Places, work: Work, got: threading.Event) -> None:
    with places.taken(work):
        got.set()
