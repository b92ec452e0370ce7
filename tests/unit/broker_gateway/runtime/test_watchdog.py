"""A loop that hangs is named with its stack, one that moves is not."""

from __future__ import annotations

import asyncio
import time

from structlog.testing import capture_logs

from broker_gateway.runtime.watchdog import watch


def hang_here(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)


def run(work: float, calm: float) -> list[dict[str, object]]:
    async def main() -> None:
        task = asyncio.create_task(watch(0.5))
        await asyncio.sleep(calm)
        hang_here(work)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with capture_logs() as logs:
        asyncio.run(main())
    return [dict(each) for each in logs]


def test_a_loop_that_hangs() -> None:
    (said,) = run(1.6, 0.3)
    assert said["event"] == "the event loop hangs"
    assert "hang_here" in str(said["stack"])


def test_a_loop_that_moves() -> None:
    assert run(0.1, 1.5) == []
