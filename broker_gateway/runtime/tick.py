"""The end of a tick of the event loop: what its reads brought is done together, stage by stage.

| stage | does |
|---|---|
| READ | requests that a tick before left are served |
| APPEND | messages that came in go into the log, in one go |
| WAKE | receives that waited for them are served |
| JOURNAL | what changed is journaled, in one record; replies that waited for it are given |
| WRITE | every connection writes what was queued for it |
| SEARCH | receives that were put off search for messages, within a budget |

One callback of the event loop runs them all, so that a message can be sent, received and answered in one tick. Each
stage runs once in a tick: work that brings more of its kind ends, and others are served in between.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

import structlog

from broker_gateway.runtime.clock import monotonic_s

log = structlog.get_logger(__name__)


class Stage(enum.IntEnum):
    """In the order they run."""

    READ = 0
    APPEND = 1
    WAKE = 2
    JOURNAL = 3
    WRITE = 4
    SEARCH = 5


class Tick:
    """Work for the end of the tick; runs on the event loop it is first used on."""

    def __init__(self) -> None:
        self._work: tuple[list[Callable[[], None]], ...] = tuple([] for _ in Stage)
        self.scheduled = False
        """Whether there is work for the end of this tick."""
        self.began = 0.0
        """When the tick's first work came, by the monotonic clock: what is read now was there to be read by then."""
        self.number = 0
        """Of the tick: it is raised before the first stage, so that what READ serves and the reads behind it are one tick."""

    def add(self, stage: Stage, work: Callable[[], None]) -> None:
        """Runs `work` in that stage of this tick, or of the next one."""
        self._work[stage].append(work)
        if not self.scheduled:
            self.scheduled = True
            self.began = monotonic_s()
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self.number += 1
        try:
            self._run_stages()
        finally:  # whatever ended it early: work that is left, and what comes, gets a turn
            self.scheduled = any(self._work)
            if self.scheduled:
                self.began = monotonic_s()
                asyncio.get_running_loop().call_soon(self._run)

    def _run_stages(self) -> None:
        for waiting in self._work:  # what a stage brings for itself or an earlier one is the next tick's
            if not waiting:
                continue
            some = waiting.copy()
            waiting.clear()
            for work in some:
                try:
                    work()
                except Exception:
                    log.exception("work at the end of a tick failed")
