"""Messages of a topic looked up over log and lake, page by page, the newest first.

The local log is searched first, then the lake for what is older than it: each message has one place, and is given once. The
lake is asked only where the broker has, or had, older messages than its log and the time range reaches that far; on threads
of its own, so that a search of the log never waits for one of a slow lake.

| bound | of a page |
|---|---|
| `MAX_PAGE`, `PAGE_BYTES` | messages, and bytes of them; one message may be larger |
| `SCANNED`, `LOG_S` | bytes of log read, seconds |
| `LAKE_S`, `LAKE_WAIT_S` | seconds that the lake is searched, and waited for |

A page may have less than was asked for, even nothing, and a place to go on: what was looked through had no more.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from broker_gateway.lake.message_search import (
    LakeFound,
    LakePlace,
    LakeSearch,
    LakeTooSlowError,
    LakeWanted,
)
from broker_gateway.lake.reader import LakeReadStoppedError, LakeUnreachableError
from broker_gateway.messaging.broker_properties import without_brokers
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.message_search import Match, MessageSearch, Wanted
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.metadata.catalog import Topic
from store.errors import RecordError
from store.log.record import (
    SYS_HOSTS_V6,
    Host,
    PendingRecord,
    Record,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    offset_msg_id,
    place_of,
)

MAX_PAGE = 1000
PAGE_BYTES = 3 << 20
"""A client takes 4 MiB in one answer unless it says otherwise."""
SCANNED = 2 << 30
LOG_S = 5.0
LAKE_S = 5.0
LAKE_WAIT_S = 20.0
MAX_IN_LAKE = 2
"""Searches of the lake at a time: one runs, one waits."""


class FoundMessage(NamedTuple):
    """A message, with the properties that its producer gave it and RocketMQ's own."""

    record: Record
    properties: dict[str, str]
    message_id: str
    whole: bool = True
    """Whether its body is known."""

    def stored(self) -> StoredMessage:
        """As one that is read to be delivered. MESSAGE_NOT_FOUND when the lake has it without its body."""
        if not self.whole:
            raise ServiceError(
                Reason.MESSAGE_NOT_FOUND,
                f"the lake has message {shown(self.message_id)} without its body, and the log has it no more",
            )
        record = self.record
        pending = PendingRecord(
            record.topic,
            record.queue_id,
            record.body,
            encode_properties(self.properties),
            record.born_timestamp,
            record.born_host.packed,
            record.sys_flag & ~SYS_HOSTS_V6,
            record.flag,
            record.reconsume_times,
            record.prepared_transaction_offset,
        )
        encoded = encode_record(
            pending,
            record.queue_offset,
            record.physical_offset,
            record.store_timestamp,
            record.store_host.packed,
            append_crc=False,
        )
        return StoredMessage(memoryview(b"".join(encoded)))


class Position(NamedTuple):
    """Where a query goes on: below a physical offset of the log of that id; or in the lake, which has what is below that
    offset, below `place` (None: at its newest)."""

    log_id: str
    physical_offset: int
    in_lake: bool = False
    place: LakePlace | None = None


class Page(NamedTuple):
    """The newest first; `following` is None at the end."""

    messages: list[FoundMessage]
    following: Position | None


