"""Questions of tabs, on threads: so many at a time, so many in line, and so long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from broker_gateway.cli.console.errors import AskError

T = TypeVar("T")
THREADS = 4
MOST = 16
"""Under way and in line."""
PATIENCE_S = 60.0


class Workers:
    """One for all tabs."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "console")
        self._patience_s = patience_s
        self._under_way = 0

    async def ask(self, question: Callable[[], T]) -> T:
        """Raises AskError, also where too many ask, the question fails otherwise, or the answer takes too long: its thread is then lost to others until it ends."""
        if self._under_way >= MOST:
            raise AskError(f"{MOST} questions are under way: ask again when one has ended")
        self._under_way += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, question)
        running.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._patience_s)
        except TimeoutError:
            raise AskError(f"no answer within {self._patience_s:g} s; it may still come, ask again") from None
        except AskError:
            raise
        except Exception as error:  # else the page would say nothing
            logging.getLogger(__name__).exception("a question failed")
            raise AskError(
                f"the console failed at this: {type(error).__name__}; its log says more"
            ) from error

    def close(self) -> None:
        """Nothing more is begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, running: asyncio.Future[T]) -> None:
        self._under_way -= 1
        if not running.cancelled():
            running.exception()  # told to who waited; else nobody waits any more
