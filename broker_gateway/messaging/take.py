"""Takes messages for receives: due ones first, then new ones, from any readable queue of the topic on this broker, as
the original's pop does, after the retry topics that a real broker left for the group.

Of each queue: plan, read, have the journal note it, commit (`delivery/queue_delivery.py`). A queue that fails has
changed nothing, and others are served. A search ends after so much work (`search.py`), wherever it is; the next one goes on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.handles import new_delivery_id
from broker_gateway.delivery.in_flight import InFlight, Plan, Status
from broker_gateway.delivery.policy import policy_of
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import RetryQueues
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.poll import Poll, check_may_receive
from broker_gateway.messaging.redelivery import Redelivery
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.search import Search
from broker_gateway.messaging.stored_message import MessageReader
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import (
    OffsetOutOfRangeError,
    StoreDamagedError,
    StoreReadOnlyError,
)

log = structlog.get_logger(__name__)
Array = NDArray[Any]

_SCAN_ENTRIES = 4096
"""Of a queue that are looked at together."""
_SKIPS_A_PLAN = 512
"""Their events fit one record of the journal with those of the messages."""


class Taker:
    """Fills polls."""

    def __init__(
        self, core: Core, resources: Resources, redelivery: Redelivery, messages: MessageReader
    ) -> None:
        self._core = core
        self._journal = core.journal
        self._store = core.store
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._metrics = core.metrics
        self._resources = resources
        self._redelivery = redelivery
        self._messages = messages
        self._max_in_flight = 0
        """Of a group on a queue."""
        self._tick = itertools.count()
        self._retry_queues: RetryQueues | None = None
        self._failing: set[QueueKey] = set()

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        most = config.lake.lake_max_in_flight_per_queue
        if config.broker.enable_pop_message_threshold:
            most = min(most, config.broker.pop_inflight_message_threshold)
        self._max_in_flight = most

    def take(self, poll: Poll) -> bool:
        """A search for up to a batch of messages; whether there are any. Without, `poll.left` says whether it goes on.

        Raises what a queue failed with when no queue had anything, ServiceError when the group may not begin on so many.
        """
        began = time.perf_counter()
        try:
            self._search(poll)
        finally:
            self._metrics.searched(time.perf_counter() - began)
        if poll.messages:
            poll.left.clear()
            return True
        if not poll.left and poll.failed is not None:
            raise poll.failed
        return False

    def missed(self, poll: Poll) -> bool:
        """Whether something was offered since the search began that ended with nothing."""
        return poll.seen != self._arrivals(poll, self._retries(poll))

    def _arrivals(self, poll: Poll, retries: Sequence[QueueKey]) -> int:
        arrivals, topic = self._deliveries.arrivals.last, poll.topic.name
        return (
            arrivals(topic) + sum(map(arrivals, {key.topic for key in retries}))
            if retries
            else arrivals(topic)
        )

    def _retries(self, poll: Poll) -> Sequence[QueueKey]:
        if self._retry_queues is None:  # the journal is replayed by now
            self._retry_queues = RetryQueues(self._store.index.queues())
        return self._retry_queues.of(poll.group.name, poll.topic.name)

    def _search(self, poll: Poll) -> None:
        now = now_ms()
        due = self._deliveries.next_due_ms()
        if due is not None and due <= now:
            self._redelivery.sweep_due()
        if not poll.left:
            poll.failed = None
            self._refresh(poll)
            poll.left = self._queues(poll)
            poll.journal_mark = self._journal.mark()
            poll.delivery_id = new_delivery_id()
        search = Search(poll, now)
        while poll.left and search.work > 0 and not poll.full:
            each = poll.left[-1]
            key = each if isinstance(each, QueueKey) else QueueKey(poll.group.name, poll.topic.name, each)
            done = True
            try:
                done = self._take_from(search, key)
                self._failing.discard(key)
            except Exception as error:
                if key not in self._failing and not isinstance(
                    error, StoreDamagedError
                ):  # logged by the store already
                    self._failing.add(key)
                    log.error("a queue cannot be received from", **key._asdict(), exc_info=error)
                poll.failed = poll.failed or error
            if done:
                poll.left.pop()

    def _refresh(self, poll: Poll) -> None:
        """Topic and group may have changed, or gone, while the poll waited. TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND,
        FORBIDDEN."""
        catalog = self._resources.catalog
        topic, group = catalog.topic(poll.topic.name), catalog.group(poll.group.name)
        if topic is None:
            raise ServiceError(Reason.TOPIC_NOT_FOUND, f"topic {shown(poll.topic.name)} was deleted")
        if group is None:
            raise ServiceError(
                Reason.CONSUMER_GROUP_NOT_FOUND, f"consumer group {shown(poll.group.name)} was deleted"
            )
        if topic is not poll.topic or group is not poll.group:
            check_may_receive(topic, group)
            poll.topic, poll.group = topic, group

    def _queues(self, poll: Poll) -> list[int | QueueKey]:
        """Where there may be something, what comes first last; it begins with another queue each time."""
        queues = poll.topic.read_queues
        if poll.group.first_used_by:
            more = queues - self._deliveries.queues_of(poll.group.name, poll.topic.name)
            if more > 0:
                self._resources.check_queues(poll.group, more)
        offered = self._deliveries.arrivals.queues_to_search(poll.group.name, poll.topic.name, queues)
        found: list[int | QueueKey] = [queue_id for queue_id in offered if queue_id < queues]
        if len(found) > 1:
            first = next(self._tick) % len(found)
            found = found[first:] + found[:first]
        retries = self._retries(poll)
        if retries:
            found += [key for key in retries if key.queue_id in self._offered(key)]
        poll.seen = self._arrivals(poll, retries)
        return found

    def _offered(self, key: QueueKey) -> set[int]:
        """The ids of the queues of a retry topic where the group may find something."""
        assert self._retry_queues is not None
        return self._deliveries.arrivals.queues_to_search(
            key.group, key.topic, self._retry_queues.count(key.topic)
        )

    def _take_from(self, search: Search, key: QueueKey) -> bool:
        """Takes what the rest of the batch holds from one queue; False when there may be more in it for this search."""
        poll, now, index = search.poll, search.now, self._store.index
        state = self._deliveries.queue(key)
        floor = index.min_offset(key.topic, key.queue_id)
        plan = state.plan(
            poll.batch_size - len(poll.messages),
            self._max_in_flight,
            floor,
            poll.filter,
            policy_of(poll.group),
        )
        search.begin(key)
        if plan.again:
            self._read_again(search, plan)
        lost = bool(plan.skipped)
        done = self._read_new(search, plan)
        if plan.delivered or plan.skipped or plan.advanced or state.journaled_committed < 0:
            self._note(poll, state, plan, now)
            state.commit(plan)
            if plan.delivered:
                poll.messages += search.messages
                poll.body_bytes += search.body_bytes
                poll.taken += [(state, message) for message in plan.delivered]
        if lost:  # there is room for others, and others may be due
            self._core.made_room(state)
            return False
        if done and state.position >= index.max_offset(key.topic, key.queue_id) and state.quiet(now):
            self._deliveries.arrivals.nothing_left(key)
        return done

    def _read_again(self, search: Search, plan: Plan) -> None:
        """Reads what may be delivered again."""
        _, topic, queue_id = search.key
        for message in plan.again:
            if search.body_bytes >= search.most_bytes:
                return
            offset = message.queue_offset
            physical, sizes, codes = self._store.index.entries(topic, queue_id, offset, 1)
            stored = self._messages.read(int(physical[0]), int(sizes[0])) if len(physical) else None
            if stored is None:
                search.skipped()
                plan.skipped.append(message)
            elif message.status == Status.READY or search.poll.filter.wants(stored.properties):
                code = int(codes[0])  # the message has none after a restart
                made = search.deliver(stored, offset, message.attempt + 1, code)
                plan.redeliver(message, made)

    def _read_new(self, search: Search, plan: Plan) -> bool:
        """Reads new messages; False when the search ends before the queue does."""
        _, topic, queue_id = search.key
        wanted = EVERYTHING if search.retry else search.poll.filter
        room = search.room(plan)
        usual = not search.retry and (wanted.everything or wanted.by_tag is not None)
        while room > 0:
            if search.work <= 0:
                return False
            start = plan.cursor
            count = room if wanted.everything else _SCAN_ENTRIES
            places, sizes, codes = self._store.index.entries(topic, queue_id, start, count)
            found = len(places)
            search.work -= found
            offsets = np.arange(start, start + found)
            if not wanted.everything:
                some = np.flatnonzero(wanted.mask(codes) | (sizes == 0))
                offsets, places, sizes, codes = offsets[some], places[some], sizes[some], codes[some]
            at = 0
            while at < len(offsets):
                if search.work <= 0:
                    return False
                part, before = slice(at, at + room), len(plan.delivered)
                read = 0
                if usual:
                    read = self._read_usual(
                        search, plan, offsets[part], places[part], sizes[part], codes[part]
                    )
                if not read:
                    usual, read = False, 1
                    self._read_one(search, plan, *(int(each[at]) for each in (offsets, places, sizes, codes)))
                at += read
                delivered = len(plan.delivered) - before
                room -= delivered
                if room == 0 or search.body_bytes >= search.most_bytes:
                    return True
                if not usual and not delivered and len(plan.skipped) >= _SKIPS_A_PLAN:
                    return False
            plan.cursor = start + found
            if found < count:
                return True
        return True

    def _read_usual(
        self, search: Search, plan: Plan, offsets: Array, places: Array, sizes: Array, codes: Array
    ) -> int:
        """Reads new messages that the shortcut takes, up to one that it does not; how many were read.

        One that the filter passes over counts too. All arrays are of one length, of entries of the queue.
        """
        write = search.poll.writer.usual
        if write is None or not len(places):
            return 0
        poll, first = search.poll, int(places[0])
        try:
            data = self._store.read(first, int(places[-1] + sizes[-1]) - first)
        except OffsetOutOfRangeError:  # not all in one segment
            return 0
        room = search.most_bytes - search.body_bytes
        handle = search.handle_queue, poll.delivery_id
        made = write(
            data,
            places - first,
            sizes,
            offsets,
            room,
            poll.topic.name,
            handle,
            poll.invisible_ms,
            None if poll.filter.everything else poll.filter.by_tag,
        )
        delivered = plan.delivered
        for each, offset, code, size in zip(
            made, offsets.tolist(), codes.tolist(), sizes.tolist(), strict=False
        ):
            if each is None:
                search.passed_over(size)
            else:
                delivered.append(search.add(each.written, each.body_length, each.message_id, offset, 1, code))
        if made:
            plan.cursor = int(offsets[len(made) - 1]) + 1
        return len(made)

    def _read_one(self, search: Search, plan: Plan, offset: int, physical: int, size: int, code: int) -> None:
        """Reads a new message, which is delivered, skipped, or passed over by the filter."""
        plan.cursor = offset + 1
        poll, attempt = search.poll, 1
        stored = self._messages.read(physical, size)
        if stored is None:
            search.skipped()
            plan.skipped.append(InFlight(offset, 1, search.now, poll.delivery_id, "", poll.client_id))
            return
        if search.retry:  # that a real broker made
            attempt += self._store.record(physical, size).reconsume_times
        if attempt == 1 and not poll.filter.wants(stored.properties):
            search.passed_over(size)
            return
        plan.delivered.append(search.deliver(stored, offset, attempt, code))

    def _note(self, poll: Poll, state: QueueDelivery, plan: Plan, now: int) -> None:
        """Has the journal note what the plan does, in one record. Raises StoreError, OSError."""
        changes = self._changes
        expired = [each for each in plan.replaced if not each.nacked] if plan.replaced else []
        try:  # noqa: SIM105 - a context manager would cost as much as all of this
            changes.make_room(len(expired) + len(plan.skipped) + len(plan.delivered) + 1)
        except StoreReadOnlyError:  # what is there can still be had: a start delivers it again
            pass
        if expired:
            changes.events(state, events.EXPIRED, expired, timestamp_ms=now)
        if plan.skipped:
            changes.events(state, events.SKIPPED, plan.skipped, client_id=poll.client_id, timestamp_ms=now)
        if plan.delivered:
            changes.events(
                state,
                events.DELIVERED,
                plan.delivered,
                client_id=poll.client_id,
                delivery_id=poll.delivery_id,
                invisible_until_ms=now + poll.invisible_ms,
                timestamp_ms=now,
            )
        elif not plan.skipped:
            changes.offsets_changed(state)
