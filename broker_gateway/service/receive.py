"""ReceiveMessage: due messages first, then new ones, with long polling.

A receive takes from any readable queue of the topic on this broker, as the original's pop does, after the
retry topics that a real broker left for the group. What it takes is in flight and journaled before the reply goes out.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial

import structlog

from broker_gateway.clock import now_ms
from broker_gateway.config import GatewayConfig
from broker_gateway.delivery.handles import encode_handle
from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import RetryQueues, handle_queue
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.tag_filter import EVERYTHING, FilterExpressionError, TagFilter, parse_tag_filter
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.metadata.catalog import READ, Group, Topic
from broker_gateway.metrics import Metrics
from broker_gateway.service import shortcuts
from broker_gateway.service.admission import Lane
from broker_gateway.service.context import CallContext
from broker_gateway.service.redelivery import RENEWED_MS, Redelivery
from broker_gateway.service.reply import Reply
from broker_gateway.service.resources import Resources
from broker_gateway.service.shortcuts import StoredMessage
from broker_gateway.service.status import ServiceError, status_of
from broker_gateway.service.validation import check_invisible_ms, client_id_of, duration_ms, shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import RecordError, StoreError, StoreReadOnlyError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
Response = rpc.ReceiveMessageResponse | bytes

MAX_BATCH = 32
REPLY_BYTES = 16 << 20
"""A receive stops taking messages once their bodies pass this."""
_SCAN_ENTRIES = 4096
_SCANS_A_LOOK = 16
_SLACK_S = 0.2
"""Part of a call's deadline left for the reply to travel."""
_REQUEST_TIMEOUT_MS = 3000
_ATTEMPTS_KEPT = 20_000
_NOTHING = rpc.ReceiveMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
).SerializeToString()


@dataclass(slots=True, eq=False)
class Poll:
    """One ReceiveMessage call, and what it took (`messages` are responses' bytes); `more` when the last look ended before the queue did."""

    group: Group
    topic: Topic
    tags: TagFilter
    batch_size: int
    invisible_ms: int
    auto_renew: bool
    client_id: str
    attempt_id: str
    more: bool = False
    delivery_id: int = 0
    wait_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    body_bytes: int = 0
    reply: Reply[list[Response]] = field(default_factory=Reply)
    messages: list[bytes] = field(default_factory=list)
    taken: list[tuple[QueueDelivery, InFlight]] = field(default_factory=list)


def max_in_flight(config: GatewayConfig) -> int:
    """How many messages of a queue a group may have in flight."""
    most = config.lake.lake_max_in_flight_per_queue
    broker = config.broker
    return min(most, broker.pop_inflight_message_threshold) if broker.enable_pop_message_threshold else most


