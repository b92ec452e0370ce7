"""One poll for all tabs, what it keeps, and questions of tabs on threads."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Broker, Group, Names, Told, TopicStatus
from broker_gateway.cli.console.history import KEPT, MOST_LINES, History
from broker_gateway.cli.console.poll import MOST_WATCHED, Poll, Queues, Watched
from broker_gateway.cli.console.workers import MOST, Workers
from broker_gateway.cli.gateway_calls import Reached
from tests.support.waiting import LIMIT_S, wait_until


def lag(group: str, behind: int | None) -> dict[str, Any]:
    return {
        "consumer_group": group,
        "topic": "orders",
        "queues": 1,
        "lag": behind,
        "unknown": 0,
        "commit_timestamp": None,
    }


class Answering(Places):
    """Gateways whose answers the test gives."""

    def __init__(self, groups: int) -> None:
        super().__init__(Reached("127.0.0.1:1", "", None, None), None)
        self.error = ""
        self.asked: list[list[str]] = []
        self.topics_asked: list[list[str]] = []
        self.names_asked = 0
        self.groups = groups

    def brokers(self) -> tuple[Broker, ...]:
        if self.error:
            raise AskError(self.error)
        return (
            Broker("a", name="one", in_rate=2.0),
            Broker("b", name="two", in_rate=3.0),
            Broker("c", "away"),
        )

    def tasks(self) -> tuple[()]:
        raise ValueError("not as expected")

    def lag_of(self, group: str) -> Told:
        if group == "nobody":
            raise AskError("there is no consumer group")
        return Told((lag(group, 3),))

    def names(self) -> Names:
        self.names_asked += 1
        return Names(groups=tuple([Group(f"g{each}", 1, False) for each in range(self.groups)]))

    def lag(self, groups: Any, names: Names) -> list[dict[str, Any]]:
        self.asked.append(list(groups))
        return [lag(group, 5) for group in groups]

    def topic_status(self, topics: Any) -> dict[str, TopicStatus]:
        self.topics_asked.append(list(topics))
        return {topic: TopicStatus(1, 1) for topic in topics}


@pytest.fixture
def running() -> Any:
    polls: list[Poll] = []

    def start(places: Places) -> Poll:
        polls.append(Poll(places, 0.01))
        polls[-1].start()
        return polls[-1]

    yield start
    for poll in polls:
        poll.stop()


def test_facts_are_those_of_before_with_the_error_while_nobody_answers(running: Any) -> None:
    places = Answering(3)
    poll = running(places)
    poll.watched("tab", Watched())
    wait_until(lambda: poll.brokers.at_s is not None)
    assert [each.name for each in poll.brokers.value] == ["one", "two", ""]
    assert poll.history.rates()["in"][0][1] == 5.0
    places.error = "no gateway at 127.0.0.1:1"
    wait_until(lambda: poll.brokers.error)
    assert poll.brokers.error == "no gateway at 127.0.0.1:1"
    assert len(poll.brokers.value) == 3
    places.error = ""
    wait_until(lambda: not poll.brokers.error)
    wait_until(lambda: poll.tasks.error)
    assert poll.tasks.error == "ValueError: not as expected"
    assert poll.tasks.age_s() is None


def test_lag_is_asked_of_all_groups_where_they_are_few_else_of_those_that_a_tab_shows(running: Any) -> None:
    few = running(Answering(3))
    few.watched("tab", Watched())
    wait_until(lambda: len(few.lag.value) == 3)
    assert few.history.lag("g1")["orders"][-1][1] == 5.0
    many = Answering(10_000)
    poll = running(many)
    wait_until(lambda: poll.names.value.groups)
    poll.watched("tab", Watched(groups=frozenset({"g7"}), topics=frozenset({"t"})))
    poll.watched("other", Watched(groups=frozenset({"g8"})))
    wait_until(lambda: set(poll.lag.value) == {"g7", "g8"})
    wait_until(lambda: set(poll.topics.value) == {"t"})
    poll.left("other")
    wait_until(lambda: set(poll.lag.value) == {"g7"})
    poll.watched("tab", Watched(groups=frozenset(f"g{each}" for each in range(5_000))))
    wait_until(lambda: len(poll.lag.value) > 1)
    assert max(map(len, many.asked)) == MOST_WATCHED
    assert poll.tabs == 1


def test_of_more_names_than_are_asked_for_at_a_time_each_has_its_turn_and_keeps_its_answer(
    running: Any,
) -> None:
    places = Answering(10_000)
    poll = running(places)
    names = frozenset(f"n{each}" for each in range(2 * MOST_WATCHED + 1))
    poll.watched("tab", Watched(groups=names, topics=names))
    wait_until(lambda: set(poll.lag.value) == set(poll.topics.value) == names)
    assert max(map(len, places.topics_asked)) == MOST_WATCHED
    poll.watched("tab", Watched(groups=frozenset({"n1"}), topics=frozenset({"n1"})))
    wait_until(lambda: set(poll.lag.value) == set(poll.topics.value) == {"n1"})


def test_a_lake_alone_is_asked_nothing_while_no_tab_is_open(running: Any) -> None:
    alone, beside = Answering(1), Answering(1)
    alone.reached = None
    resting, other = running(alone), running(beside)
    other.watched("tab", Watched(groups=frozenset({"g0"})))
    wait_until(lambda: len(beside.asked) > 3)
    assert (alone.names_asked, alone.asked) == (0, [])
    resting.watched("tab", Watched(groups=frozenset({"g0"})))
    wait_until(lambda: alone.asked and alone.names_asked)
    resting.left("tab")
    resting.watched("tab", Watched(groups=frozenset({"g1"})))
    wait_until(lambda: ["g0", "g1"] in alone.asked)


def test_a_tab_that_shows_something_else_again_and_again_does_not_have_more_asked(running: Any) -> None:
    places = Answering(1)
    times: list[tuple[float, float]] = []

    def slow(topics: Any) -> dict[str, TopicStatus]:
        began = time.monotonic()
        time.sleep(0.02)
        times.append((began, time.monotonic()))
        return {}

    places.topic_status = slow  # type: ignore[method-assign]
    poll, number = running(places), itertools.count()

    def flip() -> bool:
        poll.watched("tab", Watched(topics=frozenset({f"t{next(number)}"})))
        return len(times) > 3

    wait_until(flip)
    for (began, ended), (again, _) in itertools.pairwise(times):
        assert again - ended > 5 * (ended - began)


def test_queues_of_groups_that_tabs_show_are_polled_and_one_that_fails_fails_alone(running: Any) -> None:
    places = Answering(1)
    poll = running(places)
    for tab in ("one", "two"):
        poll.watched(tab, Watched(queues_of="g0"))
    poll.watched("three", Watched(queues_of="nobody"))
    wait_until(lambda: set(poll.queues.value) == {"g0", "nobody"})
    assert poll.queues.value["g0"] == Queues((lag("g0", 3),))
    assert poll.queues.value["nobody"] == Queues((), "there is no consumer group")
    poll.left("three")
    wait_until(lambda: set(poll.queues.value) == {"g0"})


def test_history_has_an_end_and_leaves_out_what_is_unknown() -> None:
    history = History()
    for at in range(KEPT + 10):
        history.take_lag(at, [lag("g", at)])
    history.take_lag(5_000, [lag("g", None)])
    points = history.lag("g")["orders"]
    assert len(points) == KEPT
    assert points[-1] == (KEPT + 9, float(KEPT + 9))
    for number in range(MOST_LINES):
        history.take_lag(number, [lag(f"other-{number}", 1)])
    assert history.lag("g") == {}
    assert history.lag("other-0") != {}


def test_questions_beyond_what_may_be_asked_at_a_time_are_refused_and_slow_ones_are_not_waited_for() -> None:
    go = threading.Event()

    async def run() -> None:
        workers = Workers(patience_s=0.05)
        slow = [asyncio.create_task(workers.ask(lambda: go.wait(LIMIT_S))) for _ in range(MOST)]
        await asyncio.sleep(0)
        with pytest.raises(AskError, match=f"{MOST} questions are under way"):
            await workers.ask(lambda: 1)
        answers = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(each, AskError) for each in answers)
        assert "no answer within 0.05 s" in str(answers[0])
        go.set()
        while True:
            try:
                assert await workers.ask(lambda: 1) == 1
                break
            except AskError:
                await asyncio.sleep(0.01)
        workers.close()

    asyncio.run(run())


def test_a_question_that_fails_otherwise_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("/secret/path")

    async def run() -> None:
        workers = Workers()
        try:
            with pytest.raises(
                AskError, match=r"^the console failed at this: ValueError; its log says more$"
            ):
                await workers.ask(fails)
        finally:
            workers.close()

    asyncio.run(run())
    assert "/secret/path" in caplog.text


def test_a_question_under_way_does_not_keep_the_process_from_ending() -> None:
    script = """
import asyncio, threading
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.workers import Workers
async def run():
    workers = Workers(patience_s=0.01)
    try:
        await workers.ask(threading.Event().wait)
    except AskError as error:
        print(error)
    workers.close()
asyncio.run(run())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no answer within 0.01 s" in done.stdout
