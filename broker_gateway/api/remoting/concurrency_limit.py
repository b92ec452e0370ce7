"""Lets few requests of a costly kind run at a time."""

from __future__ import annotations

import asyncio

from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError


class ConcurrencyLimit:
    """As a context manager: `at_once` are inside, at most `waiting` wait for them; more raise SYSTEM_BUSY.

    Others are served before who comes in goes on, so that many who come in at once do not run in one tick.
    """

    def __init__(self, at_once: int, waiting: int, what: str) -> None:
        self._inside = asyncio.Semaphore(at_once)
        self._most = waiting
        self._what = what
        self.waiting = 0

    async def __aenter__(self) -> None:
        if self._inside.locked() and self.waiting >= self._most:
            raise RequestError(
                f"{self.waiting} requests for {self._what} wait already; try again later",
                ResponseCode.SYSTEM_BUSY,
            )
        self.waiting += 1
        try:
            await self._inside.acquire()
        finally:
            self.waiting -= 1
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._inside.release()
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._inside.release()
