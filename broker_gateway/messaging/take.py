"""Takes messages for receives: due ones first, then new ones, from any readable queue of the topic on this broker, as
the original's pop does, after the retry topics that a real broker left for the group.

Of each queue: plan, read, have the journal note it, commit (`delivery/queue_delivery.py`). A queue that fails has
changed nothing, and others are served. A search ends after so much work (`_SEARCH`), wherever it is; the next one goes on.

Messages that only the lake has (below the log, or in an absence of it) are taken from memory (`old_messages.py`). Where they
are not there yet, the search is done with the queue, which is offered again when they are.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.handles import encode_handle, new_delivery_id
from broker_gateway.delivery.in_flight import InFlight, Plan, Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey, held_back
from broker_gateway.delivery.retry_topics import handle_queue
from broker_gateway.lake.messages import Stretch
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.old_messages import InLakeError, OldMessages
from broker_gateway.messaging.poll import RECEIVE_BYTES, Poll
from broker_gateway.messaging.redelivery import Redelivery
from broker_gateway.messaging.searched_queues import SearchedQueues
from broker_gateway.messaging.stored_message import MessageReader, StoredMessage
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.errors import (
    OffsetOutOfRangeError,
    StoreDamagedError,
    StoreReadOnlyError,
)
from store.index.queue_index import Absence
from store.log.record import decode_record, tags_code

log = structlog.get_logger(__name__)
Array = NDArray[Any]

_SCAN_ENTRIES = 4096
_SEARCH = 8 * _SCAN_ENTRIES
"""Queue entries that a search goes through. What else it does counts as so many entries:"""
_A_QUEUE = 512
_A_SKIP = 64
_BYTES_AN_ENTRY = 128
"""Of a message that is read and then passed over."""
_SKIPS_A_PLAN = 512
"""Their events fit one record of the journal with those of the messages."""


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
        search = _Search(poll, now)
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

    def _take_from(self, search: _Search, key: QueueKey) -> bool:
        """Takes what the rest of the batch holds from one queue; False when there may be more in it for this search."""
        poll, now, index = search.poll, search.now, self._store.index
        state = self._deliveries.queue(key)
        floor, ordered = index.min_offset(key.topic, key.queue_id), search.ordered
        search.begin(key, state, floor)
        if self._old is not None and poll.lite is None and state.position < floor:
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
            if self._old is not None and state.lake_only:
                return done
            self._deliveries.arrivals.nothing_left(key)
        return done

    def _look_up_groups(self, search: _Search, state: QueueDelivery) -> bool:
        """Finds the message groups of what is in flight, which a restart and a group that becomes ordered leave open; False
        when the search ends before."""
        _, topic, queue_id = search.key
        for message in state.without_group:
            if search.work <= 0:
                return False
            search.work -= _A_SKIP
            stored = self._messages.at(topic, queue_id, message.queue_offset, search.key)
            # one that cannot be read holds nothing back
            message.message_group = (
                stored.message_group if stored is not None else f"\0{message.queue_offset}"
            )
        return True

    def _read_again(self, search: _Search, plan: Plan) -> None:
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
                search.work -= _A_SKIP
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

    def _read_new(self, search: _Search, plan: Plan) -> bool:
        """Reads new messages; False when the search ends before the queue does."""
        _, topic, queue_id = search.key
        state = search.state
        wanted = EVERYTHING if search.retry else search.poll.filter
        room = search.room(plan)
        usual = plan.turn is None and not search.retry and (wanted.everything or wanted.by_tag is not None)
        while room > 0:
            if search.work <= 0:
                return False
            start = plan.cursor
            absence = self._store.index.absence(topic, queue_id, start)
            inside = absence is not None and absence.begin <= start
            if self._old is not None and (inside or start < search.floor or state.lake_only):
                done = self._read_lake(self._old, search, plan, absence)
                if done is not None:
                    return done
                room = search.room(plan)
                if plan.cursor > start or inside:
                    continue
            elif absence is not None and inside:  # the lake's: no damage, and no event for each
                plan.cursor = absence.end
                continue
            count = room if wanted.everything else _SCAN_ENTRIES
            if absence is not None:
                count = min(count, absence.begin - start)
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
                part, before = slice(at, at + room), plan.room_left
                read = 0
                if usual:
                    read = self._read_usual(
                        search, plan, offsets[part], places[part], sizes[part], codes[part]
                    )
                if not read:
                    usual, read = False, 1
                    self._read_one(search, plan, *(int(each[at]) for each in (offsets, places, sizes, codes)))
                at += read
                taken, room = before - plan.room_left, search.room(plan)
                if room == 0:
                    return True
                if not usual and not taken and len(plan.skipped) >= _SKIPS_A_PLAN:
                    return False
                if plan.held and len(plan.held) + len(plan.skipped) >= _SKIPS_A_PLAN:
                    return False
            plan.cursor = start + found
            if found < count:
                return True
        return True

    def _read_usual(
        self, search: _Search, plan: Plan, offsets: Array, places: Array, sizes: Array, codes: Array
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

    def _read_lake(
        self, old: OldMessages, search: _Search, plan: Plan, absence: Absence | None
    ) -> bool | None:
        """Takes what only the lake has: what is left of a lost log up to the cursor, then new messages from the cursor on, where the log
        has none. None: the search of the queue goes on; else whether it is done with the queue.
        """
        state, key = search.state, search.key
        start = plan.cursor
        inside = absence is not None and absence.begin <= start
        steps_over = not state.reads_absences
        if state.lake_only:
            before = absence.end if absence is not None and inside and steps_over else start
            offset = plan.lake_read_to
            while (span := state.lake_only.next_span(offset)) is not None and span[0] < before:
                stretch = old.look(key.topic, key.queue_id, span[0], span[1], key)
                if stretch is None:
                    return True
                offset = plan.lake_read_to = self._take_stretch(search, plan, stretch, *span)
                if (done := self._ends(search, plan)) is not None:
                    return done
        if absence is not None and inside and steps_over:
            plan.cursor = absence.end
            return None
        end = absence.end if absence is not None and inside else search.floor
        if absence is not None and steps_over:
            end = min(end, absence.begin)
        if end <= start:
            return None
        stretch = old.look(key.topic, key.queue_id, start, end, key)
        if stretch is None:
            return True
        plan.cursor = self._take_stretch(search, plan, stretch, start, end)
        return self._ends(search, plan)

    def _ends(self, search: _Search, plan: Plan) -> bool | None:
        """None: the search of the queue goes on; else whether it is done with the queue."""
        if search.room(plan) == 0:
            return True
        if search.work <= 0 or len(plan.held) + len(plan.skipped) >= _SKIPS_A_PLAN:
            return False
        return None

    def _take_stretch(self, search: _Search, plan: Plan, stretch: Stretch, start: int, end: int) -> int:
        """Takes new messages of the lake, from `start` on; the offset behind the last."""
        at = start
        for number in range(stretch.after(start), len(stretch.offsets)):
            offset = stretch.offsets[number]
            if offset >= end:
                break
            self._step_over(search, plan, at, offset)
            at = offset + 1
            stored, attempt = self._messages.made_of(stretch.records[number], offset), 1
            if stored is not None and search.retry:
                attempt += decode_record(stored.data, verify=False).reconsume_times
            self._take_new(search, plan, offset, stored, attempt, None)
            if self._ends(search, plan) is not None:
                return at
        self._step_over(search, plan, at, min(stretch.end, end))
        return min(stretch.end, end)

    def _step_over(self, search: _Search, plan: Plan, begin: int, end: int) -> None:
        """Messages [begin, end) are neither in the log nor in the lake: they expired there, or never could be read."""
        missing = end - begin
        if missing <= 0:
            return
        search.work -= _A_SKIP
        if missing + len(plan.skipped) <= _SKIPS_A_PLAN:
            for offset in range(begin, end):
                self._skip(search, plan, offset)
        else:
            log.warning(
                "messages that are neither in the log nor in the lake are passed over",
                **search.key._asdict(),
                first=begin,
                messages=missing,
            )

    def _skip(self, search: _Search, plan: Plan, offset: int) -> None:
        poll = search.poll
        search.work -= _A_SKIP
        plan.skipped.append(InFlight(offset, 1, search.now, poll.delivery_id, "", poll.client_id))

    def _read_one(
        self, search: _Search, plan: Plan, offset: int, physical: int, size: int, code: int
    ) -> None:
        """Reads a new message of the log."""
        plan.cursor = offset + 1
        stored, attempt = self._messages.read(physical, size), 1
        if stored is not None and search.retry:  # that a real broker made
            attempt += self._store.record(physical, size).reconsume_times
        self._take_new(search, plan, offset, stored, attempt, code)

    def _take_new(
        self,
        search: _Search,
        plan: Plan,
        offset: int,
        stored: StoredMessage | None,
        attempt: int,
        code: int | None,
    ) -> None:
        """A new message is delivered, held back, skipped, or passed over by the filter; `code`: None of one whose tag says it."""
        if stored is None:
            self._skip(search, plan, offset)
            return
        if attempt == 1 and not search.wants(stored):
            search.passed_over(len(stored.data))
            return
        if code is None:
            code = tags_code(stored.properties.get("TAGS"))
        turn = plan.turn
        if turn is not None and not turn.takes(stored.message_group):
            search.work -= _A_SKIP
            turn.close(stored.message_group)
            plan.held.append(held_back(offset, attempt - 1, stored.message_id, code, stored.message_group))
            return
        plan.delivered.append(search.deliver(stored, offset, attempt, code))

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


class _Search:
    """A search of a poll: how much more it may do, and what it found in the queue `begin` named."""

    __slots__ = (
        "body_bytes",
        "floor",
        "handle_queue",
        "key",
        "messages",
        "most_bytes",
        "now",
        "ordered",
        "poll",
        "retry",
        "state",
        "work",
    )
    key: QueueKey
    state: QueueDelivery
    floor: int
    handle_queue: int
    retry: bool

    def __init__(self, poll: Poll, now: int) -> None:
        self.poll = poll
        self.now = now
        self.ordered = poll.group.fifo or poll.lite is not None
        self.work = _SEARCH
        self.messages: list[bytes] = []
        self.body_bytes = 0
        self.most_bytes = RECEIVE_BYTES

    def begin(self, key: QueueKey, state: QueueDelivery, floor: int) -> None:
        self.work -= _A_QUEUE
        self.key = key
        self.state = state
        self.floor = floor
        self.handle_queue = handle_queue(key)
        self.retry = self.handle_queue != key.queue_id and self.poll.lite is None
        self.most_bytes = RECEIVE_BYTES - self.poll.body_bytes
        self.messages = []
        self.body_bytes = 0

    def room(self, plan: Plan) -> int:
        """How many more new messages may be taken from the queue."""
        if self.body_bytes >= self.most_bytes:
            return 0
        left = self.poll.batch_size - len(self.poll.messages) - len(self.messages)
        return min(left, plan.room_left)

    def wants(self, stored: StoredMessage) -> bool:
        """Whether the filter lets a message through that was read."""
        self.work -= self.poll.filter.work
        return self.poll.filter.wants(stored.properties)

    def passed_over(self, size: int) -> None:
        """A record of so many bytes was read that the filter does not want."""
        self.work -= _A_SKIP + size // _BYTES_AN_ENTRY

    def deliver(self, stored: StoredMessage, offset: int, attempt: int, tags_code: int) -> InFlight:
        """Puts a message into what the reply will have."""
        poll = self.poll
        handle = encode_handle(self.handle_queue, offset, poll.delivery_id)
        written = poll.writer.message(stored, poll.topic.name, handle, attempt, poll.invisible_ms)
        made = self.add(written, stored.body_length, stored.message_id, offset, attempt, tags_code)
        if self.ordered:
            made.message_group, made.attempt_id = stored.message_group, poll.attempt_id
        return made

    def add(
        self, written: bytes, body_length: int, message_id: str, offset: int, attempt: int, tags_code: int
    ) -> InFlight:
        """The same of one that is written already."""
        poll = self.poll
        self.messages.append(written)
        self.body_bytes += body_length
        return InFlight(
            offset,
            attempt,
            self.now + poll.invisible_ms,
            poll.delivery_id,
            message_id,
            poll.client_id,
            poll.auto_renew,
            False,
            self.now,
            tags_code,
            host=poll.renewed_at,
        )
