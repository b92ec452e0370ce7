"""Work that is done to its end although who waits for it goes away, such as a client that closes its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; cancelling the caller does not cancel it."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)
