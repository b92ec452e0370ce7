"""The new messages that a receive takes of a queue: those of the log, in order, usual ones a batch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.in_flight import Plan
from broker_gateway.messaging.new_in_lake import NewInLake
from broker_gateway.messaging.poll_search import SCAN_ENTRIES, SKIPS_A_PLAN, PollSearch
from broker_gateway.messaging.stored_message import MessageReader
from store.errors import ErasedError, OffsetOutOfRangeError
from store.message_store import MessageStore

Array = NDArray[Any]


class NewMessages:
    """Reads them into plans."""

    def __init__(self, store: MessageStore, messages: MessageReader) -> None:
        self._store = store
        self._messages = messages
        self._in_lake = None if messages.old is None else NewInLake(messages.old, messages)

    def read(self, search: PollSearch, plan: Plan) -> bool:
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
            if self._in_lake is not None and (inside or start < search.floor or state.lake_only):
                done = self._in_lake.read(search, plan, absence)
                if done is not None:
                    return done
                room = search.room(plan)
                if plan.cursor > start or inside:
                    continue
            elif absence is not None and inside:  # the lake's: no damage, and no event for each
                plan.cursor = absence.end
                continue
            count = room if wanted.everything else SCAN_ENTRIES
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
                if not usual and not taken and len(plan.skipped) >= SKIPS_A_PLAN:
                    return False
                if plan.held and len(plan.held) + len(plan.skipped) >= SKIPS_A_PLAN:
                    return False
            plan.cursor = start + found
            if found < count:
                return True
        return True

    def _read_usual(
        self, search: PollSearch, plan: Plan, offsets: Array, places: Array, sizes: Array, codes: Array
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
        except (OffsetOutOfRangeError, ErasedError):  # not all in one segment, or the first is erased
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

    def _read_one(
        self, search: PollSearch, plan: Plan, offset: int, physical: int, size: int, code: int
    ) -> None:
        """Reads a new message of the log."""
        plan.cursor = offset + 1
        stored, attempt = self._messages.read(physical, size), 1
        if stored is not None and search.retry:  # that a real broker made
            attempt += self._store.record(physical, size).reconsume_times
        search.take_new(plan, offset, stored, attempt, code)
