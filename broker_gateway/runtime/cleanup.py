"""Ending what was begun: every step is run, the newest first, whatever becomes of the others."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType

import structlog

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[None] | None]


class Cleanup(AsyncExitStack):
    """A context whose end runs the steps.

    The first error is the one that is raised, be it of what was done within or of a step; those of later steps are
    logged, a line for each.
    """

    def add(self, what: str, step: Step) -> None:
        """Runs `step` at the end; `what` it does is said when it fails."""

        async def run(
            _kind: type[BaseException] | None, first: BaseException | None, _trace: TracebackType | None
        ) -> None:
            try:
                doing = step()
                if inspect.isawaitable(doing):
                    await doing
            except BaseException as failed:
                if first is None:
                    raise
                log.error(f"{what} failed", error=f"{type(failed).__name__}: {failed}")

        self.push_async_exit(run)
