"""Deliveries in the journal: how far each group is on each queue, what it has in flight, and what happened to it.

Owns `Batch.queues`. Of a queue that changed, the tick's record has one `QueueChange`, with the offsets as they are when
it is written. How it is read back: `delivery_replay.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.moves import ORIGIN_MARK
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.contributor import Contributor, Target
from broker_gateway.journal.delivery_replay import DeliveryReplay
from broker_gateway.journal.delivery_snapshot import queue_pieces
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.record import EVENTS_A_RECORD, WITH_HELD
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.errors import StoreError
from store.index.queue_index import QueueIndex
from store.log.record import Record

_SPARSE = 64
"""Entries of a queue that are looked at for each that is wanted, before each is looked up by itself."""


class DeliveryJournal(Contributor):
    """Notes in `journal` what happens to deliveries."""

    def __init__(
        self, journal: Journal, deliveries: DeliveryTable, index: QueueIndex, any_erased: Callable[[], bool]
    ) -> None:
        """`any_erased`: whether a record of this broker, in its log or before it, was."""
        self.journal = journal
        self.make_room = journal.make_room
        """The journal's: before what is noted together."""
        self._noted = journal.noted
        self._deliveries = deliveries
        self._index = index
        self._any_erased = any_erased
        self._replay = DeliveryReplay(deliveries, index)
        self._changes: dict[QueueKey, tuple[QueueDelivery, pb.QueueChange]] = {}
        self._untold: set[QueueKey] = set()
        self._held = False
        """Whether something of the tick was held back."""

    # ----- what services note -----

    def events(
        self,
        state: QueueDelivery,
        kind: pb.EventKind,
        messages: Sequence[InFlight],
        *,
        client_id: str = "",
        delivery_id: int = 0,
        invisible_until_ms: int = 0,
        timestamp_ms: int | None = None,
    ) -> None:
        """Adds one event for each message, all by one client; `messages` as they are behind it, alike but for their
        attempts. To be called before they happen; see `make_room`."""
        self._make_room(len(messages), (state,))
        at_ms = now_ms() if timestamp_ms is None else timestamp_ms
        self._note(state, kind, messages, client_id, delivery_id, invisible_until_ms, at_ms)

    def acked(self, settled: Iterable[tuple[QueueDelivery, Sequence[InFlight]]], client_id: str) -> None:
        """Adds that a client acknowledged messages of several queues, in one record: all of them or, raising what the
        append raised, none. To be called before they are settled."""
        settled = list(settled)
        self._make_room(sum(len(messages) for _, messages in settled), [state for state, _ in settled])
        for state, messages in settled:
            self._note(state, pb.ACKED, messages, client_id, 0, 0, now_ms())

    def offsets_changed(self, *states: QueueDelivery) -> None:
        """Notes that offsets of `states` moved without an event: they are appended together, all or none."""
        self._make_room(len(states), states)
        for state in states:
            self._change(state)
        self._noted(len(states))

    def reset(self, cursors: Mapping[QueueKey, int]) -> None:
        """Appends that groups go on elsewhere, with nothing in flight, behind all that was noted; raises what the
        append raised. To be called before they do."""
        batch = pb.Batch()
        for (group, topic, queue_id), cursor in cursors.items():
            change = batch.queues.add(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                cursor=cursor,
                has_committed=True,
                committed=cursor,
            )
            # one row of delivery_events: what happened before counts no more
            change.events.add(
                kind=pb.RESET, timestamp_ms=now_ms(), queue_offset=[cursor], attempt=[0], message_id=[""]
            )
        self.journal.append_first(_records(batch.queues))

    def removed(self, keys: Iterable[QueueKey], *others: pb.Batch) -> None:
        """Appends that groups have no state on these queues any more, and what `others` say: in one go, behind all that
        was noted. Raises what the append raised. To be called before they are removed.

        `others` are records of other contributors: what is deleted with the state.
        """
        batch = pb.Batch()
        for group, topic, queue_id in keys:
            batch.queues.add(consumer_group=group, topic=topic, queue_id=queue_id, removed=True)
        self.journal.append_first([*_records(batch.queues), *others])

    def _make_room(self, count: int, states: Iterable[QueueDelivery]) -> None:
        """As `make_room`. What is done though it raises is said by the next record that can be appended."""
        try:
            self.make_room(count)
        except (StoreError, OSError):
            self._untold.update(state.key for state in states)
            raise

    def _note(
        self,
        state: QueueDelivery,
        kind: pb.EventKind,
        messages: Sequence[InFlight],
        client_id: str,
        delivery_id: int,
        invisible_until_ms: int,
        timestamp_ms: int,
    ) -> None:
        noted = self._change(state).events.add(
            kind=kind,
            timestamp_ms=timestamp_ms,
            client_id=client_id,
            delivery_id=delivery_id,
            invisible_until_ms=invisible_until_ms,
            queue_offset=[m.queue_offset for m in messages],
            attempt=[m.attempt for m in messages],
            message_id=self._ids(state.key, messages),
        )
        self._held = self._held or kind == pb.HELD
        if kind == pb.DELIVERED:
            noted.renewed = messages[0].auto_renew
            noted.attempt_id = messages[0].attempt_id
        if kind == pb.NACKED:
            noted.suspended = messages[0].suspended
            noted.returned = messages[0].status == Status.RETURNED
        self._noted(len(messages))

    def _ids(self, key: QueueKey, messages: Sequence[InFlight]) -> list[str]:
        """Their message ids; of one whose record was erased while it was in flight none, for the lake has forgotten it. So of those
        whose records are not known any more, where any was erased: whether theirs were is not known either."""
        ids = [m.message_id for m in messages]
        if not messages or not self._any_erased():
            return ids
        try:
            gone = self._may_be_erased(key, np.array([m.queue_offset for m in messages]))
        except (StoreError, OSError):  # what is noted does not depend on it
            return [""] * len(ids)
        return ["" if out else each for each, out in zip(ids, gone, strict=True)]

    def _may_be_erased(self, key: QueueKey, offsets: NDArray[np.int64]) -> list[bool]:
        """Of messages of a queue. Raises what the index does."""
        topic, queue_id = key.topic, key.queue_id
        erased = self._index.erased
        known = offsets >= self._index.min_offset(topic, queue_id)
        here = offsets[known]
        gone = np.ones(len(offsets), np.bool_)
        if not len(here):
            return gone.tolist()
        first, span = int(here.min()), int(np.ptp(here)) + 1
        if span > _SPARSE * len(here):
            places = [self._index.every_entry(topic, queue_id, int(each), 1).offsets for each in here]
            gone[known] = [not len(place) or bool(erased.among(place).any()) for place in places]
        else:
            found = erased.among(self._index.every_entry(topic, queue_id, first, span).offsets)
            gone[known] = [at >= len(found) or bool(found[at]) for at in (here - first).tolist()]
        return gone.tolist()

    def _change(self, state: QueueDelivery) -> pb.QueueChange:
        known = self._changes.get(state.key)
        if known is None:
            group, topic, queue_id = state.key
            known = (state, pb.QueueChange(consumer_group=group, topic=topic, queue_id=queue_id))
            self._changes[state.key] = known
        return known[1]

    # ----- what the journal asks for -----

    def fill(self, record: pb.Batch) -> list[pb.Batch]:
        """Every queue that changed, with its offsets as they are now."""
        queues = record.queues
        for state, change in self._changes.values():
            change.cursor = state.cursor
            if state.client_offset is not None:
                change.client_offset = state.client_offset
            if state.lake_read_to:
                change.lake_only.read_to = state.lake_read_to
            if (
                state.reads_absences
                and self._index.absence(state.key.topic, state.key.queue_id, 0) is not None
            ):
                change.reads_absences = True
            committed = state.consumer_offset
            if committed != state.journaled_committed:
                change.has_committed = True
                change.committed = committed
            queues.append(change)
        rest: list[pb.Batch] = []
        if len(queues) > EVENTS_A_RECORD:
            rest = _records(queues[EVENTS_A_RECORD:])
            del queues[EVENTS_A_RECORD:]
        if self._held:
            self._held = False
            for each in (record, *rest):
                each.version = WITH_HELD
        return rest

    def written(self) -> None:
        changes, self._changes = self._changes, {}
        self._untold.clear()
        for state, change in changes.values():
            if change.has_committed:
                state.journaled_committed = change.committed

    def lost(self) -> None:
        self._untold.update(self._changes)
        self._changes = {}

    def retell(self, target: Target) -> Iterator[int]:
        """Queues whose changes were lost, as they are."""
        for key in self._untold:
            state = self._deliveries.known(key)
            if state is not None:
                yield from queue_pieces(target, self._deliveries, state)

    def snapshot(self, target: Target) -> Iterator[int]:
        """Every group's queues."""
        for state in list(self._deliveries.queues()):
            yield from queue_pieces(target, self._deliveries, state)

    def apply(self, record: pb.Batch) -> None:
        self._replay.apply(record)

    def reads_marked(self) -> bytes:
        return ORIGIN_MARK

    def apply_marked(self, message: Record) -> None:
        self._replay.apply_move(message)

    def replayed(self) -> None:
        self._replay.end()


def _records(queues: Sequence[pb.QueueChange]) -> list[pb.Batch]:
    """Changes of queues, as many as a record holds in each."""
    starts = range(0, len(queues), EVENTS_A_RECORD)
    return [pb.Batch(queues=queues[start : start + EVENTS_A_RECORD]) for start in starts]