class MessageQueries:
    """Creates nothing and moves no group. `lake` is None without lakeLocation: then there is the local log alone."""

    def __init__(self, core: Core, search: MessageSearch, lake: LakeSearch | None) -> None:
        self._store = core.store
        self._erasures = core.erasures
        self._search = search
        self._lake = lake
        self._threads = ThreadPoolExecutor(MAX_IN_LAKE, "lake-search")
        self._in_lake = 0

    async def page(self, topic: Topic, wanted: Wanted, most: int, position: Position | None = None) -> Page:
        """At most `most` messages from a position on, or from the newest. BAD_REQUEST for a position that is none, FORBIDDEN
        where searching by key is off, TOO_MANY_REQUESTS, PROXY_TIMEOUT and INTERNAL_SERVER_ERROR where the lake cannot be
        searched: messages that were found are given first."""
        by_key = wanted.key is not None or wanted.message_id is not None
        if by_key and not self._search.searchable:
            raise ServiceError(
                Reason.FORBIDDEN, "messages are not searched by key or id here: messageIndexEnable=false"
            )
        self._check(position)
        if position is not None and position.in_lake:
            return await self._in_the_lake(topic, wanted, most, position)
        below = None if position is None else position.physical_offset
        searched = await self._search.newest(topic, wanted, most, SCANNED, below, LOG_S)
        messages, rest = self._read(searched.matches)
        if rest is not None:
            return Page(messages, Position(self._store.log_id, rest))
        if searched.searched_to is not None:
            return Page(messages, Position(self._store.log_id, searched.searched_to))
        if not messages and wanted.message_id is not None and position is None:
            messages = self._stored_there(topic, wanted)
            if messages:
                return Page(messages, None)
        floor = searched.floor if below is None else min(searched.floor, below)
        if self._lake is None or not self._has_older(topic, wanted):
            return Page(messages, None)
        following = Position(self._store.log_id, floor, in_lake=True)
        if messages:
            return Page(messages, following)
        return await self._in_the_lake(topic, wanted, most, following)

    def stop(self) -> None:
        """None of the lake is begun any more; those under way end where the lake says that it is to stop."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, position: Position | None) -> None:
        if position is None:
            return
        store = self._store
        known = position.log_id == store.log_id and 0 <= position.physical_offset <= store.max_offset
        if not known or not (
            position.in_lake
            or position.physical_offset <= store.min_offset
            or store.is_boundary(position.physical_offset)
        ):
            raise ServiceError(
                Reason.BAD_REQUEST,
                "scroll_id is of no query of this broker's present log; begin again without one",
            )

    def _read(self, matches: list[Match]) -> tuple[list[FoundMessage], int | None]:
        """What has room in a page, and the physical offset below which the rest is; what cannot be read is passed over."""
        found: list[FoundMessage] = []
        held, last = 0, 0
        for match in matches:
            held += len(match.data)
            if found and held > PAGE_BYTES:
                return found, last
            message = _decoded(memoryview(bytes(match.data)))  # nothing holds a segment that is deleted
            if message is not None:
                found.append(message)
            last = match.physical_offset
        return found, None

    def _stored_there(self, topic: Topic, wanted: Wanted) -> list[FoundMessage]:
        """The message whose id is made of where it is stored in the local log."""
        placed = _placed(wanted)
        store = self._store
        if placed is None or not store.min_offset <= placed[1] < store.max_offset:
            return []
        if not store.index.is_record_start(placed[1]) or placed[1] in store.erased.places:
            return []
        size = int.from_bytes(store.read(placed[1], 4), "big")
        message = _decoded(memoryview(bytes(store.read(placed[1], size))))
        if message is None or not _fits(message.record, topic, wanted):
            return []
        return [message] if message.record.store_host == placed[0] else []

    def _has_older(self, topic: Topic, wanted: Wanted) -> bool:
        """Whether messages may be wanted that the local log has no more, or never had."""
        store, index = self._store, self._store.index
        if self._former():
            return True  # a former log may have lost its end, which is in the lake
        queues = range(topic.queues) if wanted.queue_id is None else [wanted.queue_id]

        def lacks(queue_id: int) -> bool:
            first = index.min_offset(topic.name, queue_id)
            return first > 0 or index.absence(topic.name, queue_id, 0) is not None

        if not store.min_offset and not any(lacks(each) for each in queues):
            return False
        oldest = index.align(store.min_offset)
        if oldest is None:
            return True
        first_ms = store.first_stored_ms(oldest)
        return first_ms is None or wanted.begin_ms <= first_ms

    def _former(self) -> frozenset[str]:
        """Ids of the logs that the local one begins with, if it does."""
        store = self._store
        former = store.identity.own_from > store.min_offset
        return frozenset(store.identity.former_log_ids) if former else frozenset()

    def _local(self, topic: Topic) -> dict[int, list[tuple[int, int]]]:
        """The queue offsets that the local log has, [start, stop) by queue id."""
        index = self._store.index
        found: dict[int, list[tuple[int, int]]] = {}
        for queue_id in range(topic.queues):
            at, end = index.min_offset(topic.name, queue_id), index.max_offset(topic.name, queue_id)
            spans = found[queue_id] = []
            for absence in index.absences(topic.name, queue_id):
                spans.append((at, absence.begin))
                at = absence.end
            spans.append((at, end))
        return found

    # ----- in the lake -----

    async def _in_the_lake(self, topic: Topic, wanted: Wanted, most: int, position: Position) -> Page:
        asked = LakeWanted(
            topic.name,
            position.log_id,
            position.physical_offset,
            wanted.begin_ms * 1000,
            min(wanted.end_ms * 1000 + 999, _LATEST_US),
            wanted.message_id,
            wanted.key,
            None if wanted.tags.everything else wanted.tags,
            wanted.lite_topic,
            wanted.queue_id,
            former=(former := self._former()),
            local=self._local(topic) if former else {},
        )
        known = self._erasures.version
        found = await self._searched(asked, most, position.place)
        placed = _placed(wanted)
        if not found.messages and found.searched_to is None and placed is not None:
            host, offset = placed
            at = asked._replace(message_id=None, placed=(offset, str(host)))
            found = await self._searched(at, most, None)
        if known != self._erasures.version:  # what was found may have been erased meanwhile
            return Page([], position)
        messages = [
            FoundMessage(
                each.record,
                decode_properties(without_brokers(encode_properties(each.properties))),
                each.message_id,
                each.whole,
            )
            for each in found.messages
        ]
        following = None if found.searched_to is None else position._replace(place=found.searched_to)
        return Page(messages, following)

    async def _searched(self, asked: LakeWanted, most: int, below: LakePlace | None) -> LakeFound:
        """On a thread, which a lake that does not answer keeps busy: after a while it is not waited for any more."""
        assert self._lake is not None
        if self._in_lake >= MAX_IN_LAKE:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS, f"{MAX_IN_LAKE} searches of the lake run already; try again later"
            )
        self._in_lake += 1
        search = asyncio.get_running_loop().run_in_executor(
            self._threads, self._lake.newest, asked, most, PAGE_BYTES, below, LAKE_S
        )
        search.add_done_callback(self._ended)
        try:
            found = await asyncio.wait_for(asyncio.shield(search), LAKE_WAIT_S)
        except TimeoutError as error:
            raise ServiceError(
                Reason.PROXY_TIMEOUT,
                f"the lake {self._lake.location} did not answer within {LAKE_WAIT_S:g} s; older messages are there: try again",
            ) from error
        except LakeTooSlowError as error:
            raise ServiceError(Reason.PROXY_TIMEOUT, str(error)) from error
        except (LakeUnreachableError, LakeReadStoppedError) as error:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"older messages are in the lake, which cannot be read now: {error or 'the broker stops'}; try again",
            ) from error
        if found is None:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"older messages were in a log that this broker has no more, and there is no lake at {self._lake.location} "
                "(lakeLocation); see that it is there",
            )
        return found

    def _ended(self, search: asyncio.Future[LakeFound | None]) -> None:
        self._in_lake -= 1
        if not search.cancelled():
            search.exception()  # seen: who waited was told


_LATEST_US = 253_402_300_799_999_999


def _decoded(data: memoryview) -> FoundMessage | None:
    try:
        record = decode_record(data, verify=False)
    except RecordError:
        return None
    properties = decode_properties(without_brokers(record.properties))
    message_id = properties.get("UNIQ_KEY") or offset_msg_id(record.store_host.packed, record.physical_offset)
    return FoundMessage(record, properties, message_id)


def _fits(record: Record, topic: Topic, wanted: Wanted) -> bool:
    return (
        record.topic == topic.name
        and wanted.begin_ms <= record.store_timestamp <= wanted.end_ms
        and wanted.queue_id in (None, record.queue_id)
    )


def _placed(wanted: Wanted) -> tuple[Host, int] | None:
    """Host and physical offset that a message id is made of, if it may be one of these."""
    return None if wanted.message_id is None else place_of(wanted.message_id)
