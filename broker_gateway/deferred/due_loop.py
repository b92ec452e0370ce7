"""Looks when the first of what is pending is due, and has it done at the end of that tick of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

import structlog

from broker_gateway.deferred.pending import Pending
from broker_gateway.runtime.clock import monotonic_ms, now_ms
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from broker_gateway.runtime.tick import Stage, Tick
from store.errors import StoreError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
A_GO = 256
"""Records that something is done for in a tick; the next ones in the next tick, so that others are served in between."""
_LOOK_S = 1.0
"""The longest time between looks: the host's clock may be set forward."""
_LOOK_AGAIN_MS = 20
"""While all that is due is under way."""
_AGAIN_MS = 1000
"""After a go that failed."""


class DueLoop:
    """`go(keys, now)` does what is due and takes it out of the table; what it raises is logged, and it is tried again."""

    def __init__(
        self,
        store: MessageStore,
        pending: Pending,
        tick: Tick,
        go: Callable[[Sequence[int], int], None],
        under_way: Callable[[], Set[int]] = frozenset,
    ) -> None:
        """What is `under_way` is left alone: something is being done for it already."""
        self._pending = pending
        self._tick = tick
        self._go = go
        self._under_way = under_way
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._going = self._running = False
        self._not_before = 0
        """By the monotonic clock, ms: the host's may be set back."""
        self._failed = RateLimitedLog("times")
        store.on_appended(self._appended)

    def begin(self) -> None:
        """The log was replayed: what is due is done from now on."""
        self._pending.catch_up()
        self._running = True
        self._arm()

    def stop(self) -> None:
        """Nothing is done any more."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def late_ms(self) -> int:
        """How long the first that is pending has been due; 0 when none is."""
        due = self._pending.table.next_due()
        return 0 if due is None else max(now_ms() - due, 0)

    def _appended(self, topic: str, queue_ids: Set[int]) -> None:
        if topic in self._pending.topics and self._running:
            self._pending.appended(topic, queue_ids)
            self._arm()

    def _arm(self) -> None:
        """Sees to it that a look comes when the first is due."""
        due = self._pending.table.next_due()
        if due is None or not self._running or self._going:
            return
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        wait_s = min(max(due - now_ms(), self._not_before - monotonic_ms(), 0) / 1000, _LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        due = self._pending.table.next_due()
        may_go = self._running and self._not_before <= monotonic_ms()
        if due is not None and due <= now_ms() and may_go:
            self._going = True
            self._tick.add(Stage.APPEND, self._do)
        else:
            self._arm()

    def _do(self) -> None:
        self._going = False
        if not self._running:
            return
        now = now_ms()
        try:
            keys = self._pending.table.due_until(now, A_GO, self._under_way() | self._pending.unfit)
            if keys:
                self._go(keys, now)
            else:
                self._not_before = monotonic_ms() + _LOOK_AGAIN_MS
        except Exception as error:
            self._not_before = monotonic_ms() + _AGAIN_MS
            known = isinstance(error, (StoreError, OSError))
            self._failed.happened(
                log.error,
                "what is due could not be done; it is tried again",
                kind=self._pending.name,
                error=str(error),
                exc_info=None if known else error,
            )
        self._look()
