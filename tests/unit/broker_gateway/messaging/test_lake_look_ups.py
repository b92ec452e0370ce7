"""Look-ups in a lake that is slow: nothing else waits for them, and equal ones are one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_gateway.lake.reader import LakeReadStoppedError, LakeUnreachableError
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.observability.metrics import Metrics
from lakebroker_testing.logs import open_store
from tests.support.lakes.slow import SlowLake
from tests.support.waiting import LIMIT_S, until

END = 1000
NAME = "lake-look-up"
"""Of tasks and threads."""


class Scene:
    """Old messages of five topics. The loop's own threads are two."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(folder)
        self.topics = [f"t{number}" for number in range(5)]
        for topic in self.topics:
            self.store.index.raise_next(topic, 0, END)
        self.lake = SlowLake(folder)
        self.old = OldMessages(self.lake, self.store.index, 64 << 20, lambda key: None, Metrics())
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))

    async def ended(self) -> None:
        """Nothing is left of any look-up: those that nobody waits for end later than the calls."""

        def left() -> list[asyncio.Task[object]]:
            return [each for each in asyncio.all_tasks() if each.get_name() == NAME]

        await until(lambda: not left(), left, every_s=0.001)


async def gone(calls: list[asyncio.Task[int | None]]) -> None:
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def played(folder: Path, play: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene(folder)
        try:
            await play(scene)
            await scene.ended()
        finally:
            scene.lake.goes_on.set()
            await scene.old.stop()
            scene.store.close()

    asyncio.run(run())


def test_other_work_on_threads_goes_on(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        calls = [asyncio.create_task(scene.old.first(each, 0)) for each in scene.topics]
        reading = [asyncio.create_task(scene.old.read(each, 0, 0, END)) for each in scene.topics]
        await scene.lake.was_asked(4)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "other"), LIMIT_S) == "other"
        assert len(scene.lake.asked) == 4, "two of each kind at once"
        scene.lake.goes_on.set()
        assert await asyncio.gather(*calls) == [7] * 5
        await asyncio.gather(*reading)

    played(tmp_path, play)


def test_equal_ones_are_one_and_others_are_not(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        calls = [asyncio.create_task(scene.old.at_time("t0", 0, 5)) for _ in range(10)]
        calls.append(asyncio.create_task(scene.old.at_time("t0", 0, 6)))
        await scene.lake.was_asked(2)
        await gone(calls[:3])
        scene.lake.goes_on.set()
        assert await asyncio.gather(*calls[3:]) == [5] * 7 + [6]
        assert sorted(scene.lake.asked) == [("at_time", "t0", 5), ("at_time", "t0", 6)]

    played(tmp_path, play)


def test_what_no_call_waits_for_any_more_is_not_begun(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        for numbers, before in ((range(100), 0), (range(99, -1, -1), 3)):  # those that were begun come last
            calls = [asyncio.create_task(scene.old.at_time("t0", 0, number)) for number in numbers]
            await scene.lake.was_asked(before + 2)
            await gone(calls)
            last = asyncio.create_task(scene.old.at_time("t1", 0, 1))
            await asyncio.sleep(0)
            scene.lake.goes_on.set()
            assert await last == 1
            await scene.ended()
            assert len(scene.lake.asked) == before + 3
            scene.lake.goes_on.clear()
        scene.lake.goes_on.set()
        assert [await scene.old.at_time("t0", 0, number) for number in (0, 99)] == [0, 99]
        assert len(scene.lake.asked) == 8, "what is over is asked for again"

    played(tmp_path, play)


def test_each_call_is_told_why_the_lake_cannot_be_read(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.lake.error = LakeUnreachableError("away")
        scene.lake.goes_on.set()
        calls = [asyncio.create_task(scene.old.first("t0", 0)) for _ in range(3)]
        for each in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(each, LakeUnreachableError)
        scene.lake.error = None
        assert await scene.old.first("t0", 0) == 7, "the next one asks again"

    played(tmp_path, play)


def test_after_a_stop_none_is_begun(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        calls = [asyncio.create_task(scene.old.first(each, 0)) for each in scene.topics]
        await scene.lake.was_asked(2)
        await scene.old.stop()
        scene.lake.goes_on.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[:2] == [7, 7]
        assert [type(each) for each in found[2:]] == [LakeReadStoppedError] * 3
        with pytest.raises(LakeReadStoppedError):
            await scene.old.first("t4", 0)
        for each in threading.enumerate():
            if each.name.startswith(NAME):
                each.join(LIMIT_S)
                assert not each.is_alive()

    played(tmp_path, play)
