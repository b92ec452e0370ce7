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
        self._blocked = ""
        """Why what is put off keeps a segment."""

    def use(self, rules: Rules) -> None:
        """Other rules, from the next run on."""
        self.rules = rules

    async def run_once(self, *, by_hand: bool = False) -> int:
        """Deletes what may go; returns how many segments went."""
        store, rules = self._store, self.rules
        hour = time.localtime(now_ms() / 1000).tm_hour
        expired = store.expired(rules, hour, by_hand=by_hand)
        keep_from = store.min_offset
        if expired > store.min_offset:
            carried = await self._carry_forward(expired)
            # what expired meanwhile was not looked at
            keep_from = min(carried, await self._keep_from(expired))
        removed = store.retain(rules, hour, keep_from, by_hand=by_hand)
        self._tell_refusal()
        self._tell_kept(-(-(expired - store.min_offset) // store.segment_size))
        if not removed.segments:
            return 0
        await asyncio.to_thread(removed.dispose)
        log.info("segments deleted", count=len(removed.segments), min_offset=store.min_offset)
        return len(removed.segments)

    async def _carry_forward(self, expired: int) -> int:
        """Up to where nothing that is put off stands in segments that may go: it is copied to the end of the log, and on disk there.
        Of one segment in a run, so that the log grows by no more than what goes."""
        store, self._blocked = self._store, ""
        for segment in store.segments:
            if segment.end > expired:
                break
            waits = [each for each in self._put_off if each.pending.below(segment.end, 1)]
            if not waits:
                continue
            try:
                for each in waits:
                    copied = 1
                    while copied:
                        copied = each.carry_forward(segment.end)
                        await asyncio.sleep(0)
                await asyncio.to_thread(store.flush)
            except (StoreError, OSError) as error:
                self._blocked = f"messages that are put off cannot be copied forward: {error}"
                return segment.start
            if any(each.pending.below(segment.end, 1) for each in waits):
                self._blocked = (
                    "a message that is put off stands there, and is being ended or too large to be copied"
                )
                return segment.start
            expired = segment.end
            break
        try:
            for each in self._put_off:
                await each.pending.save_behind(expired)
        except OSError as error:
            self._blocked = f"the file of what is put off can neither be written nor removed: {error}"
            return store.min_offset
        return expired

    async def _keep_from(self, wanted: int) -> int:
        needed = self._journal.needed_from()
        self._why = {"put off": self._blocked} if self._blocked else {}
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
