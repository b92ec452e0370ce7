"""Pages without a browser: what they show of answers that come late, or in another order."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest
from nicegui import ui
from nicegui.testing.user_simulation import user_simulation

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.facts import Found
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.pages import message
from broker_gateway.cli.console.poll import Poll
from broker_gateway.cli.console.replays import Replays
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.workers import Workers


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
            assert self.go.wait(60)
            self.answered.set()
        return Found((), 0, (f"no message of {key}",))


def test_of_two_searches_the_one_that_was_asked_for_last_is_shown() -> None:
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
            await user.should_see("no message of second")
            places.go.set()
            await asyncio.to_thread(places.answered.wait, 60)
            await workers.ask(lambda: None)
            while workers._under_way:  # noqa: ASYNC110  (which says nothing to anybody)
                await asyncio.sleep(0.01)
            await user.should_see("no message of second")
            await user.should_not_see("no message of first")
            field.value = "first"
            key.trigger("keydown.enter")
            await user.should_see("no message of first")
            await user.should_not_see("no message of second")

    asyncio.run(run())
    workers.close()
