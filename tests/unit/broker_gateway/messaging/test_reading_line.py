"""Calls that need readings of the lake take turns, and a reading that no call waits for is not begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.lake.messages import Stretch
from broker_gateway.messaging import old_messages as module
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.reading_line import Reading, ReadingLine
from broker_gateway.observability.metrics import Metrics
from lakebroker_testing.logs import open_store
from tests.support.lakes.slow import SlowLake
from tests.support.waiting import LIMIT_S, until

END = 1 << 30
FAR = 2048
"""Apart: no reading brings what another one asks for."""


def reading(number: int) -> Reading:
    return Reading(("t", 0), number, END)


def begins(line: ReadingLine) -> list[int]:
    return [line.pop().begin for _ in range(len(line))]


def test_askers_take_turns() -> None:
    line = ReadingLine(100, 100)
    for number in range(3):
        line.add("a", reading(number))
    line.add("b", reading(10))
    line.add("c", reading(20))
    assert begins(line) == [0, 10, 20, 1, 2]


def test_a_reading_of_several_is_served_once_at_the_first_of_their_turns() -> None:
    line, shared = ReadingLine(100, 100), reading(2)
    for number in range(2):
        line.add("a", reading(number))
    for asker in ("a", "b", "b"):
        line.add(asker, shared)
    assert len(line) == 3
    assert begins(line) == [0, 2, 1]
    with pytest.raises(StopIteration):
        line.pop()


def test_nobody_has_more_than_the_share_beyond_half() -> None:
    line = ReadingLine(100, 20)
    for number in range(50):
        assert line.has_room("a")
        line.add("a", reading(number))
    assert not line.has_room("a")
    for number in range(20):
        assert line.has_room("b")
        line.add("b", reading(number))
    assert not line.has_room("b")
    assert line.has_room("c")
    begins(line)
    assert line.has_room("a")


def test_what_is_left_takes_no_room() -> None:
    line = ReadingLine(100, 20)
    for number in range(60):
        line.add(f"other-{number}", reading(number))
    for number in range(50):
        left = reading(number)
        line.add("a", left)
        taken_out = line.left("a", left)
        assert (taken_out is None) == (number == 0), "the last one stays"
        assert len(line) == 61
    for _ in range(19):
        assert line.has_room("a")
        line.add("a", reading(0))
    assert not line.has_room("a")


def test_what_was_read_is_left_no_more() -> None:
    line = ReadingLine(100, 20)
    for _ in range(3):
        left = reading(0)
        line.add("a", left)
        assert line.left("a", left) is None
        assert line.pop() is left
        assert len(line) == 0


class Scene:
    """Old messages of two topics, whose readings wait."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(folder)
        for topic in ("t", "victim"):
            self.store.index.raise_next(topic, 0, END)
        self.lake = SlowLake(folder)
        self.asked: set[tuple[str, int]] = set()
        self.came_back: list[QueueKey] = []
        self.old = OldMessages(
            self.lake, self.store.index, 64 << 20, self.came_back.append, Metrics(), percent=20
        )

    async def asking(
        self, *offsets: int, topic: str = "t", host: str = "10.0.0.1"
    ) -> list[asyncio.Task[Stretch]]:
        self.asked |= {(topic, each) for each in offsets}
        calls = [asyncio.create_task(self.old.read(topic, 0, each, END, host)) for each in offsets]
        await asyncio.sleep(0)
        await self.lake.was_asked(2)
        return calls

    async def hang_up(self, calls: list[asyncio.Task[Stretch]]) -> None:
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """The lake is as fast as ever; at the end there is nothing to read any more."""
        self.lake.goes_on.set()
        yield
        await until(lambda: self.old.waiting == 0, every_s=0.001)


def played(folder: Path, play: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene(folder)
        try:
            await play(scene)
            assert scene.old.waiting == 0
            scene.old.forget()
            async with asyncio.timeout(LIMIT_S):  # whatever was asked for is read when it is asked for again
                for topic, offset in scene.asked:
                    await scene.old.read(topic, 0, offset, END)
        finally:
            scene.lake.goes_on.set()
            await scene.old.stop()
            scene.store.close()

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_not_read(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        calls = await scene.asking(*range(0, 300 * FAR, FAR))
        assert scene.old.waiting == 300
        await scene.hang_up(calls)
        assert scene.old.waiting == 3, "two are under way, and one stays"
        [victim] = await scene.asking(0, topic="victim", host="10.0.0.2")
        async with scene.going_on():
            assert (await victim).records == [b"x"]
        assert len(scene.lake.asked) == 4

    played(tmp_path, play)


def test_many_readings_of_one_keep_no_other_waiting(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        calls = await scene.asking(*range(0, 300 * FAR, FAR))
        [victim] = await scene.asking(0, topic="victim", host="10.0.0.2")
        async with scene.going_on():
            await victim
            assert ("read", "victim", 0) in scene.lake.asked[:6]
        await asyncio.gather(*calls)

    played(tmp_path, play)


def test_a_call_that_comes_again_finds_what_it_left(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        others = await scene.asking(0, FAR)
        for _ in range(5):
            await scene.hang_up(await scene.asking(0, topic="victim", host="10.0.0.2"))
        assert scene.old.waiting == 3
        async with scene.going_on():
            await asyncio.gather(*others)
        assert scene.lake.asked[2:] == [("read", "victim", 0)]
        assert scene.old.look("victim", 0, 0, 1, None) is not None

    played(tmp_path, play)


def test_what_a_group_asked_for_is_read_when_the_call_beside_it_is_gone(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        others, key = await scene.asking(0, FAR), QueueKey("g", "victim", 0)
        calls = await scene.asking(0, FAR, 2 * FAR, topic="victim", host="10.0.0.2")
        assert scene.old.look("victim", 0, 0, END, key) is None
        await scene.hang_up(calls)
        async with scene.going_on():
            await asyncio.gather(*others)
        assert sorted(scene.lake.asked[2:]) == [("read", "victim", 0), ("read", "victim", 2 * FAR)]
        assert scene.came_back == [key]

    played(tmp_path, play)


def test_who_has_its_share_of_the_line_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_FULL_S", 0.01)
    monkeypatch.setattr(module, "_MOST_ASKED", 100)

    async def play(scene: Scene) -> None:
        calls = await scene.asking(*range(0, 90 * FAR, FAR))
        assert scene.old.waiting == 52
        [victim] = await scene.asking(0, topic="victim", host="10.0.0.2")
        assert scene.old.waiting == 53
        async with scene.going_on():
            await victim
            await asyncio.gather(*calls)

    played(tmp_path, play)
