"""Deliveries as a replay finds them: pieces of a snapshot, changes, and moves.

A move is a copy of a message (with `LB_ORIGIN`), in the dead letters say, which settles its original for a group.
"""

from __future__ import annotations

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey, held_back
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.delivery_snapshot import HELD, NACKED, RETURNED, SUSPENDED, lake_only
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.index.queue_index import QueueIndex
from store.log.copies import ORIGIN_PROPERTY, decode_origin
from store.log.record import Record


class DeliveryReplay:
    """Restores the state of every group on every queue."""

    def __init__(self, deliveries: DeliveryTable, index: QueueIndex) -> None:
        self._deliveries = deliveries
        self._index = index

    def apply(self, record: pb.Batch) -> None:
        """Changes of queues or, in a part of a snapshot, pieces."""
        if not record.HasField("snapshot"):
            for change in record.queues:
                self._apply_events(change)
            return
        in_place = record.snapshot.in_place
        for piece in record.queues:
            self._apply_piece(piece, in_place)

    def apply_move(self, message: Record) -> None:
        """Settles the original of a copy."""
        origin = decode_origin(message.properties_map().get(ORIGIN_PROPERTY, ""))
        if origin is None:
            return
        state = self._deliveries.known(QueueKey(origin.group, origin.topic, origin.queue_id))
        if state is not None:
            state.restore_settled(origin.queue_offset)

    def end(self) -> None:
        """Makes every state ready for use, with what a start has to look at."""
        now = now_ms()
        for state in self._deliveries.queues():
            state.sort()
            state.end_returns(now)
            for message in state.returned:
                _, _, codes = self._index.entries(
                    state.key.topic, state.key.queue_id, message.queue_offset, 1
                )
                message.tags_code = int(codes[0]) if len(codes) else 0
            self._deliveries.schedule(state)

    def _apply_piece(self, piece: pb.QueueChange, in_place: bool) -> None:
        """The first piece of a queue replaces what changes before it said."""
        state = self._restored(piece)
        if in_place and not piece.continued:
            state.reset(piece.cursor)
            state.restore_reads_absences(False)
            self._restored(piece)
        for message in _in_flight(piece.in_flight):
            state.restore(message)
        if piece.HasField("lake_only"):
            state.restore_lake_only(lake_only(state.lake_only, piece.lake_only))
            if piece.lake_only.read_to:
                state.restore_lake_read(piece.lake_only.read_to)

    def _apply_events(self, change: pb.QueueChange) -> None:
        if change.removed:
            self._deliveries.forget(_key(change))
            return
        state = self._restored(change)
        for events in change.events:
            if events.kind in (pb.DELIVERED, pb.NACKED):
                for message in _handed_out(events):
                    state.restore(message)
            elif events.kind == pb.HELD:
                for each in zip(events.queue_offset, events.attempt, events.message_id, strict=True):
                    state.restore(held_back(*each))
            elif events.kind == pb.RESET:
                state.reset(change.cursor)
            elif events.kind != pb.EXPIRED:
                for offset in events.queue_offset:
                    state.restore_settled(offset)
        if change.lake_only.read_to:
            state.restore_lake_read(change.lake_only.read_to)

    def _restored(self, change: pb.QueueChange) -> QueueDelivery:
        client_offset = change.client_offset if change.HasField("client_offset") else None
        state = self._deliveries.restore(_key(change), change.cursor, client_offset)
        if change.reads_absences:
            state.restore_reads_absences(True)
        return state


def _in_flight(kept: pb.InFlight) -> list[InFlight]:
    none = [0] * len(kept.queue_offset)
    return [
        InFlight(
            offset,
            attempt,
            until,
            delivery_id,
            message_id,
            client_id,
            nacked=bool(flags & NACKED),
            suspended=bool(flags & SUSPENDED),
            status=Status.HELD if flags & HELD else _status(flags & RETURNED),
            earlier_ms=first_ms,
            attempt_id=attempt_id,
            auto_renew=renewed_ms > 0,
            delivered_ms=renewed_ms,
        )
        for offset, attempt, until, delivery_id, message_id, client_id, first_ms, flags, attempt_id, renewed_ms in zip(
            kept.queue_offset,
            kept.attempt,
            kept.invisible_until_ms,
            kept.delivery_id,
            kept.message_id,
            kept.client_id,
            kept.first_delivered_ms or none,
            kept.flags or none,
            kept.attempt_id or [""] * len(none),
            kept.renewed_from_ms or none,
            strict=True,
        )
    ]


def _handed_out(events: pb.Events) -> list[InFlight]:
    nacked, status = events.kind == pb.NACKED, _status(events.returned)
    return [
        InFlight(
            offset,
            attempt,
            events.invisible_until_ms,
            events.delivery_id,
            message_id,
            events.client_id,
            nacked=nacked,
            delivered_ms=events.timestamp_ms,
            suspended=events.suspended,
            status=status,
            attempt_id=events.attempt_id,
            auto_renew=events.renewed,
        )
        for offset, attempt, message_id in zip(
            events.queue_offset, events.attempt, events.message_id, strict=True
        )
    ]


def _status(returned: int) -> Status:
    """What was READY is INVISIBLE and due."""
    return Status.RETURNED if returned else Status.INVISIBLE


def _key(change: pb.QueueChange) -> QueueKey:
    return QueueKey(change.consumer_group, change.topic, change.queue_id)
