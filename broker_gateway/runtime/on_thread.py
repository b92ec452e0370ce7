"""Work on a thread that nothing waits for at the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


async def on_thread(work: Callable[[], None], name: str) -> None:
    """Does the work on a thread that nothing waits for when the process ends; raises what it raises."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if ended.done():
            return  # nobody waits any more
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def do() -> None:
        failed: Exception | None = None
        try:
            work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(tell, failed)

    threading.Thread(target=do, name=name, daemon=True).start()
    await ended
