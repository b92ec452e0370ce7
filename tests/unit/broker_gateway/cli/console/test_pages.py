"""Pages without a browser: what they show of answers that come late, or in another order."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator

import pytest

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.facts import Found, Told
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.poll import Poll
from broker_gateway.cli.console.replays import Place, Plan, Replays, Run
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.workers import Workers
from broker_gateway.cli.gateway_calls import Reached
from tests.support.waiting import LIMIT_S, until


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

    asyncio.run(run())
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

    asyncio.run(run())
    workers.close()
    assert places.asked == 1, "a replay that had ended before the page was opened changes nothing"