class ReceiveService:
    """Hands messages to consumers."""

    def __init__(
        self,
        config: GatewayConfig,
        store: MessageStore,
        resources: Resources,
        deliveries: DeliveryTable,
        redelivery: Redelivery,
        journal: Journal,
        wakeups: Wakeups[Poll],
        metrics: Metrics,
        minutes: MinuteStatistics,
        lane: Lane,
    ) -> None:
        self._store = store
        self._resources = resources
        self._deliveries = deliveries
        self._redelivery = redelivery
        self._journal = journal
        self._wakeups = wakeups
        self._metrics = metrics
        self._minutes = minutes
        self._proxy = config.proxy
        self._max_waiting = config.lake.lake_max_waiting_receives
        self._turn = itertools.count()
        self._retry_queues: RetryQueues | None = None
        self._attempts: OrderedDict[
            tuple[str, str, str], tuple[str, list[tuple[QueueDelivery, InFlight]]]
        ] = OrderedDict()
        self._closing = False
        wakeups.serve = self._serve
        self._lane = lane
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        broker = config.broker
        self._permission = broker.broker_permission
        self._longest_wait_s = (
            math.inf if broker.long_polling_enable else broker.short_polling_time_mills / 1000
        )
        self._max_in_flight = max_in_flight(config)
        for state in self._deliveries.queues():
            if state.freed():  # there may be room now for who was turned away
                self._wakeups.due(state.key.topic, state.key.group)

    def receive(
        self, request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> Reply[list[Response]]:
        """Status, messages, delivery timestamp; raises ServiceError when the call cannot be served."""
        self._lane.check()
        poll = self._poll(request, context)
        poll.wait_s = min(self._polling_s(request, context, request_timeout_ms), self._longest_wait_s)
        poll.reply = Reply(partial(self._left, poll), self._lane)
        try:
            if self._repeat(poll):
                self._journal.after(partial(self._finish, poll))
            else:
                self._look(poll)
        except Exception:
            poll.reply.abandon()
            self._give_back(poll)
            raise
        return poll.reply

    def _look(self, poll: Poll) -> None:
        """Takes what is there; goes on looking, or waits."""
        if poll.reply.done:
            return
        if self._take(poll):
            self._journal.after(partial(self._finish, poll))
        elif poll.more:  # others get their turn while a long stretch is looked through
            asyncio.get_running_loop().call_soon(self._look_again, poll)
        else:
            self._wait(poll)

    def _look_again(self, poll: Poll) -> None:
        try:
            self._look(poll)
        except Exception as error:
            self._finish(poll, error)

    def _finish(self, poll: Poll, error: Exception | None = None) -> None:
        """Gives the reply; when what should go into it fails, one that says so."""
        try:
            self._give(poll, error)
        except Exception as failed:
            log.error("call failed", call="ReceiveMessage", exc_info=failed)
            try:
                self._give_back(poll)
            finally:
                poll.reply.set([rpc.ReceiveMessageResponse(status=status_of(failed))])

    def _give(self, poll: Poll, error: Exception | None) -> None:
        """Gives the reply, after what it holds is in the journal.

        A store that turned read-only takes no journal, and what is in it can still be had: a start delivers it again.
        """
        if poll.timer is not None:
            poll.timer.cancel()
        if error is not None and not isinstance(error, StoreReadOnlyError):
            self._give_back(poll)
            if not isinstance(error, ServiceError):
                log.error("call failed", call="ReceiveMessage", exc_info=error)
            poll.reply.set([rpc.ReceiveMessageResponse(status=status_of(error))])
            return
        if poll.reply.done:
            return  # the caller went away, and what it took was given back
        if not poll.messages:
            self._metrics.received_nothing()
            poll.reply.set([_NOTHING, shortcuts.delivered_at(now_ms())])
            return
        self._remember(poll)
        self._metrics.received(poll.topic.name, poll.group.name, len(poll.messages), poll.body_bytes)
        self._minutes.count(poll.topic.name, poll.group.name, len(poll.messages), poll.body_bytes, None)
        poll.reply.set([shortcuts.RECEIVE_OK, *poll.messages, shortcuts.delivered_at(now_ms())])

    def _left(self, poll: Poll) -> None:
        """The caller went away before it had its reply."""
        if poll.timer is not None:
            poll.timer.cancel()
        self._wakeups.leave(poll.topic.name, poll.group.name, poll)
        self._give_back(poll)

    def close(self) -> None:
        """Ends every waiting call with nothing; later ones do not wait."""
        self._closing = True
        for poll in self._wakeups.all():
            self._expired(poll)

    def _poll(self, request: rpc.ReceiveMessageRequest, context: CallContext) -> Poll:
        client_id = client_id_of(context)
        if not self._permission & READ:
            raise ServiceError(
                pb.FORBIDDEN,
                f"the broker gives no messages now (brokerPermission={self._permission}); receive from another",
            )
        topic = self._resources.topic(request.message_queue.topic)
        group = self._resources.group(request.group)
        if not topic.readable or not topic.read_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} must not be read")
        if not group.consume_enabled:
            raise ServiceError(pb.FORBIDDEN, f"consumer group {shown(group.name)} must not consume")
        if request.batch_size <= 0:
            raise ServiceError(
                pb.BAD_REQUEST, f"batch size {request.batch_size} is not positive; ask for 1 to {MAX_BATCH}"
            )
        if request.auto_renew:
            invisible_ms = RENEWED_MS
        else:
            invisible_ms = check_invisible_ms(
                duration_ms(request.invisible_duration, "the invisible duration", pb.ILLEGAL_INVISIBLE_TIME),
                self._proxy.min_invisible_time_mills_for_recv,
                self._proxy.max_invisible_time_mills,
            )
        return Poll(
            group,
            topic,
            _filter(request.filter_expression),
            min(request.batch_size, MAX_BATCH),
            invisible_ms,
            request.auto_renew,
            client_id,
            request.attempt_id[:128],
        )

    def _polling_s(
        self, request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> float:
        """How long to wait for a message, s: within the proxy's limits and the call's deadline."""
        shortest = self._proxy.grpc_client_consumer_min_long_polling_timeout_millis / 1000
        longest = self._proxy.grpc_client_consumer_max_long_polling_timeout_millis / 1000
        remaining = context.remaining_s
        if request.HasField("long_polling_timeout"):
            asked = (
                duration_ms(request.long_polling_timeout, "the polling timeout", pb.ILLEGAL_POLLING_TIME)
                / 1000
            )
            if asked < 0:
                raise ServiceError(pb.ILLEGAL_POLLING_TIME, f"the polling timeout of {asked:g} s is negative")
        elif remaining is not None:
            asked = remaining - (request_timeout_ms or _REQUEST_TIMEOUT_MS) / 2000
        else:
            asked = longest
        wait_s = min(max(asked, shortest), longest)
        if remaining is None or wait_s <= remaining - _SLACK_S:
            return wait_s
        if remaining < shortest - _SLACK_S:
            raise ServiceError(
                pb.ILLEGAL_POLLING_TIME,
                f"the deadline leaves {remaining:.1f} s, long polling needs at least {shortest:g} s",
            )
        return remaining - _SLACK_S

    def _wait(self, poll: Poll) -> None:
        if self._closing or poll.wait_s <= 0:
            self._journal.after(partial(self._finish, poll))
            return
        if self._wakeups.waiting >= self._max_waiting:
            raise ServiceError(
                pb.TOO_MANY_REQUESTS,
                f"{self._max_waiting} receives wait already (lakeMaxWaitingReceives); try again later",
            )
        if poll.timer is None:
            poll.timer = asyncio.get_running_loop().call_later(poll.wait_s, self._expired, poll)
        self._wakeups.enter(poll.topic.name, poll.group.name, poll)

    def _expired(self, poll: Poll) -> None:
        """Nothing came while it waited."""
        self._wakeups.leave(poll.topic.name, poll.group.name, poll)
        self._journal.after(partial(self._finish, poll))

    def _serve(self, poll: Poll) -> bool:
        if poll.reply.done:
            return True
        try:
            if not self._take(poll):
                return False
        except Exception as error:
            self._finish(poll, error)
            return True
        self._journal.after(partial(self._finish, poll))
        return True

    def _take(self, poll: Poll) -> bool:
        """Takes up to a batch of messages from the topic's queues, beginning with another one each time."""
        began = time.perf_counter()
        try:
            return self._take_all(poll)
        finally:
            self._metrics.looked(time.perf_counter() - began)

    def _take_all(self, poll: Poll) -> bool:
        now = now_ms()
        size = 0
        poll.more = False
        due = self._deliveries.next_due_ms()
        if due is not None and due <= now:
            self._redelivery.sweep_due()
        group, topic, queues = poll.group.name, poll.topic.name, poll.topic.read_queues
        if self._retry_queues is None:  # the journal is replayed by now
            self._retry_queues = RetryQueues(self._store.index.queues())
        for key in self._retry_queues.of(group, topic):
            offered = self._deliveries.offered(group, key.topic, self._retry_queues.count(key.topic))
            if key.queue_id in offered and not self._full(poll, size):
                size = self._take_from(poll, key, EVERYTHING, offered, now, size)
        offered = self._deliveries.offered(group, topic, queues)
        order = [queue_id for queue_id in offered if queue_id < queues] if offered else ()
        first = next(self._turn) if order else 0
        for step in range(len(order)):
            if self._full(poll, size):
                break
            key = QueueKey(group, topic, order[(first + step) % len(order)])
            size = self._take_from(poll, key, poll.tags, offered, now, size)
        return bool(poll.taken)

    @staticmethod
    def _full(poll: Poll, size: int) -> bool:
        return len(poll.taken) >= poll.batch_size or size >= REPLY_BYTES

    def _take_from(
        self, poll: Poll, key: QueueKey, tags: TagFilter, offered: set[int], now: int, size: int
    ) -> int:
        """Takes what the rest of the batch holds from one queue; returns the reply's size so far."""
        known = self._deliveries.known(key)
        state = known or self._deliveries.queue(key)
        cursor = -1 if known is None else state.cursor
        delivery_id = poll.delivery_id = poll.delivery_id or int.from_bytes(os.urandom(8), "big")
        self._redelivery.sweep(state, now)
        count = len(poll.taken)
        size = self._take_ready(poll, state, now, delivery_id, size)
        size = self._take_new(poll, tags, state, now, delivery_id, size)
        delivered = [message for _, message in poll.taken[count:]]
        if delivered:
            self._journal.events(
                state,
                events.DELIVERED,
                delivered,
                client_id=poll.client_id,
                delivery_id=delivery_id,
                invisible_until_ms=now + poll.invisible_ms,
                timestamp_ms=now,
            )
            self._deliveries.schedule(state)
        elif state.cursor != cursor:
            self._journal.moved(state)
        if state.cursor >= self._store.index.max_offset(key.topic, key.queue_id) and state.quiet(now):
            offered.discard(key.queue_id)
        return size

    def _take_ready(self, poll: Poll, state: QueueDelivery, now: int, delivery_id: int, size: int) -> int:
        expired: list[InFlight] = []
        while len(poll.taken) < poll.batch_size and size < REPLY_BYTES:
            message = state.pop_ready(now)
            if message is None:
                break
            if not message.given_back:
                expired.append(message)
            offsets, sizes, _ = self._store.index.entries(
                state.key.topic, state.key.queue_id, message.queue_offset, 1
            )
            if not len(offsets) or not sizes[0]:
                self._skip(state, message)
                continue
            size += self._deliver(
                poll,
                state,
                int(offsets[0]),
                int(sizes[0]),
                message.queue_offset,
                message.attempt + 1,
                now,
                delivery_id,
            )
        if expired:
            self._journal.events(state, events.EXPIRED, expired, timestamp_ms=now)
        return size

    def _take_new(
        self, poll: Poll, tags: TagFilter, state: QueueDelivery, now: int, delivery_id: int, size: int
    ) -> int:
        _, topic, queue_id = state.key
        index = self._store.index
        state.cursor = max(state.cursor, index.min_offset(topic, queue_id))
        for _ in range(_SCANS_A_LOOK):
            room = min(poll.batch_size - len(poll.taken), state.room(self._max_in_flight))
            if room <= 0 or size >= REPLY_BYTES:
                return size
            start = state.cursor
            offsets, sizes, codes = index.entries(
                topic, queue_id, start, room if tags.everything else _SCAN_ENTRIES
            )
            if not len(offsets):
                return size
            for position in tags.positions(codes).tolist():
                if len(poll.taken) >= poll.batch_size or size >= REPLY_BYTES or room <= 0:
                    return size
                state.cursor = start + position
                if sizes[position]:
                    took = self._deliver(
                        poll,
                        state,
                        int(offsets[position]),
                        int(sizes[position]),
                        start + position,
                        1,
                        now,
                        delivery_id,
                    )
                    size += took
                    room -= took > 0
                state.cursor = start + position + 1
            state.cursor = start + len(offsets)
        poll.more = True
        self._wakeups.due(poll.topic.name, state.key.group)  # if it waits already: in the next turn
        return size

    def _deliver(
        self,
        poll: Poll,
        state: QueueDelivery,
        physical_offset: int,
        size: int,
        queue_offset: int,
        attempt: int,
        now: int,
        delivery_id: int,
    ) -> int:
        """Puts one message in flight and in the reply; returns its size, 0 when it was not for this poll."""
        try:
            stored = StoredMessage(self._store.read(physical_offset, size))
        except (StoreError, RecordError):
            self._skip(state, InFlight(queue_offset, attempt, now, delivery_id, "", poll.client_id))
            return 0
        topic = poll.topic.name
        if attempt == 1 and state.key.topic != topic:  # a retry that a real broker made
            attempt += self._store.record(physical_offset, size).reconsume_times
        if attempt == 1 and not poll.tags.matches(stored.properties.get("TAGS")):
            return 0
        message_id = stored.message_id
        flying = InFlight(
            queue_offset,
            attempt,
            now + poll.invisible_ms,
            delivery_id,
            message_id,
            poll.client_id,
            poll.auto_renew,
            False,
            now,
        )
        state.deliver(flying)
        poll.taken.append((state, flying))
        handle = encode_handle(handle_queue(state.key), queue_offset, delivery_id)
        poll.messages.append(stored.received(topic, handle, attempt, poll.invisible_ms))
        poll.body_bytes += stored.body_length
        return max(size, 1)

    def _skip(self, state: QueueDelivery, message: InFlight) -> None:
        """Passes over a message that cannot be read, with an event."""
        state.in_flight.pop(message.queue_offset, None)
        self._journal.events(state, events.SKIPPED, [message], client_id=message.client_id)

    def _repeat(self, poll: Poll) -> bool:
        """Answers a repeated attempt with what it took the first time and still holds."""
        if not poll.attempt_id:
            return False
        known = self._attempts.get((poll.client_id, poll.group.name, poll.topic.name))
        if known is None or known[0] != poll.attempt_id:
            return False
        now = now_ms()
        for state, message in known[1]:
            if state.in_flight.get(message.queue_offset) is not message or message.invisible_until_ms <= now:
                continue
            offsets, sizes, _ = self._store.index.entries(
                state.key.topic, state.key.queue_id, message.queue_offset, 1
            )
            if not len(offsets) or not sizes[0]:
                continue
            stored = StoredMessage(self._store.read(int(offsets[0]), int(sizes[0])))
            poll.taken.append((state, message))
            handle = encode_handle(handle_queue(state.key), message.queue_offset, message.delivery_id)
            left_ms = message.invisible_until_ms - now
            poll.messages.append(stored.received(poll.topic.name, handle, message.attempt, left_ms))
            poll.body_bytes += stored.body_length
        return bool(poll.messages)

    def _remember(self, poll: Poll) -> None:
        if not poll.attempt_id:
            return
        key = (poll.client_id, poll.group.name, poll.topic.name)
        self._attempts[key] = (poll.attempt_id, poll.taken)
        self._attempts.move_to_end(key)
        if len(self._attempts) > _ATTEMPTS_KEPT:
            self._attempts.popitem(last=False)

    def _give_back(self, poll: Poll) -> None:
        """Makes what a call took available again when nobody is there to get it."""
        now = now_ms()
        for state, message in poll.taken:
            if state.in_flight.get(message.queue_offset) is message:
                message.auto_renew = False
                message.given_back = True
                message.attempt -= 1
                state.postpone(message, now)
                self._deliveries.schedule(state)


def _filter(expression: pb.FilterExpression) -> TagFilter:
    if expression.type == pb.SQL:
        raise ServiceError(
            pb.NOT_IMPLEMENTED, "SQL filters are not implemented yet; use a tag filter such as `a || b`"
        )
    if expression.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise ServiceError(pb.ILLEGAL_FILTER_EXPRESSION, f"filter type {expression.type} is unknown; use TAG")
    try:
        return parse_tag_filter(expression.expression)
    except FilterExpressionError as error:
        raise ServiceError(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
