"""Pages without a browser: what they show of answers that come late, in another order or not at all, and of many names."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.facts import Broker, Found, Group, Names, Task, Told, Topic
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.poll import Fact, Poll
from broker_gateway.cli.console.replays import Place, Plan, Replays, Run
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.workers import Workers
from broker_gateway.cli.gateway_calls import Reached
from tests.support.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from nicegui import Client


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    """A simulation of NiceGUI forgets the modules of the pages, and their parents: the tests behind it would get others."""
    before = dict(sys.modules)
    yield
    sys.modules.update(before)


class Slow(Places):
    """`first` is answered when the test says so, anything else at once."""

    def __init__(self) -> None:
        super().__init__(None, LakeEngine("nowhere", {}))
        self.go = threading.Event()
        self.answered = threading.Event()

    def found(self, key: str, topic: str) -> Found:
        if key == "first":
            assert self.go.wait(LIMIT_S)
            self.answered.set()
        return Found((), 0, (f"no message of {key}",))


def test_of_two_searches_the_one_that_was_asked_for_last_is_shown() -> None:
    from nicegui import ui  # takes long: not for who only collects tests
    from nicegui.testing.user_simulation import user_simulation

    from broker_gateway.cli.console.pages import message

    places = Slow()
    workers = Workers()
    console = Console(places, Poll(places, 1.0), workers, Replays(None, False))

    async def run() -> None:
        async with user_simulation() as user:
            message.register(console)
            await user.open("/message")
            key = user.find("Key or message id")
            (field,) = user.find(kind=ui.input, content="Key or message id").elements
            for asked in ("first", "second"):
                field.value = asked
                key.trigger("keydown.enter")
                await asyncio.sleep(0)
            await user.should_see("no message of second", retries=3000)
            places.go.set()
            await asyncio.to_thread(places.answered.wait, 60)
            await workers.ask(lambda: None)
            await until(lambda: not workers.under_way)
            await user.should_see("no message of second", retries=3000)
            await user.should_not_see("no message of first")
            field.value = "first"
            key.trigger("keydown.enter")
            await user.should_see("no message of first", retries=3000)
            await user.should_not_see("no message of second")

    try:
        asyncio.run(run())
    finally:
        workers.close()


class Dead(Places):
    """With one dead letter."""

    asked = 0

    def dead_letters(self, group: str) -> Told:
        self.asked += 1
        return Told(())


class Replaying(Replays):
    """Plans to send one, and has sent some before."""

    def __init__(self) -> None:
        super().__init__(Reached("here:1", "", None, None), True)
        self.begun = 0

    def plan(self, group: str, places: Iterable[Place]) -> Plan:
        return Plan("here:1", group, frozenset(), (("orders", 1),), 0, "", 0, 0, 2, 0)

    def begin(self, plan: Plan) -> Run:
        self.begun += 1
        return Run(plan.group, 1)

    def of(self, group: str) -> Run:
        return Run(group, 1, sent=1, ended_ms=1)


def test_a_question_before_a_replay_that_nobody_answers_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from nicegui.testing.user_simulation import user_simulation

    from broker_gateway.cli.console.pages import dead_letters

    monkeypatch.setattr(dead_letters, "ANSWER_S", LIMIT_S)
    places, workers, replays = Dead(None, LakeEngine("nowhere", {})), Workers(), Replaying()
    console = Console(places, Poll(places, 1.0), workers, replays)

    async def run() -> None:
        async with user_simulation() as user:
            dead_letters.register(console)
            await user.open("/dead-letters?group=billing")
            user.find("Replay all…").click()
            await user.should_see("2 of those chosen were not found at here:1", retries=3000)
            user.find("Cancel").click()
            monkeypatch.setattr(dead_letters, "ANSWER_S", 0.5)
            user.find("Replay all…").click()
            await user.should_see("nothing was sent: the question was not answered", retries=3000)
            await user.should_not_see("2 of those chosen were not found at here:1")
            monkeypatch.setattr(dead_letters, "ANSWER_S", LIMIT_S)
            user.find("Replay all…").click()
            await user.should_see("2 of those chosen were not found at here:1", retries=3000)
            user.find("Send again").click()
            await until(lambda: replays.begun)
            await user.should_not_see("nothing was sent")

    try:
        asyncio.run(run())
    finally:
        workers.close()
    assert places.asked == 1, "a replay that had ended before the page was opened changes nothing"


def test_while_nobody_answers_pages_show_what_was_known_with_its_age_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nicegui.testing.user_simulation import user_simulation

    from broker_gateway.cli.console.pages import overview, parts, tasks

    monkeypatch.setattr(parts, "REFRESH_S", 0.02)
    places = Places(Reached("here:1", "", None, None), None)
    poll, workers = Poll(places, 1.0), Workers()
    poll.brokers.value = (Broker("here:1", name="broker-a", disk_free=3 << 30, disk_total=4 << 30),)
    poll.tasks.value = (Task("here:1", "retention", 60.0, 7, 0, 0, 0.0, "", 0),)
    console = Console(places, poll, workers, Replays(None, False))

    async def run() -> None:
        async with user_simulation() as user:
            overview.register(console)
            tasks.register(console)
            fact: Fact[Any]
            for path, table, fact, row in (
                ("/", "brokers", poll.brokers, {"name": "broker-a", "disk": "3.0 GiB of 4.0 GiB"}),
                ("/tasks", "tasks", poll.tasks, {"name": "retention", "runs": "7"}),
            ):
                fact.at_s = time.monotonic() + 3600  # it stays new, however slow the machine is
                page = await user.open(path)
                assert row.items() <= part(page, table).rows[0].items()
                await user.should_not_see("shown is what was known")
                fact.at_s -= 3 * 3600
                await user.should_see(
                    f"{table}: no answer yet to what was asked last; shown is what was known 2 h",
                    retries=3000,
                )
                fact.error = "no gateway at here:1"
                known = f"{table}: no gateway at here:1; shown is what was known 2 h"
                await user.should_see(known, retries=3000)
                assert row.items() <= part(page, table).rows[0].items()
                again = await user.open(path)
                await user.should_see(known)
                assert row.items() <= part(again, table).rows[0].items()
                fact.at_s, fact.value, fact.error = None, (), "no gateway"
                never = await user.open(path)
                await user.should_see(f"{table}: no gateway")
                await user.should_not_see("shown is what was known")
                assert part(never, table).props["no-data-label"] == parts.NOT_KNOWN

    try:
        asyncio.run(run())
    finally:
        workers.close()


def test_of_many_names_a_tab_gets_a_page_and_what_it_searches_for() -> None:
    from nicegui.testing.user_simulation import user_simulation

    from broker_gateway.cli.console.pages import groups, topics

    places = Places(Reached("here:1", "", None, None), None)
    poll, workers = Poll(places, 1.0), Workers()
    names = [f"name-{number:02}" for number in range(60)]
    poll.names.value = Names(
        tuple(Topic(name, 1, "all") for name in names), tuple(Group(name, 16, False) for name in names)
    )
    poll.names.at_s = time.monotonic()
    console = Console(places, poll, workers, Replays(None, False))

    async def run() -> None:
        async with user_simulation() as user:
            topics.register(console)
            groups.register(console)
            for what in ("topics", "groups"):
                page = await user.open(f"/{what}")

                def seen() -> tuple[str, list[str]]:
                    return part(page, "count").text, [row["name"] for row in part(page, what).rows]  # noqa: B023

                assert seen() == ("1 to 25 of 60", names[:25])
                for expected in (("26 to 50 of 60", names[25:50]), ("51 to 60 of 60", names[50:])):
                    user.find("chevron_right").click()
                    assert seen() == expected
                search = user.find(f"Search {what}")
                search.type("NAME")
                assert seen() == ("1 to 25 of 60 found of 60", names[:25])
                search.type("-5")
                assert seen() == ("1 to 10 of 10 found of 60", names[50:])
                search.type("7")
                assert seen() == ("1 to 1 of 1 found of 60", ["name-57"])
                search.type("x")
                assert seen() == (f"no {what} found", [])
                search.clear()
                assert seen() == ("1 to 25 of 60", names[:25])

    try:
        asyncio.run(run())
    finally:
        workers.close()


def part(page: Client, test_id: str) -> Any:
    """Of a page, its element of that name."""
    (found,) = [each for each in page.elements.values() if each.props.get("data-testid") == test_id]
    return found
