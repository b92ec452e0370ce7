"""Delivery state of one consumer group on one queue. The table is the whole truth; what it does not have raises
DeliveryError.

| a message is | where | due | leaves it by |
|---|---|---|---|
| new | at `position` or behind it, not in flight | when a receive searches | `commit` of a plan: invisible, held, or settled (passed over by the filter, or unreadable) |
| HELD | in flight, with nobody: ordered delivery, and one before it in its message group is not settled | never; it can be had when its group's turn comes (`message_groups.py`) | as READY; `plan` of a group that is not ordered any more: READY |
| INVISIBLE | in flight: its client has it; nobody, when it was withheld | at `invisible_until_ms` | `settle`; `wake`: READY; `replace`: INVISIBLE (nacked) or RETURNED (its client hung up before the reply); `postpone` (renewed, or released by its client) and `withhold`: INVISIBLE |
| READY | in flight, over its time | now, to any receive | `commit`: INVISIBLE, next attempt, or settled (unreadable); `settle`; `replace`; `postpone`: INVISIBLE |
| RETURNED | in flight, never seen by a client | now, to a receive whose filter takes it; to any at `invisible_until_ms` | as READY; `wake`: READY; `postpone`: INVISIBLE (its time was over before a replay) |
| settled | below `cursor`, not in flight | never | `reset`; `commit_offset` below it |
| in the lake only | `lake_only` (`lake_only.py`) | when a receive searches, where there is the lake | `deliver_from_lake`, at a start: what had been handed out is INVISIBLE, and due; `commit`, as new ones: the ranges that never were; `reset` |

So every message in flight is due at a known time, or waits for one that is. `committed` is the lowest of the cursor, the first offset in flight and the first in the lake only. An offset
that a client commits (`commit_offset`: consumers that pull) moves the cursor where nothing is in flight or in the lake only. Else it stands
beside it, and takes the group forward only, until a receive or `committed` is past it: as the original's pop reads it.
A receive plans first (`plan`), reads what it planned, has the journal note it, and only then changes state (`commit`);
what fails before that has changed nothing. Only the delivery id handed out last settles or changes a message.
No IO, no clock: the caller gives the time.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.in_flight import InFlight, Plan, Status
from broker_gateway.delivery.lake_only import NOTHING, LakeOnly
from broker_gateway.delivery.message_groups import MessageGroups

_RETURNED_LOOKED_AT = 1024
"""Of returned messages, by one receive with a tag filter; the others are due at their time."""
_WITHOUT_TIME = (Status.READY, Status.HELD)
"""Not due at a time of their own."""
MOST_HELD = 4096
"""Messages that a group holds back on a queue; what is behind them is not looked at until some of them can be had."""
NEVER = 1 << 62
"""ms since the epoch."""


class DeliveryError(Exception):
    """An event that the table does not have: a defect."""


class QueueKey(NamedTuple):
    """A group on a queue."""

    group: str
    topic: str
    queue_id: int


def held_back(
    queue_offset: int, attempt: int, message_id: str, tags_code: int = 0, message_group: str | None = None
) -> InFlight:
    """A new message that waits for others of its group; `attempt` is one less than that of its delivery."""
    return InFlight(
        queue_offset,
        attempt,
        NEVER,
        0,
        message_id,
        "",
        tags_code=tags_code,
        status=Status.HELD,
        message_group=message_group,
    )


class QueueDelivery:
    """Cursor and messages in flight of `key`. `schedule` is told when something is due before `scheduled_ms`."""

    __slots__ = (
        "_client_offset",
        "_cursor",
        "_due",
        "_groups",
        "_held",
        "_in_flight",
        "_lake_only",
        "_lake_read_to",
        "_lake_settled",
        "_reads_absences",
        "_ready",
        "_returned",
        "_schedule",
        "_turned_away",
        "journaled_committed",
        "key",
        "scheduled_ms",
    )

    def __init__(
        self, key: QueueKey, cursor: int, schedule: Callable[[QueueDelivery], None] | None = None
    ) -> None:
        self.key = key
        self.journaled_committed = -1
        self.scheduled_ms = NEVER
        """When the table visits the queue; its own."""
        self._schedule = schedule
        self._cursor = cursor
        self._client_offset: int | None = None
        self._in_flight: OrderedDict[int, InFlight] = OrderedDict()
        self._due: list[tuple[int, int]] = []
        self._ready: dict[int, InFlight] = {}
        self._returned: dict[int, InFlight] = {}
        self._held: dict[int, InFlight] = {}
        self._groups: MessageGroups | None = None
        """While deliveries are ordered."""
        self._lake_only = NOTHING
        self._lake_read_to = 0
        self._lake_settled: set[int] | None = None
        """While replaying: messages of `lake_only` that came into flight, or were settled."""
        self._reads_absences = False
        self._turned_away = False

    # ----- what is known -----

    @property
    def cursor(self) -> int:
        """Every offset below it was handed out, passed over or settled."""
        return self._cursor

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """By queue offset, ascending."""
        return self._in_flight

    @property
    def oldest(self) -> InFlight | None:
        """The message in flight with the lowest offset, which holds back `committed`. Other threads may ask, too."""
        while True:
            try:
                return next(iter(self._in_flight.values()), None)
            except RuntimeError:  # it changed in between
                continue

    @property
    def committed(self) -> int:
        """Every offset below it is settled."""
        first = min(next(iter(self._in_flight), self._cursor), self._cursor)
        return min(first, self._lake_only.first) if self._lake_only else first

    @property
    def lake_only(self) -> LakeOnly:
        """What is not settled of messages that only the lake has."""
        return self._lake_only

    @property
    def lake_read_to(self) -> int:
        """Below it, nothing of the ranges of `lake_only` is left; 0 while nothing was read of them."""
        return self._lake_read_to

    @property
    def reads_absences(self) -> bool:
        """Whether messages in absences of the log are new to the group; else `lake_only` has those that it has not settled."""
        return self._reads_absences

    @property
    def client_offset(self) -> int | None:
        """What a client committed while messages were in flight, until the group is past it."""
        return self._client_offset

    @property
    def consumer_offset(self) -> int:
        """The group's offset as RocketMQ shows it: what was committed last."""
        return self.committed if self._client_offset is None else self._client_offset

    @property
    def position(self) -> int:
        """Where new messages are taken from."""
        client = self._client_offset
        return self._cursor if client is None else max(client, self._cursor)

    def find(self, queue_offset: int, delivery_id: int) -> InFlight | None:
        """The message in flight under that delivery id, if it still is."""
        message = self._in_flight.get(queue_offset)
        if message is None or message.delivery_id != delivery_id or message.status == Status.HELD:
            return None
        return message

    def holds(self, message: InFlight) -> bool:
        """Whether the client that was given `message` still has it."""
        return self._in_flight.get(message.queue_offset) is message and message.status == Status.INVISIBLE

    def line(self, status: Status) -> dict[int, InFlight]:
        """Messages that are READY, RETURNED or HELD, by queue offset."""
        if status == Status.READY:
            return self._ready
        return self._returned if status == Status.RETURNED else self._held

    def in_flight_from(self, offset: int, most: int) -> list[InFlight]:
        """At most `most` messages in flight at or above an offset, ascending."""
        offsets = list(self._in_flight)
        first = bisect.bisect_left(offsets, offset)
        return [self._in_flight[each] for each in offsets[first : first + most]]

    def quiet(self, now_ms: int) -> bool:
        """Whether certainly no message in flight can be had; cheaper than to search."""
        if self._groups is not None:
            can_be_had = self._groups.any_open
        else:
            can_be_had = bool(self._ready or self._returned or self._held)
        return not can_be_had and (not self._due or self._due[0][0] > now_ms)

    @property
    def without_group(self) -> list[InFlight]:
        """Messages whose message group must be looked up before an ordered plan; none while plans are ordered."""
        if self._groups is not None:
            return []
        return [each for each in self._in_flight.values() if each.message_group is None]

    # ----- a receive -----

    def plan(
        self,
        count: int,
        most: int,
        floor: int = 0,
        wanted: MessageFilter = EVERYTHING,
        ordered: bool = False,
    ) -> Plan:
        """What `count` messages may be: those in flight that can be had, then new ones from `floor` on while `most` may be in
        flight. `ordered`: within each message group, by `message_groups.py`; see `without_group`."""
        start = self.position
        first, room = max(start, floor), self.room(most)
        if ordered:
            if self._groups is None:
                self._groups = MessageGroups(self._in_flight.values())
            room = max(min(room, MOST_HELD - len(self._held)), 0)
            return Plan(start, first, room, self._groups.next(count, wanted), self._groups.turn())
        if self._groups is not None or self._held:
            self._end_order()
        again = list(itertools.islice(self._ready.values(), count)) if self._ready else []
        if self._returned and len(again) < count:
            again += self._returned_to(wanted, count - len(again))
        return Plan(start, first, room, again)

    def _end_order(self) -> None:
        """Deliveries are not ordered any more: what was held back can be had."""
        self._groups = None
        for message in list(self._held.values()):
            self._leave(message)
            message.status = Status.READY
            message.invisible_until_ms = 0  # what is READY is due, also to a replay
            self._enter(message)

    def _returned_to(self, wanted: MessageFilter, count: int) -> list[InFlight]:
        some = list(itertools.islice(self._returned.values(), _RETURNED_LOOKED_AT))
        mask = wanted.mask(np.array([each.tags_code for each in some], dtype=np.int64))
        return [some[number] for number in np.flatnonzero(mask)[:count].tolist()]

    def commit(self, plan: Plan) -> None:
        """Does what was planned. Raises DeliveryError when the state is not that of the plan any more."""
        in_flight, new = self._in_flight, plan.delivered
        if plan.start != self.position:
            raise DeliveryError(f"{self.key}: planned at {plan.start}, the group is at {self.position}")
        if plan.replaced:
            for old in plan.replaced:
                if old.status == Status.INVISIBLE or in_flight.get(old.queue_offset) is not old:
                    raise DeliveryError(f"{self.key}: {old} is not due")
            new = plan.delivered[len(plan.replaced) :]
        if plan.held:
            self._turned_away = self._turned_away or plan.room_left <= 0
            new = sorted([*new, *plan.held], key=lambda each: each.queue_offset)
        lake_only, lake_read_to = self._lake_only, plan.lake_read_to
        for message in new:
            offset = message.queue_offset
            if offset in in_flight or not (
                plan.start <= offset < plan.cursor or (offset < lake_read_to and offset in lake_only)
            ):
                raise DeliveryError(f"{self.key}: {message} is not new")
        for message in plan.skipped:
            if message.queue_offset in in_flight:
                self.settle(message)
        for old, message in zip(plan.replaced, plan.delivered, strict=False):
            self.replace(old, message)
        plain = self._groups is None
        for message in new:
            in_flight[message.queue_offset] = message
            if plain:
                self._push(message)
            else:
                self._enter(message)
        if plan.cursor != plan.start:
            self._cursor, self._client_offset = plan.cursor, None
        if lake_read_to:
            self.restore_lake_read(lake_read_to)
            self.sort()  # they are before what is in flight already

    # ----- messages in flight -----

    def settle(self, message: InFlight) -> None:
        """Ends a delivery."""
        self._leave(message)
        self._remove(message)
        if self._client_offset is not None and self.committed > self._client_offset:
            self._client_offset = None

    def replace(self, message: InFlight, changed: InFlight) -> None:
        """The same message as it is from now on: with another end of its invisible time, delivery id or attempt."""
        if changed.queue_offset != message.queue_offset or changed.status in _WITHOUT_TIME:
            raise DeliveryError(f"{self.key}: {message} does not become {changed}")
        self._leave(message)
        self._in_flight[changed.queue_offset] = changed
        self._enter(changed)

    def postpone(self, message: InFlight, until_ms: int) -> None:
        """Sets when a message in flight is due; it is invisible until then."""
        self._leave(message)
        message.status = Status.INVISIBLE
        message.invisible_until_ms = until_ms
        self._enter(message)

    def withhold(self, message: InFlight, until_ms: int, delivery_id: int) -> None:
        """A message whose time is over stays invisible; under this id, that no handle given out is good for it again."""
        self.replace(
            message,
            replace(
                message,
                invisible_until_ms=until_ms,
                delivery_id=delivery_id,
                auto_renew=False,
                attempt_id="",
                status=Status.INVISIBLE,
            ),
        )

    def wake(self, message: InFlight, now_ms: int) -> None:
        """The invisible time of a message is over: any receive may have it."""
        if message.status in _WITHOUT_TIME or message.invisible_until_ms > now_ms:
            raise DeliveryError(f"{self.key}: {message} is not due at {now_ms}")
        self._leave(message)
        message.status = Status.READY
        self._enter(message)

    def next_due_ms(self) -> int | None:
        """When the first message that is not READY is due, ms since the epoch."""
        due = self._due
        while due:
            until, offset = due[0]
            message = self._in_flight.get(offset)
            if (
                message is not None
                and message.invisible_until_ms == until
                and message.status not in _WITHOUT_TIME
            ):
                return until
            heapq.heappop(due)
        return None

    def due(self, now_ms: int) -> InFlight | None:
        """The first message whose invisible time is over and that is not READY yet."""
        until = self.next_due_ms()
        return self._in_flight[self._due[0][1]] if until is not None and until <= now_ms else None

    def room(self, most: int) -> int:
        """How many new messages may be put in flight, of `most` in all; remembers it when there are none."""
        room = most - len(self._in_flight)
        self._turned_away = room <= 0
        return max(room, 0)

    def freed(self) -> bool:
        """Whether there was no room for new messages when somebody last asked, or a message group's turn has come; says so
        once.

        Call it behind a `settle`, or what else may end a message's time with its client: who was turned away may be
        served now.
        """
        turned_away, self._turned_away = self._turned_away, False
        return (self._groups is not None and self._groups.opened()) or turned_away

    # ----- offsets -----

    def commit_offset(self, offset: int) -> None:
        """A client says how far the group is. What is in flight stays in flight, and the group goes on behind it."""
        if offset < 0:
            raise DeliveryError(f"{self.key}: {offset} is no offset")
        if self._in_flight or self._lake_only:
            self._client_offset = offset
        else:
            self._reads_absences = self._reads_absences or offset < self._cursor
            self._cursor, self._client_offset = offset, None

    def reset(self, cursor: int) -> None:
        """Forgets every message in flight and goes on at `cursor`."""
        if cursor < 0:
            raise DeliveryError(f"{self.key}: {cursor} is no offset")
        self._in_flight.clear()
        self._due.clear()
        self._ready.clear()
        self._returned.clear()
        self._held.clear()
        self._groups = None
        self._lake_only, self._lake_read_to = NOTHING, 0
        self._lake_settled = None
        self._reads_absences = True
        self._cursor, self._client_offset = cursor, None

    def restore_offsets(self, cursor: int, client_offset: int | None) -> None:
        """What the journal says, or what was before a change that it did not take."""
        self._cursor, self._client_offset = cursor, client_offset

    # ----- replay -----

    def restore_lake_only(self, lake_only: LakeOnly) -> None:
        """What only the lake has: below the cursor, or in an absence of the log that the group steps over."""
        self._lake_only = lake_only

    def restore_lake_read(self, offset: int) -> None:
        """How far the ranges of `lake_only` were read."""
        self._lake_only = self._lake_only.read_to(offset)
        self._lake_read_to = offset

    def restore_reads_absences(self, reads: bool) -> None:
        """Whether messages in absences are new to the group."""
        self._reads_absences = reads

    def deliver_from_lake(self, messages: Iterable[InFlight]) -> None:
        """What had been handed out of `lake_only` is in flight, as these: a start has the lake."""
        self._lake_only = LakeOnly((), self._lake_only.spans)
        for message in messages:
            self.restore(message)
        self.sort()

    def restore(self, message: InFlight) -> None:
        """Puts a message in flight while replaying; offsets may come in any order (see `sort`).

        A snapshot's later piece may stand behind a redelivery of what it tells: the earliest delivery counts.
        """
        self._left_lake(message.queue_offset)
        before = self._in_flight.get(message.queue_offset)
        if before is not None:
            known = (before.first_delivered_ms, message.earlier_ms)
            message.earlier_ms = min((each for each in known if each), default=0)
            self._leave(before)
        self._in_flight[message.queue_offset] = message
        self._enter(message)

    def restore_settled(self, queue_offset: int) -> None:
        """Takes a message out of flight while replaying, if it is."""
        self._left_lake(queue_offset)
        message = self._in_flight.get(queue_offset)
        if message is not None:
            self._leave(message)
            self._remove(message)

    def _left_lake(self, queue_offset: int) -> None:
        """An event of a message while replaying: it is in flight, or settled, whatever `lake_only` said before."""
        if self._lake_only.messages:
            self._lake_settled = self._lake_settled or set()
            self._lake_settled.add(queue_offset)

    @property
    def returned(self) -> Iterable[InFlight]:
        """Messages that no client has seen."""
        return self._returned.values()

    def end_returns(self, now_ms: int) -> None:
        """Returned messages whose time was over before the replay are due as all others are."""
        for message in [each for each in self._returned.values() if each.invisible_until_ms <= now_ms]:
            self.postpone(message, message.invisible_until_ms)

    def sort(self) -> None:
        """Restores the order of offsets that `committed` relies on, after a replay or what came in from the lake."""
        if self._lake_settled:
            self._lake_only = self._lake_only.without(self._lake_settled)
            self._lake_settled = None
        offsets = list(self._in_flight)
        if any(a > b for a, b in itertools.pairwise(offsets)):
            self._in_flight = OrderedDict(sorted(self._in_flight.items()))
            if self._groups is not None:
                self._groups = MessageGroups(self._in_flight.values())

    def _leave(self, message: InFlight) -> None:
        """Takes a message out of the line that its status says."""
        offset = message.queue_offset
        if self._in_flight.get(offset) is not message:
            raise DeliveryError(f"{self.key}: {message} is not in flight")
        if message.status != Status.INVISIBLE:
            del self.line(message.status)[offset]

    def _enter(self, message: InFlight) -> None:
        """Puts a message that is in flight into the line that its status says."""
        if message.status != Status.INVISIBLE:
            self.line(message.status)[message.queue_offset] = message
        if message.status in (Status.INVISIBLE, Status.RETURNED):
            self._push(message)
        if self._groups is not None:
            self._groups.put(message)

    def _remove(self, message: InFlight) -> None:
        """Takes a message that has left its line out of flight."""
        del self._in_flight[message.queue_offset]
        if self._groups is not None:
            self._groups.remove(message)

    def _push(self, message: InFlight) -> None:
        due, until = self._due, message.invisible_until_ms
        heapq.heappush(due, (until, message.queue_offset))
        if len(due) > 2 * len(self._in_flight) + 64:
            self._due = [(m.invisible_until_ms, o) for o, m in self._in_flight.items()]
            heapq.heapify(self._due)
        if until < self.scheduled_ms and self._schedule is not None:
            self._schedule(self)
