"""Deleting old segments: the store's rules, held back by what a start and the lake still need.

| need | held from |
|---|---|
| what is put off (delivery times, halves) | its records: they are copied to the end of the log first |
| a start | the newest complete journal snapshot on disk (one is written when it stands in the way) |
| the lake, with `lakeLocation` | where the lake's own progress says it has everything below; `lakeForceDelete` gives that up on a disk that would refuse sends |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from broker_gateway.config.store_options import StoreOptions
from broker_gateway.deferred.pending import Pending
from broker_gateway.journal.journal import Journal
from broker_gateway.lake.ahead import ahead
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.clock import now_ms
from store.errors import StoreError
from store.log.retention import Rules
from store.message_store import MessageStore

log = structlog.get_logger(__name__)


def rules_of(options: StoreOptions) -> Rules:
    """RocketMQ's options as the store's rules."""
    return Rules(
        options.file_reserved_time * 3600.0,
        frozenset(int(hour) for hour in options.delete_when.split(";")),
        options.disk_max_used_space_ratio / 100,
        options.disk_space_clean_forcibly_ratio / 100,
        options.disk_space_warning_level_ratio / 100,
        options.clean_file_forcibly_enable,
        options.delete_file_batch_max,
    )


_MOST_CARRIED = 200
"""Goes of copying forward in a run."""


class PutOffMessages(Protocol):
    """What keeps messages until something is due."""

    @property
    def pending(self) -> Pending:
        """Those that it keeps."""

    def carry_forward(self, physical_offset: int) -> int:
        """Copies some of those that stand below a physical offset to the end of the log; how many."""


class Retention:
    """`run_once` at intervals; each deletes what may go."""

    def __init__(
        self,
        store: MessageStore,
        journal: Journal,
        rules: Rules,
        lake: Lake | None,
        force_delete: bool,
        put_off: Sequence[PutOffMessages] = (),
    ) -> None:
        self._store = store
        self._journal = journal
        self.rules = rules
        self._lake = lake
        self._force_delete = force_delete
        self._put_off = put_off
        self._refused = False
        self._held: list[str] = []
        self._why: dict[str, str] = {}
        self._snapshot_awaited = False

    def use(self, rules: Rules) -> None:
        """Other rules, from the next run on."""
        self.rules = rules

    async def run_once(self, *, by_hand: bool = False) -> int:
        """Deletes what may go; returns how many segments went."""
        store, rules = self._store, self.rules
        hour = time.localtime(now_ms() / 1000).tm_hour
        wanted = store.expired(rules, hour, by_hand=by_hand)
        keep_from = store.min_offset
        if wanted > store.min_offset:
            carried = await self._carry_forward(wanted)
            keep_from = await self._keep_from(wanted) if carried else store.min_offset
        removed = store.retain(rules, hour, keep_from, by_hand=by_hand)
        self._tell_refusal()
        self._tell_kept(-(-(wanted - store.min_offset) // store.segment_size))
        if not removed.segments:
            return 0
        await asyncio.to_thread(removed.dispose)
        log.info("segments deleted", count=len(removed.segments), min_offset=store.min_offset)
        return len(removed.segments)

    async def _carry_forward(self, wanted: int) -> bool:
        """Has what is put off copied to the end of the log, where it stands in segments that may go; whether all is."""
        for each in self._put_off:
            for _ in range(_MOST_CARRIED):
                try:
                    if not each.carry_forward(wanted):
                        break
                except (StoreError, OSError) as error:
                    self._why = {"put off": f"messages that are put off cannot be copied forward: {error}"}
                    return False
                await asyncio.sleep(0)
            else:
                return False  # the next run goes on
            await each.pending.save_behind(wanted)
        return True

    async def _keep_from(self, wanted: int) -> int:
        needed = self._journal.needed_from()
        self._why = {}
        if needed < wanted:
            self._journal.begin_snapshot()  # on disk by a later run
            self._store.request_flush()
            if self._snapshot_awaited:
                self._why["journal"] = (
                    f"a start needs the journal from {needed} on, and no later snapshot of it is on disk"
                )
        self._snapshot_awaited = needed < wanted
        if self._lake is None:
            return needed
        try:
            dispatched = await asyncio.to_thread(
                self._lake.dispatched_to, self._store.broker, self._store.log_id
            )
        except LakeUnreachableError as error:
            dispatched = 0
            self._why["unreachable"] = f"the lake cannot be read: {error}"
        else:
            if wrong := ahead(dispatched, self._store):
                dispatched, self._why["ahead"] = 0, wrong
            elif dispatched < wanted:
                self._why["lake"] = f"the lake has the log up to {dispatched} only"
        if self._force_delete and self._store.refusal is not None:
            return needed
        return min(needed, dispatched)

    def _tell_kept(self, count: int) -> None:
        """Says why segments that are expired stay, once for each reason."""
        held = list(self._why) if count > 0 else []
        if held and held != self._held:
            log.warning(f"retention blocked: {count} expired segments kept: {'; '.join(self._why.values())}")
        elif self._held and not held:
            log.info("retention resumed")
        self._held = held

    def _tell_refusal(self) -> None:
        refusal = self._store.refusal
        if refusal is not None and not self._refused:
            log.error("sends are refused", why=refusal)
        elif refusal is None and self._refused:
            log.info("sends are taken again")
        self._refused = refusal is not None
