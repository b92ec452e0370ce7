"""Everything that was begun is ended, and the first error is the one that is told."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from broker_gateway.runtime.cleanup import Cleanup


def test_every_step_runs_the_newest_first_and_the_first_error_counts() -> None:
    ended: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0)
        ended.append("slow")

    def broken() -> None:
        ended.append("broken")
        raise IsADirectoryError("a folder")

    async def scenario() -> None:
        async with Cleanup() as cleanup:
            cleanup.add("first", lambda: ended.append("first"))
            cleanup.add("removing", broken)
            cleanup.add("slow", slow)
            raise ValueError("why")

    structlog.reset_defaults()
    with capture_logs() as logs, pytest.raises(ValueError, match="why"):
        asyncio.run(scenario())
    assert ended == ["slow", "broken", "first"]
    assert [(line["event"], line["error"]) for line in logs] == [
        ("removing failed", "IsADirectoryError: a folder")
    ]


def test_a_step_that_fails_at_a_good_end_is_told() -> None:
    ended: list[str] = []

    def broken(why: str) -> None:
        raise OSError(why)

    async def scenario() -> None:
        async with Cleanup() as cleanup:
            cleanup.add("first", lambda: ended.append("first"))
            cleanup.add("later", lambda: broken("later"))
            cleanup.add("earlier", lambda: broken("earlier"))

    with pytest.raises(OSError, match="earlier"):
        asyncio.run(scenario())
    assert ended == ["first"]
