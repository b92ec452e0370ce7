"""Moving messages to a group's dead-letter topic: after the last attempt, or when a client says so."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.moves import moved_copy
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import subscribed_topic
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.old_messages import InLakeError
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.stored_message import MessageReader
from broker_gateway.metadata.names import dead_letter_topic
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import (
    OffsetOutOfRangeError,
    RecordError,
    RecordTooLargeError,
    StoreError,
    StoreReadOnlyError,
)
from store.log.copies import Origin
from store.log.record import FURTHER_QUEUES, Record, decode_record, offset_msg_id

log = structlog.get_logger(__name__)
_QUEUE = 0
"""The queue of dead letters."""
RETRY_MOVE_MS, LONGEST_RETRY_MS = 10_000, 7_200_000
"""When a copy could not be stored (full disk, say), the message is looked at again after this time; when that is because of
the message itself, after twice as long each time, as the original does."""
_UNREAD_MS = 2_000
"""A message that is being read from the lake is looked at again after this time."""
_PASSING = (OSError, StoreReadOnlyError, ServiceError)
"""What keeps any message from being copied."""
_UNFIT = (RecordError, RecordTooLargeError)
_UNFIT_TEXT = (
    "message does not fit the dead-letter topic; it stays in flight and is tried again less and less often: read it where it is, then "
    "reset the group to the offset behind it"
)


def _origin_of(
    state: QueueDelivery, message: InFlight, record: Record, properties: Mapping[str, str]
) -> dict[str, str]:
    """What the original's dead letters say of where they come from, and what its clients read of it.

    ORIGIN_GROUP and 1ST_POP_TIME stand in what was delivered more than once, as in the retry copies that the original
    makes of it.
    """
    message_id = offset_msg_id(record.store_host.packed, record.physical_offset)
    found = {
        "DLQ_ORIGIN_TOPIC": subscribed_topic(state.key),
        "DLQ_ORIGIN_MESSAGE_ID": message.message_id,
        "ORIGIN_MESSAGE_ID": properties.get("ORIGIN_MESSAGE_ID") or message_id,
        "DELAY": "0",
    }
    if message.attempt > 1:
        found["ORIGIN_GROUP"] = state.key.group
        if message.first_delivered_ms and "1ST_POP_TIME" not in properties:
            found["1ST_POP_TIME"] = str(message.first_delivered_ms)
    return found


class DeadLetterMover:
    """Copies a message in flight to `%DLQ%<group>`; the copy settles it."""

    def __init__(self, core: Core, resources: Resources, messages: MessageReader) -> None:
        self._store = core.store
        self._messages = messages
        self._resources = resources
        self._changes = core.changes
        self._core = core
        self._metrics = core.metrics
        self._failing: set[QueueKey] = set()
        self._unfit, self._not_stored = RateLimitedLog("times"), RateLimitedLog("times")

    def move(self, state: QueueDelivery, message: InFlight, reason: str, client_id: str = "") -> int | None:
        """Moves it. When the copy could not be stored, the message stays as it was; then after how many ms to try again.

        A message that cannot be read is skipped; one that is in the lake alone waits until it was read from there.
        """
        try:
            record = self._record(state, message)
            if record is not None:
                target = self._resources.dead_letters(dead_letter_topic(state.key.group))
            # After the topic's event, so that earlier events of the message precede its copy in the log.
            self._changes.make_room(1)
            if record is not None:
                self._append_copy(state, message, record, target.name, reason)
        except InLakeError:
            return _UNREAD_MS
        except Exception as error:  # the message must neither be lost nor block those behind it
            return self._refused(state, message, error)
        self._failing.discard(state.key)
        if record is None:
            self._settle(state, message, events.SKIPPED, client_id)
            return None
        self._settle(state, message, events.DEAD_LETTERED, client_id)
        self._metrics.dead_lettered(subscribed_topic(state.key), state.key.group, 1)
        return None

    def _refused(self, state: QueueDelivery, message: InFlight, error: Exception) -> int:
        """Counted once for the message, or its queue when no message could be copied, and logged less and less often; ms to wait."""
        passing = isinstance(error, _PASSING)
        known = state.key in self._failing if passing else message.refused_moves > 0
        wait_ms = RETRY_MOVE_MS
        if passing:
            self._failing.add(state.key)
        else:
            wait_ms = min(RETRY_MOVE_MS << min(message.refused_moves, 32), LONGEST_RETRY_MS)
            message.refused_moves += 1
        unfit = isinstance(error, _UNFIT)
        limited = self._unfit if unfit else self._not_stored
        if not known:
            limited.happened(
                log.error,
                _UNFIT_TEXT if unfit else "dead letter not stored; tried again later",
                topic=state.key.topic,
                group=state.key.group,
                queue_id=state.key.queue_id,
                queue_offset=message.queue_offset,
                error=str(error),
                exc_info=None if isinstance(error, (StoreError, *_PASSING)) else error,
            )
        return wait_ms

    def _record(self, state: QueueDelivery, message: InFlight) -> Record | None:
        """The message; None when it cannot be read. Raises InLakeError."""
        _, topic, queue_id = state.key
        old = self._messages.old
        if old is not None and old.end(topic, queue_id, message.queue_offset) > message.queue_offset:
            stored = self._messages.at(topic, queue_id, message.queue_offset)
            return decode_record(stored.data) if stored is not None else None
        offsets, sizes, _ = self._store.index.entries(topic, queue_id, message.queue_offset, 1)
        if not len(offsets) or not sizes[0]:
            return None
        try:
            return self._store.record(int(offsets[0]), int(sizes[0]))
        except (RecordError, OffsetOutOfRangeError):
            return None

    def _append_copy(
        self, state: QueueDelivery, message: InFlight, record: Record, target: str, reason: str
    ) -> None:
        group, topic, queue_id = state.key
        known = {name: value for name, value in record.properties_map().items() if name not in FURTHER_QUEUES}
        origin = Origin(queue_id, message.queue_offset, message.attempt, group, topic)
        told = {**known, **_origin_of(state, message, record, known)}
        try:
            copy = moved_copy(record, told, origin, target, _QUEUE, message.attempt, reason)
            self._store.append([copy])
        except RecordError:
            # of a store of another broker: more properties than fit beside what is told; LB_ORIGIN says most
            self._store.append([moved_copy(record, known, origin, target, _QUEUE, message.attempt)])

    def _settle(
        self, state: QueueDelivery, message: InFlight, kind: events.EventKind, client_id: str
    ) -> None:
        self._changes.events(state, kind, [message], client_id=client_id or message.client_id)
        state.settle(message)
        self._core.made_room(state)
