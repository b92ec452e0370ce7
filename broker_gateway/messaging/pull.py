"""Pulling: messages of a queue from an offset on. Nothing is put in flight, and no offset of the group changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.lake.messages import Stretch
from broker_gateway.lake.reader import LakeUnreachableError
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.offsets import Offsets, check_queue_id
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.messaging.poll import RECEIVE_BYTES, Patience, Polls, batch_of, check_may_receive
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.stored_message import MessageReader, StoredMessage
from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.fair_queue import FairQueue

_ENTRIES = 256
"""Of the queue, looked at before others get a turn; fewer where a filter costs more than reading a message does."""
_A_READ = 64
"""In the units of `MessageFilter.work`."""


@dataclass(frozen=True, slots=True)
class PullWanted:
    """What a pull asks for; `broker` is the one that the client takes the queue to be of, empty: whoever is asked. `host`: of the
    client."""

    group: str
    topic: str
    queue_id: int
    broker: str
    offset: int
    batch_size: int
    filter: MessageFilter
    patience: Patience
    host: str = ""


@dataclass(slots=True)
class Pulled:
    """What was found. `next_offset` is where the next pull goes on: behind the messages, or in the queue again."""

    outcome: Outcome
    next_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    body_bytes: int = 0


_SEARCH_S = 1.0
"""How long a pull that does not wait goes through messages that its filter does not take."""


class Pulls:
    """Serves pulls. Those that wait are woken by an append to their queue."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        resources: Resources,
        offsets: Offsets,
        polls: Polls,
        messages: MessageReader,
    ) -> None:
        self._core = core
        self._index = core.store.index
        self._resources = resources
        self._offsets = offsets
        self._polls = polls
        self._messages = messages
        self._max_waiting = config.lake.lake_max_waiting_receives
        self._waiting: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._closing = False
        self._turns = PullTurns()
        core.store.on_appended(self._appended)

    async def pull(self, wanted: PullWanted) -> Pulled:
        """OK with messages, MESSAGE_NOT_FOUND when none came in time, ILLEGAL_OFFSET with the nearest one that is right.

        Raises ServiceError when the call cannot be served.
        """
        topic, group = self._checked(wanted)
        most = batch_of(wanted.batch_size)
        waits_s = 0.0 if wanted.patience.polling_ms == 0 else self._polls.waits(wanted.patience)
        began_s = monotonic_s()
        deadline_s = began_s + waits_s
        first, end = self._offsets.bounds(topic.name, wanted.queue_id)
        if 0 <= wanted.offset < first:
            first = await self._offsets.oldest(topic.name, wanted.queue_id)
        if not first <= wanted.offset <= end:
            nearest = first if wanted.offset < first else end
            return Pulled(
                Outcome(
                    Reason.ILLEGAL_OFFSET,
                    f"offset {wanted.offset} is not in the queue, which has {first} to {end}; go on at {nearest}",
                ),
                nearest,
            )
        found = Pulled(OK, wanted.offset)
        while True:
            if wanted.filter.costly:
                await self._turns.next(wanted.host)
            while await self._search(wanted, found, most, max(deadline_s, began_s + _SEARCH_S)):
                if self._closing or monotonic_s() > max(deadline_s, began_s + _SEARCH_S):
                    return self._ended(topic, group, found)  # the next pull goes on from `next_offset`
                await self._turns.next(wanted.host)
                self._checked(wanted)
            left_s = deadline_s - monotonic_s()
            if found.messages or left_s <= 0 or self._closing:
                break
            await self._appended_to((topic.name, wanted.queue_id), left_s)
            self._checked(wanted)
        return self._ended(topic, group, found)

    def _ended(self, topic: Topic, group: Group, found: Pulled) -> Pulled:
        if found.messages:
            self._count(topic, group, found)
        else:
            self._core.metrics.received_nothing()
            found.outcome = Outcome(Reason.MESSAGE_NOT_FOUND, "no new message")
        return found

    def close(self) -> None:
        """Ends every waiting call with nothing; later ones do not wait."""
        self._closing = True
        for waiting in list(self._waiting.values()):
            _wake(waiting)

    def _checked(self, wanted: PullWanted) -> tuple[Topic, Group]:
        """Topic and group, which may go while a pull waits. A group is not made by it."""
        self._polls.check_readable()
        self._offsets.check_queue(wanted.topic, wanted.queue_id, wanted.broker)
        self._resources.check_group(wanted.group)
        topic = self._resources.known_topic(wanted.topic)
        group = self._resources.catalog.group(wanted.group) or Group(wanted.group)
        check_may_receive(topic, group)
        check_queue_id(topic.name, wanted.queue_id, topic.read_queues)
        return topic, group

    async def _search(self, wanted: PullWanted, found: Pulled, most: int, until_s: float) -> bool:
        """As `_look`; first in the lake, where that alone has what comes next. INTERNAL_SERVER_ERROR when it cannot be read, and there is
        nothing else to give."""
        old, offset = self._messages.old, found.next_offset
        if old is None or (end := old.end(wanted.topic, wanted.queue_id, offset)) <= offset:
            return self._look(wanted, found, most)
        reading = old.read(wanted.topic, wanted.queue_id, offset, end, wanted.host)
        try:
            stretch = await asyncio.wait_for(reading, max(until_s - monotonic_s(), 0.001))
        except TimeoutError:
            return False
        except LakeUnreachableError as error:
            if found.messages:
                return False
            raise self._offsets.unread(error) from error
        return self._take(wanted, found, most, stretch, min(end, stretch.end))

    def _take(self, wanted: PullWanted, found: Pulled, most: int, stretch: Stretch, end: int) -> bool:
        """`_look` in what was read from the lake, up to `end`."""
        first = stretch.after(found.next_offset)
        for at in range(first, len(stretch.offsets)):
            offset = stretch.offsets[at]
            if offset >= end:
                break
            if at - first == _looked_at(wanted.filter):
                found.next_offset = offset
                return True
            stored = self._messages.made_of(stretch.records[at], offset)
            if stored is None or not wanted.filter.wants(stored.properties):
                continue
            if found.messages and found.body_bytes + stored.body_length > RECEIVE_BYTES:
                found.next_offset = offset
                return False
            found.messages.append(stored)
            found.body_bytes += stored.body_length
            if len(found.messages) == most:
                found.next_offset = offset + 1
                return False
        found.next_offset = end
        return True

    def _look(self, wanted: PullWanted, found: Pulled, most: int) -> bool:
        """Takes from the next stretch of the queue; False when the pull has what it may have, or the queue ends."""
        topic, queue_id = wanted.topic, wanted.queue_id
        start = max(found.next_offset, self._index.min_offset(topic, queue_id))
        start = self._index.behind_absence(topic, queue_id, start)
        count = most - len(found.messages)
        if not wanted.filter.everything:
            count = _looked_at(wanted.filter)
        places, sizes, codes = self._index.entries(topic, queue_id, start, count)
        for at in np.flatnonzero(wanted.filter.mask(codes)).tolist():
            stored = self._messages.read(int(places[at]), int(sizes[at]))
            if stored is None or not wanted.filter.wants(stored.properties):
                continue
            if found.messages and found.body_bytes + stored.body_length > RECEIVE_BYTES:
                found.next_offset = start + at
                return False
            found.messages.append(stored)
            found.body_bytes += stored.body_length
            if len(found.messages) == most:
                found.next_offset = start + at + 1
                return False
        found.next_offset = start + len(places)
        return len(places) > 0

    def _count(self, topic: Topic, group: Group, found: Pulled) -> None:
        counted = topic.name, group.name, len(found.messages), found.body_bytes
        self._core.metrics.received(*counted)
        self._core.minutes.count(*counted, None)

    def _appended(self, topic: str, queue_ids: Iterable[int]) -> None:
        if self._waiting:
            for queue_id in queue_ids:
                _wake(self._waiting.get((topic, queue_id), ()))

    async def _appended_to(self, queue: tuple[str, int], most_s: float) -> None:
        """Waits for an append to a queue. TOO_MANY_REQUESTS when too many wait already."""
        waiting = self._core.wakeups.waiting + sum(map(len, self._waiting.values()))
        if waiting >= self._max_waiting:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{self._max_waiting} receives wait already (lakeMaxWaitingReceives); try again later",
            )
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(queue, set())
        line.add(woken)
        try:
            await asyncio.wait([woken], timeout=most_s)
        finally:
            line.discard(woken)
            if not line and self._waiting.get(queue) is line:
                del self._waiting[queue]


def _looked_at(asked: MessageFilter) -> int:
    """Messages that a filter is asked about before others get a turn."""
    return _ENTRIES * _A_READ // (_A_READ + asked.work) + 1


class PullTurns:
    """Pulls that search go on one at a time, addresses in turn; calls of others are served in between."""

    def __init__(self) -> None:
        self._line: FairQueue[asyncio.Future[None]] = FairQueue()
        self._running = False

    async def next(self, host: str) -> None:
        """Waits for the turn of a pull from that address."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(host, turn)
        if not self._running:
            self._running = True
            loop.call_soon(self._run)
        await turn

    def _run(self) -> None:
        while self._line:
            turn = self._line.pop()
            if not turn.done():  # else its client went away
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._run)
                return
        self._running = False


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
