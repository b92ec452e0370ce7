"""What receives took: given again to a repeated attempt, given back when nobody is there to get it."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from broker_gateway.delivery.handles import encode_handle
from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import handle_queue, subscribed_topic
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.old_messages import InLakeError
from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.stored_message import MessageReader
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import StoreError

_ATTEMPTS_KEPT = 20_000
_ORDERED_AT_ONCE = 16
"""Attempts of one client in an ordered group: it may have several receives under way."""
_Taken = list[tuple[QueueDelivery, InFlight]]


class Attempts:
    """The newest attempt of each client, group and topic; of ordered groups the newest `_ORDERED_AT_ONCE` that hold something."""

    def __init__(self, core: Core, messages: MessageReader) -> None:
        self._changes = core.changes
        self._core = core
        self._messages = messages
        self._deliveries = core.deliveries
        self._attempts: OrderedDict[tuple[str, str, str], dict[str, _Taken]] = OrderedDict()
        """By client, group and topic, then by attempt; who was not here for longest first."""
        self._count = 0
        self._earlier: dict[tuple[str, str, str, str], _Taken] | None = None
        """Of ordered groups, what attempts took before a restart; None until somebody asks."""

    def repeat(self, poll: Poll) -> bool:
        """Answers a repeated attempt with what it took the first time and still holds; nothing of it is given back."""
        if not poll.attempt_id:
            return False
        now = now_ms()
        for state, message in self._taken_by(poll):
            if not state.holds(message) or message.invisible_until_ms <= now:
                continue
            _, topic, queue_id = state.key
            try:
                stored = self._messages.at(topic, queue_id, message.queue_offset)
            except InLakeError:  # a further repetition gets it
                continue
            if stored is not None:
                handle = encode_handle(handle_queue(state.key), message.queue_offset, message.delivery_id)
                left_ms = message.invisible_until_ms - now
                written = poll.writer.message(stored, poll.topic.name, handle, message.attempt, left_ms)
                poll.messages.append(written)
                poll.body_bytes += stored.body_length
        return bool(poll.messages)

    def _taken_by(self, poll: Poll) -> _Taken:
        """What the poll's attempt took, when it is repeated."""
        caller = (poll.client_id, poll.group.name, poll.topic.name)
        known = self._attempts.get(caller)
        if known is not None and (taken := known.get(poll.attempt_id)) is not None:
            return taken
        if not poll.group.fifo and poll.lite is None:
            return []
        if self._earlier is None:
            self._earlier = self._before_restart()
        return self._earlier.get((*caller, poll.attempt_id), [])

    def _before_restart(self) -> dict[tuple[str, str, str, str], _Taken]:
        found: dict[tuple[str, str, str, str], _Taken] = {}
        for state in self._deliveries.queues():
            topic = subscribed_topic(state.key)
            for message in state.in_flight.values():
                if message.attempt_id and message.status == Status.INVISIBLE:
                    attempt = (message.client_id, state.key.group, topic, message.attempt_id)
                    found.setdefault(attempt, []).append((state, message))
        return found

    def remember(self, poll: Poll) -> None:
        """What an attempt took, in case it is repeated."""
        if not poll.attempt_id or not poll.taken:
            return
        key = (poll.client_id, poll.group.name, poll.topic.name)
        known = self._attempts.setdefault(key, {})
        self._attempts.move_to_end(key)
        self._count -= len(known)
        known.pop(poll.attempt_id, None)
        most = 1
        if poll.group.fifo or poll.lite is not None:
            most = _ORDERED_AT_ONCE
            for attempt in [attempt for attempt, taken in known.items() if not _is_held(taken)]:
                del known[attempt]  # it would be repeated with nothing, and keep others out
        while len(known) >= most:
            del known[next(iter(known))]
        known[poll.attempt_id] = poll.taken
        self._count += len(known)
        while self._count > _ATTEMPTS_KEPT:
            self._count -= len(self._attempts.popitem(last=False)[1])

    def release(self, poll: Poll) -> None:
        """Makes what a call took available again, to receives with its filter, when nobody is there to get it."""
        taken, poll.taken = poll.taken, []
        by_state: dict[QueueKey, tuple[QueueDelivery, list[InFlight]]] = {}
        for state, message in taken:
            if state.holds(message):
                by_state.setdefault(state.key, (state, []))[1].append(message)
        for state, messages in by_state.values():
            self._return(state, messages, poll.client_id)
            self._core.came_back(state.key)

    def _return(self, state: QueueDelivery, messages: Sequence[InFlight], client_id: str) -> None:
        """One that a client had seen before is due at once; of others, their filter decides as if they were new."""
        now = now_ms()
        for seen in (False, True):
            some = [each for each in messages if (each.attempt > 1) == seen]
            if some:
                until = now if seen else some[0].invisible_until_ms
                status = Status.INVISIBLE if seen else Status.RETURNED
                changed = [_returned(each, until, status) for each in some]
                # what is not journaled now is said by the next record that can be appended
                with contextlib.suppress(StoreError, OSError):
                    self._changes.events(
                        state,
                        events.NACKED,
                        changed,
                        client_id=client_id,
                        delivery_id=changed[0].delivery_id,
                        invisible_until_ms=until,
                        timestamp_ms=now,
                    )
                for message, other in zip(some, changed, strict=True):
                    state.replace(message, other)


def _is_held(taken: _Taken) -> bool:
    """Whether the client still has some of what an attempt took."""
    return any(state.holds(message) for state, message in taken)


def _returned(message: InFlight, until_ms: int, status: Status) -> InFlight:
    return replace(
        message,
        attempt=message.attempt - 1,
        invisible_until_ms=until_ms,
        auto_renew=False,
        nacked=True,
        attempt_id="",
        status=status,
    )
