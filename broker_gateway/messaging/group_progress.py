"""How far groups are: what they have before them on each topic, and when the messages of a queue were stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.group_configuration import lite_bind_topic
from store.lite_queues import LiteTopic, lite_topic_of

SLICE = 256
"""Queues looked at before others get a turn."""


class TimeSpan(NamedTuple):
    """Store times of a queue's first and last message and of the last one that a group settled, -1 without one, and how
    long the next one has been there, in ms."""

    queue_id: int
    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class Accumulation(NamedTuple):
    """What a group has before it. `in_flight`: at consumers; `ready`: they could have it, or will once its turn or time
    comes; `in_lake`: only the lake has it. `delay_ms`: how long the oldest that is ready has been there. `settled_ms`: store time of the last that
    was settled, 0 without one."""

    in_flight: int = 0
    ready: int = 0
    in_lake: int = 0
    delay_ms: int = 0
    settled_ms: int = 0

    @property
    def total(self) -> int:
        return self.in_flight + self.ready + self.in_lake

    def with_other(self, other: Accumulation) -> Accumulation:
        """Of both together."""
        return Accumulation(
            self.in_flight + other.in_flight,
            self.ready + other.ready,
            self.in_lake + other.in_lake,
            max(self.delay_ms, other.delay_ms),
            max(self.settled_ms, other.settled_ms),
        )


class Held(NamedTuple):
    """What a client has of a queue: messages in flight at offsets `first` to `last`, the newest handed out at `delivered_ms`."""

    topic: str
    queue_id: int
    committed: int
    first: int
    last: int
    messages: int
    delivered_ms: int


class GroupProgress:
    """Of this broker's queues. Nothing is created here."""

    def __init__(self, core: Core, offsets: Offsets) -> None:
        self._index = core.store.index
        self._deliveries = core.deliveries
        self._offsets = offsets
        self._catalog = core.catalog

    async def accumulations(
        self, group: str, topics: Iterable[Topic], now_ms: int
    ) -> dict[str, Accumulation]:
        """By topic; others are served in between."""
        found: dict[str, Accumulation] = {}
        looked_at = 0
        for topic in topics:
            whole = Accumulation()
            for key in self._keys(group, topic):
                whole = whole.with_other(self._accumulation(key, now_ms))
                looked_at += 1
                if looked_at % SLICE == 0:
                    await asyncio.sleep(0)
            found[topic.name] = whole
        return found

    def of_lite_topic(self, group: str, lite: LiteTopic, now_ms: int) -> Accumulation:
        """Of a lite topic of the topic that the group is bound to."""
        return self._accumulation(QueueKey(group, lite.queue, 0), now_ms)

    def _keys(self, group: str, topic: Topic) -> Sequence[QueueKey]:
        """Where a group gets messages of a topic; of one whose lite topics it is bound to, those lite topics that it was on."""
        known = self._catalog.group(group)
        if known is None or lite_bind_topic(known) != topic.name:
            return [QueueKey(group, topic.name, queue_id) for queue_id in range(topic.read_queues)]
        keys = self._deliveries.keys_of_group(group)
        return [
            key
            for key in keys
            if (lite := lite_topic_of(key.topic)) is not None and lite.parent == topic.name
        ]

    def _accumulation(self, key: QueueKey, now_ms: int) -> Accumulation:
        """A group that was never on a queue has before it what it would begin with."""
        _, topic, queue_id = key
        state = self._deliveries.known(key)
        if state is None:
            first = self._deliveries.first_offset(topic, queue_id)
            ready = self._index.count_from(topic, queue_id, first)
            return Accumulation(
                ready=ready, delay_ms=self._age(topic, queue_id, first, now_ms) if ready else 0
            )
        in_flight, oldest = 0, state.position
        for offset, message in state.in_flight.items():
            if message.status == Status.INVISIBLE:
                in_flight += 1
            else:
                oldest = min(oldest, offset)
        ready = self._index.count_from(topic, queue_id, state.position) + len(state.in_flight) - in_flight
        settled = state.consumer_offset
        return Accumulation(
            in_flight,
            ready,
            state.lake_only.count,
            self._age(topic, queue_id, oldest, now_ms) if ready else 0,
            self._offsets.stored_ms(topic, queue_id, settled - 1) if settled else 0,
        )

    def _age(self, topic: str, queue_id: int, offset: int, now_ms: int) -> int:
        start = max(offset, self._offsets.first(topic, queue_id))
        stored_ms = self._offsets.stored_ms(
            topic, queue_id, self._index.behind_absence(topic, queue_id, start)
        )
        return max(now_ms - stored_ms, 0) if stored_ms else 0

    async def held(self, group: str, client_id: str) -> list[Held]:
        """What one client of a group has; others are served in between."""
        found = []
        for count, key in enumerate(sorted(self._deliveries.keys_of_group(group)), 1):
            state = self._deliveries.known(key)
            offsets, delivered_ms = [], 0
            for offset, message in (state.in_flight if state is not None else {}).items():
                if message.client_id == client_id and message.status == Status.INVISIBLE:
                    offsets.append(offset)
                    delivered_ms = max(delivered_ms, message.delivered_ms)
            if state is not None and offsets:
                first, last = min(offsets), max(offsets)
                found.append(
                    Held(
                        key.topic,
                        key.queue_id,
                        state.consumer_offset,
                        first,
                        last,
                        len(offsets),
                        delivered_ms,
                    )
                )
            if count % SLICE == 0:
                await asyncio.sleep(0)
        return found

    def time_spans(self, topic: Topic, group: str, now_ms: int) -> list[TimeSpan]:
        """Of every write queue; a group that was never there has everything before it."""
        return [self._span(topic.name, queue_id, group, now_ms) for queue_id in range(topic.write_queues)]

    def _span(self, topic: str, queue_id: int, group: str, now_ms: int) -> TimeSpan:
        low, high = self._offsets.bounds(topic, queue_id)
        settled = self._offsets.known(group, topic, queue_id) or 0
        first = self._offsets.earliest_ms(topic, queue_id)
        following = self._time(topic, queue_id, max(settled, low)) if settled < high else 0
        return TimeSpan(
            queue_id,
            first,
            self._time(topic, queue_id, high - 1),
            self._time(topic, queue_id, settled - 1) if settled else first,
            max(now_ms - following, 0) if following > 0 else 0,
        )

    def _time(self, topic: str, queue_id: int, offset: int) -> int:
        return self._offsets.stored_ms(topic, queue_id, offset) or -1
