"""Erasing records: from when a call is answered nobody gets them from this broker any more.

| step | |
|---|---|
| the log is looked through, on a thread, and its end on the event loop | what is appended meanwhile is not missed |
| a record of the journal says what is erased | in the same step the store hides it, and what is put off forgets it |
| that is flushed, and the side file for readers by path written | a crash before may undo it: nothing was answered |
| the log's end is looked through again | a copy that was about to be appended when its record was erased |

The same call again finds the same records, and does what a crash left out. One call at a time. A call that has found as much as it
answers stops there, and says where the next one goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.deferred.pending import Pending
from broker_gateway.journal.erasures import Erasures, Log, records
from broker_gateway.journal.journal import Journal
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.erasure_search import MOST_FOUND, ErasureSearch, Found
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log
from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.shielded import shielded
from store.errors import RecordError, StoreError
from store.log.erased import read_erased
from store.log.record import Record, place_of
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
MOST_KEYS, MOST_IDS = 1000, 10_000
_LONGEST = 32_767
"""Bytes of the properties of a record."""
_PIECE = 4 << 20
_TAIL = 1 << 18
_LOOK_S = 20.0
"""Of a call, for looking through the log; the next one goes on from there. Other brokers of the host have their turn within the same
call of an operator."""
"""Bytes of the log that are looked through on the event loop."""
_A_STEP = 256
"""Records that are read in one go."""
_HOUR_S, _HOURS = 3600, 25


class Asked(NamedTuple):
    """What is to be erased: messages of a topic by their keys, or by ids; and records that were found elsewhere, by log."""

    topic: str = ""
    keys: Sequence[str] = ()
    message_ids: Sequence[str] = ()
    records: Sequence[tuple[str, str, Sequence[int]]] = ()
    """Broker, log id, physical offsets."""
    start: int | None = 0
    """Physical offset to look from, where an earlier call stopped; None: it has looked at all of this log."""
    traced: Sequence[str] = ()
    """Ids of messages whose traces are to be erased, and nothing else of them."""


class Erasure(NamedTuple):
    """What is erased now, in the order of the log, and how many of this log were not before."""

    found: list[Found]
    new_records: int
    kept_until_ms: Callable[[int], int]
    """When retention removes the segment of a physical offset at the latest; 0: not known."""
    stopped_at: int | None = None
    """Where another call is to look from, when this one found as much as it may; None: it has looked at all."""


class PutOffMessages(Protocol):
    """What keeps messages until something is due."""

    @property
    def pending(self) -> Pending:
        """Those that it keeps."""

    def erased(self, record: Record) -> None:
        """A record was erased."""


class Erasing:
    """Of one broker."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        put_off: Sequence[PutOffMessages],
        lake: Lake | None,
        on_erased: Callable[[], None],
    ) -> None:
        """`on_erased`: what holds messages in memory lets go of them."""
        self.store: MessageStore = core.store
        self._journal: Journal = core.journal
        self._erasures: Erasures = core.erasures
        self._put_off = put_off
        self._lake = lake
        self._on_erased = on_erased
        self._running = False
        self._unpublished = False
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._most = config.lake.lake_max_erased_records
        self._reserved_s = config.store.file_reserved_time * _HOUR_S
        self._hours = frozenset(int(hour) for hour in config.store.delete_when.split(";"))

    def publish(self) -> None:
        """Has the side file say what the journal said: at a start. What keeps it from that is logged."""
        store = self.store
        try:
            told = read_erased(store.root, (store.log_id, *store.identity.former_log_ids)).tolist()
        except (StoreError, OSError) as error:
            log.warning("the list of erased records is written anew", error=str(error))
            told = None
        if told == store.erased.offsets.tolist():
            return
        try:
            store.publish_erased()
        except OSError as error:
            self._unpublished = True
            log.error(
                "readers of the store by path are not told what is erased, until an erasure or a start writes the list",
                error=str(error),
            )

    async def erase(self, asked: Asked, *, dry_run: bool = False) -> Erasure:
        """Erases, and returns when that is on disk; goes on when nobody waits for it any more. BAD_REQUEST, TOO_MANY_REQUESTS,
        INTERNAL_SERVER_ERROR."""
        _check(asked)
        if self._running:
            raise ServiceError(Reason.TOO_MANY_REQUESTS, "an erasure is being done already; try again later")
        self._running = True
        return await shielded(self._alone(asked, dry_run))

    async def _alone(self, asked: Asked, dry_run: bool) -> Erasure:
        try:
            return await self._erase(asked, dry_run)
        finally:
            self._running = False

    async def _erase(self, asked: Asked, dry_run: bool) -> Erasure:
        store, now = self.store, now_ms()
        if asked.start is None:
            return Erasure([], 0, await self._kept_until())
        search = ErasureSearch(asked.topic, asked.keys, asked.message_ids, asked.start, asked.traced)
        elsewhere = await self._named(asked, search)
        new_records, at = 0, store.max_offset
        if (first := store.index.align(max(asked.start, store.min_offset))) is not None:
            at = first
        until = time.monotonic() + _LOOK_S
        while True:
            at = await self._look(search, at, until)
            new = self._new(search, elsewhere)
            if dry_run or not (new or self._unpublished):
                break
            # nothing waits between the look and this
            new_records += sum(len(offsets) for which, offsets in new.items() if which.own)
            self._write(new, now)
            elsewhere = {}
            await self._forget(search, new)
            await self._flushed()
            await asyncio.to_thread(self._published)
            if self._is_late(search, at, until):
                break
        if dry_run:
            new_records = sum(len(offsets) for which, offsets in new.items() if which.own)
        found = sorted(each for each in search.found.values() if each.physical_offset >= store.min_offset)
        if new_records and not dry_run:
            log.info("records erased", topic=asked.topic[:255], new=new_records, found=len(found))
        stopped = search.is_full or self._is_late(search, at, until)
        return Erasure(found, new_records, await self._kept_until(), at if stopped else None)

    # ----- finding -----

    async def _named(self, asked: Asked, search: ErasureSearch) -> dict[Log, list[int]]:
        """Takes the records that were named into the search; gives those that this store does not have."""
        store, identity = self.store, self.store.identity
        by_content = bool(asked.keys or asked.message_ids)
        elsewhere: dict[Log, list[int]] = {}
        for number, message_id in enumerate(asked.message_ids):
            if number % _A_STEP == 0:
                await asyncio.sleep(0)
            placed = place_of(message_id)
            record = self._record_at(placed[1]) if placed is not None else None
            if record is not None and placed is not None and record.store_host == placed[0]:
                search.add_of_topic(record)
        for broker, log_id, offsets in asked.records:
            owned = broker == store.broker and identity.owns(log_id)
            present = log_id == store.log_id
            for number, offset in enumerate(offsets):
                if number % _A_STEP == 0:
                    await asyncio.sleep(0)  # others are served in between
                here = owned and (offset >= identity.own_from if present else offset < identity.own_from)
                record = self._record_at(offset) if here else None
                if present and here and record is None and offset >= store.min_offset:
                    raise ServiceError(
                        Reason.BAD_REQUEST,
                        f"no record of the log {log_id} begins at physical offset {offset}",
                    )
                if record is not None and record.topic == JOURNAL_TOPIC:
                    raise ServiceError(
                        Reason.BAD_REQUEST, f"physical offset {offset} is of the broker's journal, and stays"
                    )
                # a former log may have had another record there, in an end that was lost: its content tells
                if record is not None and (present or not by_content):
                    search.add(record)
                elsewhere.setdefault(Log(broker, log_id, own=False), []).append(offset)
        return elsewhere

    def _record_at(self, offset: int) -> Record | None:
        try:
            return self.store.record_to_erase(offset)
        except RecordError:
            return None

    async def _look(self, search: ErasureSearch, at: int, until: float) -> int:
        """Looks through the log from a physical offset on: to its end, until the search is full, or by then; gives where that is."""
        store = self.store
        if not search.is_needed:
            return store.max_offset
        if search.is_full:
            return at
        await asyncio.to_thread(_load_compiled)
        while True:
            at, end = max(at, store.min_offset), store.max_offset
            if end - at <= _TAIL:
                break
            start, piece, at = next(store.read_chunks(at, end, _PIECE))
            stopped = await asyncio.to_thread(search.look, start, piece, store.segment_size)
            if stopped is not None:
                return stopped
            if time.monotonic() > until:
                return at
        for start, piece, _ in store.read_chunks(at, end, _PIECE):
            if (stopped := search.look(start, piece, store.segment_size)) is not None:
                return stopped
        return end

    def _is_late(self, search: ErasureSearch, at: int, until: float) -> bool:
        """Whether the rest of the log, from `at` on, is for the next call."""
        return search.is_needed and at < self.store.max_offset and time.monotonic() > until

    def _new(self, search: ErasureSearch, elsewhere: dict[Log, list[int]]) -> dict[Log, list[int]]:
        """What is not erased yet, by log. TOO_MANY_REQUESTS where that would be too many."""
        store, identity = self.store, self.store.identity
        wanted: dict[Log, list[int]] = {}
        for offset in search.found:
            former = offset < identity.own_from and identity.former_log_ids
            log_id = identity.former_log_ids[-1] if former else store.log_id
            if offset >= store.min_offset and offset not in store.erased.places:
                wanted.setdefault(Log(store.broker, log_id, own=True), []).append(offset)
        new = {which: sorted(offsets) for which, offsets in wanted.items()}
        added = sum(map(len, new.values()))
        for which, offsets in elsewhere.items():
            here = new.get(which._replace(own=True), ())
            if rest := self._erasures.not_yet(which, set(offsets).difference(here)):
                new[which] = rest
        count = len(store.erased.places) + added
        if added and count > self._most:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{count} records of the log would be erased, at most {self._most} (lakeMaxErasedRecords) may; raise that, or wait "
                "until retention has removed segments with erased records",
            )
        return new

    # ----- erasing -----

    def _write(self, new: dict[Log, list[int]], now: int) -> None:
        """Into the journal, and from then on it holds."""
        batches = [batch for which, offsets in new.items() for batch in records(which, offsets, now)]
        self._unpublished = True
        if not batches:
            return
        with refused_by_log():
            self._journal.append_first(batches)
        self._erasures.add(each for batch in batches for each in batch.erasures)
        self._on_erased()

    async def _forget(self, search: ErasureSearch, new: dict[Log, list[int]]) -> None:
        """What waits is pending no more. No copy is made of it meanwhile, for it cannot be read."""
        for part in self._put_off:
            waits = [
                offset
                for which, offsets in new.items()
                if which.own
                for offset in offsets
                if search.found[offset].topic in part.pending.topics
            ]
            for number, offset in enumerate(waits):
                if number % _A_STEP == 0:
                    await asyncio.sleep(0)
                if (record := self._record_at(offset)) is not None:
                    part.erased(record)

    async def _flushed(self) -> None:
        """Until what was appended is on disk, whatever `flushDiskType` is."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(
                    ServiceError(Reason.INTERNAL_SERVER_ERROR, f"the erasure could not be flushed: {error}")
                )

        def flushed(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(tell, error)

        with refused_by_log():
            self.store.wait_flushed(self.store.max_offset, flushed)
        await done

    def _published(self) -> None:
        try:
            self.store.publish_erased()
        except OSError as error:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"readers of the store by path could not be told what is erased: {error}; make room, and call again",
            ) from error
        self._unpublished = False

    # ----- how long the log has them -----

    async def _kept_until(self) -> Callable[[int], int]:
        """For segments that nothing but time keeps: not for the one that is written to, nor where the lake does not have it."""
        store, dispatched = self.store, None
        if self._lake is not None:
            try:
                dispatched = await asyncio.to_thread(self._lake.dispatched_to, store.broker, store.log_id)
            except LakeUnreachableError:
                dispatched = 0
        known: dict[int, int] = {}

        def kept_until_ms(offset: int) -> int:
            start = offset - offset % store.segment_size
            if start not in known:
                known[start] = self._removed_ms(start, dispatched)
            return known[start]

        return kept_until_ms

    def _removed_ms(self, start: int, dispatched: int | None) -> int:
        segment = next((each for each in self.store.segments if each.start == start), None)
        if segment is None or segment.end > self.store.max_offset:
            return 0
        if dispatched is not None and dispatched < segment.end:
            return 0
        try:
            expires_s = int(segment.path.stat().st_mtime) + self._reserved_s + 1
        except FileNotFoundError:
            return 0
        for _ in range(_HOURS):
            if time.localtime(expires_s).tm_hour in self._hours:
                break
            expires_s += _HOUR_S - expires_s % _HOUR_S
        return (expires_s + _HOUR_S) * 1000  # within an hour there is a look


def _load_compiled() -> None:
    from store import scan

    scan.warm()


def _check(asked: Asked) -> None:
    """BAD_REQUEST for what cannot be asked for."""

    def refused(text: str) -> ServiceError:
        return ServiceError(Reason.BAD_REQUEST, text)

    if not (asked.keys or asked.message_ids or asked.records or asked.traced):
        raise refused("nothing is named; give keys of a topic, message ids, or records")
    if asked.keys and not asked.topic:
        raise refused("keys are of a topic; give it")
    for name, texts, most in (
        ("keys", asked.keys, MOST_KEYS),
        ("message_ids", asked.message_ids, MOST_IDS),
        ("traced_ids", asked.traced, MOST_IDS),
    ):
        if len(texts) > most:
            raise refused(f"{len(texts)} {name}, at most {most} in a call; call again for the others")
        for each in texts:
            if not each or len(each) > _LONGEST:
                raise refused(f"{shown(each)} in {name} is empty, or longer than any that a record has")
            if name == "keys" and " " in each:
                raise refused(f"key {shown(each)} has a space, which parts keys; give each by itself")
    if asked.start is not None and asked.start < 0:
        raise refused(f"physical offset {asked.start} to go on from is negative")
    count = sum(len(offsets) for _, _, offsets in asked.records)
    if count > MOST_FOUND:
        raise refused(f"{count} records, at most {MOST_FOUND} in a call; call again for the others")
    for broker, log_id, offsets in asked.records:
        if not broker or not log_id:
            raise refused("records have no broker or log_id; name the log that they are of")
        if (negative := min(offsets, default=0)) < 0:
            raise refused(f"physical offset {negative} is negative")
