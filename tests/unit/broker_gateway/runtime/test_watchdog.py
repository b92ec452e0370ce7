"""A loop that hangs is named with its stack, one that moves is not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from broker_gateway.runtime import watchdog
from broker_gateway.runtime.watchdog import Watched, watch
from tests.support.waiting import until


def hang_here(lines: list[EventDict]) -> None:
    """Until it was logged."""
    while not lines:
        time.sleep(0.01)


def test_a_loop_that_hangs_is_named_with_its_stack() -> None:
    async def main(lines: list[EventDict]) -> None:
        task = asyncio.create_task(watch(0.01))
        await asyncio.sleep(0)
        hang_here(lines)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with capture_logs() as lines:
        asyncio.run(main(lines))
    assert lines[0]["event"] == "the event loop hangs"
    assert "hang_here" in lines[0]["stack"]


def test_a_loop_that_moves_is_not_and_a_hang_is_named_once_a_minute() -> None:
    watched = Watched(threading.get_ident(), 1.0, 100.0)
    with capture_logs() as lines:
        watched.look(101.0)
        watched.moved_at = 101.2
        watched.look(102.3)
        assert lines == []
        watched.look(102.6)
        watched.look(150.0)
        watched.moved_at = 155.0
        watched.look(162.0)
        watched.look(163.0)
    assert [each["seconds"] for each in lines] == [1.1, 7.8]


def test_a_loop_that_goes_on_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[float] = []

    class Counted(Watched):
        def __setattr__(self, name: str, value: float) -> None:
            super().__setattr__(name, value)
            if name == "moved_at":
                moves.append(value)

    async def main() -> None:
        task = asyncio.create_task(watch())
        await until(lambda: len(moves) > 4)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    monkeypatch.setattr(watchdog, "Watched", Counted)
    monkeypatch.setattr(watchdog, "_PERIOD_S", 0.001)
    asyncio.run(main())
    assert moves == sorted(moves)
