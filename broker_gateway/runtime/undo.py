"""What ends the things that were begun: every step is run, the newest first, whatever becomes of the others."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType

import structlog

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[None] | None]


class Undo:
    """A context whose end runs the steps.

    The first error is the one that is raised, be it of what was done within or of a step; those of later steps are
    logged, a line for each.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Step]] = []

    def add(self, what: str, step: Step) -> None:
        """Runs `step` at the end; `what` it does is said when it fails."""
        self._steps.append((what, step))

    async def __aenter__(self) -> Undo:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        first = error
        while self._steps:
            what, step = self._steps.pop()
            try:
                doing = step()
                if inspect.isawaitable(doing):
                    await doing
            except BaseException as failed:
                if first is None:
                    first = failed
                else:
                    log.error(f"{what} failed", error=f"{type(failed).__name__}: {failed}")
        if first is not None and first is not error:
            raise first
