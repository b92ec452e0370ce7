"""The new messages that a receive takes of what only the lake has: below the log, or in an absence of it.

They are taken from memory (`old_messages.py`). Where they are not there yet, the search is done with the queue, which is offered
again when they are.
"""

from __future__ import annotations

import structlog

from broker_gateway.delivery.in_flight import Plan
from broker_gateway.lake.messages import Stretch
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.poll_search import A_SKIP, SKIPS_A_PLAN, PollSearch
from broker_gateway.messaging.stored_message import MessageReader
from store.index.queue_index import Absence
from store.log.record import decode_record

log = structlog.get_logger(__name__)


class NewInLake:
    """Reads them into plans."""

    def __init__(self, old: OldMessages, messages: MessageReader) -> None:
        self._old = old
        self._messages = messages

    def read(self, search: PollSearch, plan: Plan, absence: Absence | None) -> bool | None:
        """Takes messages that only the lake has: first those of a lost log below the cursor, then new ones above it that the log lacks.
        None: the caller goes on searching the queue. Otherwise: whether the queue is done.
        """
        state, key = search.state, search.key
        start = plan.cursor
        inside = absence is not None and absence.begin <= start
        steps_over = not state.reads_absences
        if state.lake_only:
            before = absence.end if absence is not None and inside and steps_over else start
            offset = plan.lake_read_to
            while (span := state.lake_only.next_span(offset)) is not None and span[0] < before:
                stretch = self._old.look(key.topic, key.queue_id, span[0], span[1], key)
                if stretch is None:
                    return True
                offset = plan.lake_read_to = self._take_stretch(search, plan, stretch, *span)
                if (done := search.ends(plan)) is not None:
                    return done
        if absence is not None and inside and steps_over:
            plan.cursor = absence.end
            return None
        end = absence.end if absence is not None and inside else search.floor
        if absence is not None and steps_over:
            end = min(end, absence.begin)
        if end <= start:
            return None
        stretch = self._old.look(key.topic, key.queue_id, start, end, key)
        if stretch is None:
            return True
        plan.cursor = self._take_stretch(search, plan, stretch, start, end)
        return search.ends(plan)

    def _take_stretch(self, search: PollSearch, plan: Plan, stretch: Stretch, start: int, end: int) -> int:
        """Takes new messages of the lake, from `start` on; the offset behind the last."""
        at = start
        for number in range(stretch.after(start), len(stretch.offsets)):
            offset = stretch.offsets[number]
            if offset >= end:
                break
            self._step_over(search, plan, stretch, at, offset)
            at = offset + 1
            stored, attempt = self._messages.made_of(stretch.records[number], offset), 1
            if stored is not None and search.retry:
                attempt += decode_record(stored.data, verify=False).reconsume_times
            search.take_new(plan, offset, stored, attempt, None)
            if search.ends(plan) is not None:
                return at
        self._step_over(search, plan, stretch, at, min(stretch.end, end))
        return min(stretch.end, end)

    def _step_over(self, search: PollSearch, plan: Plan, stretch: Stretch, begin: int, end: int) -> None:
        """Messages [begin, end) are neither in the log nor in the lake: they expired there, which is as it should be, or never
        could be read."""
        if begin < (expired := min(end, stretch.expired)):
            log.info(
                "messages whose time in the lake has run out are passed over",
                **search.key._asdict(),
                first=begin,
                messages=expired - begin,
            )
            search.work -= A_SKIP
            begin = expired
        missing = end - begin
        if missing <= 0:
            return
        search.work -= A_SKIP
        if missing + len(plan.skipped) <= SKIPS_A_PLAN:
            for offset in range(begin, end):
                search.skip(plan, offset)
        else:
            log.warning(
                "messages that are neither in the log nor in the lake are passed over",
                **search.key._asdict(),
                first=begin,
                messages=missing,
            )
