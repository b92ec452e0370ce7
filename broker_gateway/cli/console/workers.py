"""Questions of tabs, on threads: so many at a time, so many in line, and so long. None of them is waited for when the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
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
        self._patience_s = patience_s
        self.under_way = 0
        """What is asked and not answered yet."""
        self._closed = False
        self._line: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for number in range(THREADS):
            threading.Thread(target=self._work, daemon=True, name=f"console-{number}").start()

    async def ask(self, question: Callable[[], T]) -> T:
        """Raises AskError, also where too many ask, the question fails otherwise, or the answer takes too long: its thread is then lost to others until it ends."""
        if self.under_way >= MOST:
            raise AskError(f"{MOST} questions are under way: ask again when one has ended")
        self.under_way += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        answer.add_done_callback(self._done)

        def run() -> None:
            try:
                found = question()
            except Exception as error:
                tell(answer.set_exception, error)
            else:
                tell(answer.set_result, found)

        def tell(told: Callable[..., None], what: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
                loop.call_soon_threadsafe(told, what)

        self._line.put(run)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), self._patience_s)
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
        self._closed = True
        for _ in range(THREADS):
            self._line.put(lambda: None)

    def _work(self) -> None:
        while not self._closed:
            self._line.get()()

    def _done(self, answer: asyncio.Future[T]) -> None:
        self.under_way -= 1
        if not answer.cancelled():
            answer.exception()  # told to who waited; else nobody waits any more
