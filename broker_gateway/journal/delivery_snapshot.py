"""A group's state on a queue as pieces of a snapshot.

Of a queue with much in flight there are several. The first replaces what was known, the others add to it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.lake_only import LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import QueueDelivery
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.contributor import Target
from broker_gateway.journal.record import WITH_HELD
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb

NACKED, SUSPENDED, RETURNED, HELD = 1, 2, 4, 8
"""Flags of a message in flight."""
_IN_FLIGHT_A_PIECE = 512
_IDS_A_PIECE = 64 << 10
_MESSAGES_A_UNIT = 4
_IDS_A_UNIT = 256
"""Characters of ids: a part stays small whatever names and ids are."""


def queue_pieces(target: Target, deliveries: DeliveryTable, state: QueueDelivery) -> Iterator[int]:
    """A group's state on a queue, while it is the one that counts; in several pieces when much is in flight."""
    group, topic, queue_id = state.key
    offset, continued = 0, False
    while deliveries.known(state.key) is state:
        found = state.in_flight_from(offset, _IN_FLIGHT_A_PIECE)
        some = _within(found)
        if some or not continued:
            if any(each.status == Status.HELD for each in some):
                target.part.version = WITH_HELD
            target.part.queues.add(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                cursor=state.cursor,
                client_offset=state.client_offset,
                reads_absences=state.reads_absences,
                in_flight=_in_flight(some) if some else None,
                continued=continued,
            )
            yield 1 + len(some) // _MESSAGES_A_UNIT + _ids(some) // _IDS_A_UNIT
        if len(some) == len(found) < _IN_FLIGHT_A_PIECE:
            break
        offset, continued = some[-1].queue_offset + 1, True
    if state.lake_only and deliveries.known(state.key) is state:
        yield from _lake_only_pieces(target, deliveries, state)


def _lake_only_pieces(target: Target, deliveries: DeliveryTable, state: QueueDelivery) -> Iterator[int]:
    """What only the lake has, in pieces that add to those before. Each is of what is left when it is written, since what is read
    meanwhile is told before it; a reset meanwhile leaves nothing."""
    group, topic, queue_id = state.key
    next_message = next_span = 0
    while deliveries.known(state.key) is state:
        kept = state.lake_only
        first = bisect.bisect_left(kept.messages, next_message, key=lambda each: each.queue_offset)
        messages = kept.messages[first : first + _IN_FLIGHT_A_PIECE]
        messages = messages[: _fitting([len(each.message_id) for each in messages])]
        first = bisect.bisect_left(kept.spans, next_span, key=lambda span: span[0])
        spans = kept.spans[first : first + _IN_FLIGHT_A_PIECE]
        if not messages and not spans:
            return
        change = target.part.queues.add(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            cursor=state.cursor,
            client_offset=state.client_offset,
            continued=True,
            lake_only=pb.LakeOnly(
                queue_offset=[each.queue_offset for each in messages],
                attempt=[each.attempt for each in messages],
                message_id=[each.message_id for each in messages],
                span_start=[each for each, _ in spans],
                span_stop=[each for _, each in spans],
            ),
        )
        yield 1 + len(messages) // _MESSAGES_A_UNIT + change.ByteSize() // _IDS_A_UNIT
        if messages:
            next_message = messages[-1].queue_offset + 1
        if spans:
            next_span = spans[-1][1]


def lake_only(before: LakeOnly, piece: pb.LakeOnly) -> LakeOnly:
    """What was known, with a further piece. Raises ValueError for arrays of unlike lengths, or in no order."""
    rows = zip(piece.queue_offset, piece.attempt, piece.message_id, strict=True)
    spans = zip(piece.span_start, piece.span_stop, strict=True)
    return before.followed_by((LakeMessage(*each) for each in rows), spans)


def _within(messages: list[InFlight]) -> list[InFlight]:
    """As many of them as a piece holds, at least one."""
    return messages[: _fitting([_id_length(each) for each in messages])]


def _fitting(ids: list[int]) -> int:
    """How many of so many characters of ids a piece holds, at least one if there is any."""
    kept = len(ids)
    while kept > 1 and sum(ids[:kept]) > _IDS_A_PIECE:
        kept //= 2
    return kept


def _ids(messages: list[InFlight]) -> int:
    return sum([_id_length(each) for each in messages])


def _id_length(message: InFlight) -> int:
    return len(message.message_id) + len(message.client_id) + len(message.attempt_id)


def _in_flight(messages: list[InFlight]) -> pb.InFlight:
    return pb.InFlight(
        queue_offset=[m.queue_offset for m in messages],
        attempt=[m.attempt for m in messages],
        invisible_until_ms=[m.invisible_until_ms for m in messages],
        delivery_id=[m.delivery_id for m in messages],
        message_id=[m.message_id for m in messages],
        client_id=[m.client_id for m in messages],
        first_delivered_ms=[m.first_delivered_ms for m in messages],
        flags=flags if any(flags := [_flags(m) for m in messages]) else None,
        attempt_id=attempts if any(attempts := [m.attempt_id for m in messages]) else None,
        renewed_from_ms=renewed
        if any(renewed := [m.auto_renew * m.delivered_ms for m in messages])
        else None,
    )


def _flags(message: InFlight) -> int:
    returned, held = message.status == Status.RETURNED, message.status == Status.HELD
    return message.nacked * NACKED | message.suspended * SUSPENDED | returned * RETURNED | held * HELD
