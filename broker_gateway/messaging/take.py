"""Takes messages for receives: due ones first, then new ones, from any readable queue of the topic on this broker, as
the original's pop does, after the retry topics that a real broker left for the group.

Of each queue: plan, read, have the journal note it, commit (`delivery/queue_delivery.py`). A queue that fails has
changed nothing, and others are served. A search ends after so much work, wherever it is; the next one goes on.

| | |
|---|---|
| the search of a poll, its bounds | `poll_search.py` |
| which queues it goes through | `searched_queues.py` |
| new messages | `new_messages.py`; those that only the lake has: `new_in_lake.py` |
"""

from __future__ import annotations

import time

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.handles import new_delivery_id
from broker_gateway.delivery.in_flight import Plan, Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.new_messages import NewMessages
from broker_gateway.messaging.old_messages import InLakeError
from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.poll_search import A_SKIP, PollSearch
from broker_gateway.messaging.redelivery import Redelivery
from broker_gateway.messaging.searched_queues import SearchedQueues
from broker_gateway.messaging.stored_message import MessageReader, StoredMessage
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import StoreDamagedError, StoreReadOnlyError
from store.log.record import tags_code

log = structlog.get_logger(__name__)


class Taker:
    """Fills polls."""

    def __init__(
        self, core: Core, queues: SearchedQueues, redelivery: Redelivery, messages: MessageReader
    ) -> None:
        self._core = core
        self._journal = core.journal
        self._store = core.store
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._metrics = core.metrics
        self.queues = queues
        self._redelivery = redelivery
        self._messages = messages
        self._old = messages.old
        self._new = NewMessages(core.store, messages)
        self._max_in_flight = 0
        """Of a group on a queue."""
        self._failing: set[QueueKey] = set()

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        most = config.lake.lake_max_in_flight_per_queue
        if config.broker.enable_pop_message_threshold:
            most = min(most, config.broker.pop_inflight_message_threshold)
        self._max_in_flight = most
        self.queues.configure(config)

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

    def _search(self, poll: Poll) -> None:
        now = now_ms()
        due = self._deliveries.next_due_ms()
        if due is not None and due <= now:
            self._redelivery.sweep_due()
        self.queues.refresh(poll)
        if not poll.left:
            poll.failed = None
            poll.left = self.queues.begin(poll)
            poll.journal_mark = self._journal.mark()
            poll.delivery_id = new_delivery_id()
        search = PollSearch(poll, now)
        while poll.left and search.work > 0 and not poll.full:
            key = _key(poll, poll.left[-1])
            done = True
            try:
                if (
                    poll.lite_line is None or key.topic in poll.lite_line.ready
                ):  # else it went since the search began
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
                if not poll.left and not poll.messages:
                    poll.left = self.queues.go_on(poll)

    def _take_from(self, search: PollSearch, key: QueueKey) -> bool:
        """Takes what the rest of the batch holds from one queue; False when there may be more in it for this search."""
        poll, now, index = search.poll, search.now, self._store.index
        state = self._deliveries.queue(key)
        floor, ordered = index.min_offset(key.topic, key.queue_id), search.ordered
        search.begin(key, state, floor)
        if self._old is not None and state.position < floor:
            floor = index.begin(key.topic, key.queue_id)
        if ordered:
            try:
                if not self._look_up_groups(search, state):
                    return False
            except InLakeError:
                return True
        plan = state.plan(
            poll.batch_size - len(poll.messages), self._max_in_flight, floor, poll.filter, ordered
        )
        if plan.again:
            self._read_again(search, plan)
        lost = bool(plan.skipped)
        done = self._new.read(search, plan)
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
            if self._old is not None and state.lake_only:
                return done
            self._deliveries.arrivals.nothing_left(key)
        return done

    def _look_up_groups(self, search: PollSearch, state: QueueDelivery) -> bool:
        """Finds the message groups of what is in flight, which a restart and a group that becomes ordered leave open; False
        when the search ends before."""
        _, topic, queue_id = search.key
        for message in state.without_group:
            if search.work <= 0:
                return False
            search.work -= A_SKIP
            stored = self._messages.at(topic, queue_id, message.queue_offset, search.key)
            # one that cannot be read holds nothing back
            message.message_group = (
                stored.message_group if stored is not None else f"\0{message.queue_offset}"
            )
        return True

    def _read_again(self, search: PollSearch, plan: Plan) -> None:
        """Reads what may be delivered again."""
        turn = plan.turn
        for message in plan.again:
            if search.body_bytes >= search.most_bytes:
                return
            if turn is not None and not turn.goes_on(message):
                continue
            offset = message.queue_offset
            try:
                stored, code = self._at(search.key, offset)
            except InLakeError:
                if turn is not None and message.message_group is not None:
                    turn.close(message.message_group)
                continue
            if stored is None:
                search.work -= A_SKIP
                plan.skipped.append(message)
            elif message.status != Status.RETURNED or search.wants(stored):
                made = search.deliver(stored, offset, message.attempt + 1, code)
                plan.redeliver(message, made)
            elif turn is not None:
                turn.close(stored.message_group)
                continue
            if turn is not None:
                turn.gone(message)

    def _at(self, key: QueueKey, offset: int) -> tuple[StoredMessage | None, int]:
        """A message in flight, if it can be read, and its tags code, which it does not have after a restart. Raises InLakeError."""
        _, topic, queue_id = key
        if self._old is not None and self._old.end(topic, queue_id, offset) > offset:
            stored = self._messages.at(topic, queue_id, offset, key)
            return stored, tags_code(stored.properties.get("TAGS")) if stored is not None else 0
        physical, sizes, codes = self._store.index.entries(topic, queue_id, offset, 1)
        if not len(physical):
            return None, 0
        return self._messages.read(int(physical[0]), int(sizes[0])), int(codes[0])

    def _note(self, poll: Poll, state: QueueDelivery, plan: Plan, now: int) -> None:
        """Has the journal note what the plan does, in one record. Raises StoreError, OSError."""
        changes = self._changes
        expired = (
            [each for each in plan.replaced if not each.nacked and each.delivery_id] if plan.replaced else []
        )
        try:  # noqa: SIM105 - a context manager would cost as much as all of this
            changes.make_room(len(expired) + len(plan.skipped) + len(plan.held) + len(plan.delivered) + 1)
        except StoreReadOnlyError:  # what is there can still be had: a start delivers it again
            pass
        if expired:
            changes.events(state, events.EXPIRED, expired, timestamp_ms=now)
        if plan.skipped:
            changes.events(state, events.SKIPPED, plan.skipped, client_id=poll.client_id, timestamp_ms=now)
        if plan.held:
            changes.events(state, events.HELD, plan.held, timestamp_ms=now)
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
        elif not plan.skipped and not plan.held:
            changes.offsets_changed(state)


def _key(poll: Poll, queue: int | str | QueueKey) -> QueueKey:
    if isinstance(queue, int):
        return QueueKey(poll.group.name, poll.topic.name, queue)
    return queue if isinstance(queue, QueueKey) else QueueKey(poll.group.name, queue, 0)
