"""How far the lake is behind the log, and how long the disk lasts: the original's `dispatchBehindBytes`.

The broker's own index is written with the append, so that what lags here is the reput. While it is away the log grows
until sends are refused (`diskSpaceWarningLevelRatio`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from broker_gateway.lake.ahead import ahead
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.clock import monotonic_s, now_ms
from store.message_store import MessageStore

log = structlog.get_logger(__name__)


class DispatchLag:
    """`look` at intervals. `refuse_at` is the share of a disk above which sends are refused."""

    def __init__(self, store: MessageStore, lake: Lake | None, refuse_at: Callable[[], float]) -> None:
        self._store = store
        self._lake = lake
        self._refuse_at = refuse_at
        self._before = monotonic_s(), store.max_offset
        self._unreachable = False
        self.behind_bytes: int | None = None
        """Of the log that the lake does not have yet; None without a lake, or while it cannot be read."""
        self.behind_records = 0
        """Records that are in these bytes."""
        self.behind_s = 0.0
        """Seconds since the oldest of them was stored; 0 where there is none."""
        self.hours_left: float | None = None
        """Until sends are refused, if the log grows as since the last look and nothing is deleted; None: no growth."""

    async def measure(self) -> None:
        """Raises OSError when a disk cannot be looked at."""
        store = self._store
        end, now = store.max_offset, monotonic_s()
        room = await asyncio.to_thread(room_left, store.folders, self._refuse_at())
        then, end_then = self._before
        grown = end - end_then
        self.hours_left = room / grown * (now - then) / 3600 if grown > 0 else None
        self._before = now, end
        if self._lake is not None:
            self.behind_bytes = await self._behind(self._lake)
        hours = None if self.hours_left is None else round(self.hours_left, 1)
        level = logging.DEBUG if self._lake is None else logging.INFO
        log.log(
            level,
            "dispatch",
            behind_bytes=self.behind_bytes,
            behind_records=self.behind_records,
            behind_seconds=round(self.behind_s, 1),
            disk_hours_left=hours,
        )

    async def _behind(self, lake: Lake) -> int | None:
        store = self._store
        try:
            dispatched = await asyncio.to_thread(lake.dispatched_to, store.broker, store.log_id)
        except LakeUnreachableError as error:
            if not self._unreachable:
                log.warning("the lake cannot be read", error=str(error))
            self._unreachable = True
            return None
        self._unreachable = False
        if wrong := ahead(dispatched, store):
            log.error(
                "the lake is ahead of the log; restart the broker: it begins a new log (lakeNewLogWhenAhead)",
                why=wrong,
            )
        begin = max(dispatched, store.own_from)
        self.behind_records = store.index.records_from(begin)
        oldest_ms = store.first_stored_ms(begin)
        self.behind_s = 0.0 if oldest_ms is None else max(now_ms() - oldest_ms, 0) / 1000
        return max(store.max_offset - begin, 0)


def room_left(folders: Iterable[Path], refuse_at: float) -> float:
    """Bytes until the disks of these folders are filled to that share, each disk counted once. Raises OSError."""
    disks = {folder.stat().st_dev: shutil.disk_usage(folder) for folder in folders}
    return sum(max(refuse_at * (usage.used + usage.free) - usage.used, 0.0) for usage in disks.values())
