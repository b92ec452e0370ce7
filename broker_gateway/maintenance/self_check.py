"""Looking for damage in the store at intervals, on a thread; what is found is logged and counted."""

from __future__ import annotations

import asyncio

import structlog

from store.message_store import MessageStore
from store.tools.self_check import MAX_QUEUES, Found, self_check

log = structlog.get_logger(__name__)


class SelfCheck:
    """`run_once` at intervals; each goes on with the queues behind those of the last one."""

    def __init__(self, store: MessageStore, most: int = MAX_QUEUES) -> None:
        self._store = store
        self._most = most
        self._begin = 0
        self._rounds: dict[int, Found] = {}
        self.runs = 0

    @property
    def damaged(self) -> int:
        """Damaged places: of segments, and of every queue as it was when last checked."""
        rounds = list(self._rounds.values())
        return sum(each.places for each in rounds) + (rounds[-1].segment_places if rounds else 0)

    async def run_once(self) -> Found:
        """Looks once. What was not known before is logged."""
        begin = self._begin
        found = await asyncio.to_thread(self_check(self._store, begin, self._most).run)
        known = {text for each in self._rounds.values() for text in each.damage}
        self._rounds.pop(begin, None)
        self._rounds[begin] = found
        self._begin += found.queues
        if found.queues < self._most or self._begin >= len(self._store.index.queues()):
            self._rounds = {at: each for at, each in self._rounds.items() if at <= begin}
            self._begin = 0
        for text in found.damage:
            if text not in known:
                log.error("damage in the store", what=text)
        if found.unsaid:
            log.error("more damage in the store", places=found.unsaid)
        self.runs += 1
        log.debug(
            "store checked",
            segments=found.segments,
            queues=found.queues,
            entries=found.entries,
            seconds=round(found.seconds, 3),
        )
        return found
