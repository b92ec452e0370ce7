"""Delivery state of one consumer group on one queue.

The state of a message is where its queue offset stands:

| offset                        | state     | leaves it by |
|-------------------------------|-----------|--------------|
| >= cursor                     | new       | `deliver`: in flight |
| < cursor, in `in_flight`      | in flight | `settle` (acked, dead-lettered): settled; due and `deliver` again: in flight, next attempt |
| < cursor, not in `in_flight`  | settled   | never |

`committed` is therefore the first offset in flight, or the cursor. A message in flight is invisible until
its `invisible_until_ms`; then it is due. Only the delivery id handed out last settles or changes it.
No IO, no clock: the caller gives the time.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple


class QueueKey(NamedTuple):
    """A group on a queue."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True)
class InFlight:
    """A message handed to a client and not settled. Times in ms since the epoch."""

    queue_offset: int
    attempt: int
    invisible_until_ms: int
    delivery_id: int
    message_id: str
    client_id: str
    auto_renew: bool = False
    given_back: bool = False
    delivered_ms: int = 0


class QueueDelivery:
    """Cursor and messages in flight of `key`."""

    __slots__ = ("_due", "_ready", "_turned_away", "cursor", "in_flight", "journaled_committed", "key")

    def __init__(self, key: QueueKey, cursor: int) -> None:
        self.key = key
        self.cursor = cursor
        self.in_flight: OrderedDict[int, InFlight] = OrderedDict()
        self.journaled_committed = -1
        self._turned_away = False
        self._due: list[tuple[int, int]] = []
        self._ready: deque[InFlight] = deque()

    @property
    def committed(self) -> int:
        """Every offset below it is settled."""
        return next(iter(self.in_flight), self.cursor)

    def deliver(self, message: InFlight) -> None:
        """Puts a new or a due message in flight; new ones in ascending order of offset."""
        offset = message.queue_offset
        self.in_flight[offset] = message
        if offset >= self.cursor:
            self.cursor = offset + 1
        self._push(message)

    def settle(self, queue_offset: int, delivery_id: int) -> InFlight | None:
        """Ends a delivery. None when the id is not the one handed out last or nothing is in flight."""
        message = self.in_flight.get(queue_offset)
        if message is None or message.delivery_id != delivery_id:
            return None
        return self.in_flight.pop(queue_offset)

    def find(self, queue_offset: int, delivery_id: int) -> InFlight | None:
        """The message in flight under that delivery id, if it still is."""
        message = self.in_flight.get(queue_offset)
        return message if message is not None and message.delivery_id == delivery_id else None

    def room(self, most: int) -> int:
        """How many new messages may be put in flight, of `most` in all; remembers it when there are none."""
        room = most - len(self.in_flight)
        self._turned_away = room <= 0
        return max(room, 0)

    def freed(self) -> bool:
        """Whether there was no room for new messages when somebody last asked; says so once.

        Call it behind a `settle`: who was turned away may be served now.
        """
        turned_away, self._turned_away = self._turned_away, False
        return turned_away

    def postpone(self, message: InFlight, until_ms: int) -> None:
        """Sets when a message in flight is due."""
        message.invisible_until_ms = until_ms
        self._push(message)

    def quiet(self, now_ms: int) -> bool:
        """Whether certainly no message in flight is due or ready; cheaper than to look."""
        return not self._ready and (not self._due or self._due[0][0] > now_ms)

    def next_due_ms(self) -> int | None:
        """When the first message in flight is due, ms since the epoch."""
        due = self._due
        while due:
            until, offset = due[0]
            message = self.in_flight.get(offset)
            if message is not None and message.invisible_until_ms == until:
                return until
            heapq.heappop(due)
        return None

    def pop_due(self, now_ms: int) -> InFlight | None:
        """A message whose invisible time is over; it stays in flight until settled or delivered again."""
        until = self.next_due_ms()
        if until is None or until > now_ms:
            return None
        return self.in_flight[heapq.heappop(self._due)[1]]

    def make_ready(self, message: InFlight) -> None:
        """Queues a due message for its next delivery."""
        self._ready.append(message)

    def pop_ready(self, now_ms: int) -> InFlight | None:
        """The next message to deliver again; those settled or postponed meanwhile are passed over."""
        while self._ready:
            message = self._ready.popleft()
            if self.in_flight.get(message.queue_offset) is message and message.invisible_until_ms <= now_ms:
                return message
        return None

    def restore(self, message: InFlight) -> None:
        """Puts a message in flight while replaying; offsets may come in any order (see `sort`)."""
        self.in_flight[message.queue_offset] = message
        self._push(message)

    def sort(self) -> None:
        """Restores the order of offsets that `committed` relies on, after a replay."""
        offsets = list(self.in_flight)
        if any(a > b for a, b in itertools.pairwise(offsets)):
            self.in_flight = OrderedDict(sorted(self.in_flight.items()))

    def in_flight_from(self, offset: int, most: int) -> list[InFlight]:
        """At most `most` messages in flight at or above an offset, ascending."""
        offsets = list(self.in_flight)
        first = bisect.bisect_left(offsets, offset)
        return [self.in_flight[each] for each in offsets[first : first + most]]

    def reset(self, cursor: int) -> None:
        """Forgets every message in flight and goes on at `cursor`."""
        self.in_flight.clear()
        self._due.clear()
        self._ready.clear()
        self.cursor = cursor

    def _push(self, message: InFlight) -> None:
        due = self._due
        heapq.heappush(due, (message.invisible_until_ms, message.queue_offset))
        if len(due) > 2 * len(self.in_flight) + 64:
            self._due = [(m.invisible_until_ms, o) for o, m in self.in_flight.items()]
            heapq.heapify(self._due)
