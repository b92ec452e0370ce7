"""Readings of the lake in line: who asks takes turns, nobody fills it alone, and what nobody waits for any more leaves it.

Who asks is a consumer group, or the address of a call's client. A reading that several ask for is served at the first of their
turns. Of those that an address's calls left, the last one stays: a call of little patience finds it done when it comes again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.runtime.shares import Shares

Queue = tuple[str, int]
Waiter = QueueKey | asyncio.Future[None]
"""A group on a queue, whose receives search again; or a call."""


@dataclass(slots=True, eq=False)
class Reading:
    """One that is in line or under way. `stays`: for memory, whoever waits; `askers` are those in whose lines it is."""

    queue: Queue
    begin: int
    end: int
    waiters: set[Waiter] = field(default_factory=set)
    stays: bool = False
    askers: set[str] = field(default_factory=set)

    @property
    def waited_for(self) -> bool:
        return self.stays or bool(self.waiters)


class ReadingLine:
    """At most `limit` readings; of that, beyond the first half, who asks has `percent` at most."""

    def __init__(self, limit: int, percent: int) -> None:
        self._limit = limit
        self._shares = Shares(limit, percent)
        self._by_asker: OrderedDict[str, dict[Reading, None]] = OrderedDict()
        self._left: dict[str, Reading] = {}
        """What the calls of an address left last."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def has_room(self, asker: str) -> bool:
        """Whether one more of who asks may be added."""
        return self._length < self._limit and not self._shares.refuse(asker, self._length)

    def add(self, asker: str, reading: Reading) -> None:
        """At the end of what `asker` has in line; nothing when it is there already."""
        if asker in reading.askers:
            return
        self._length += not reading.askers
        reading.askers.add(asker)
        self._by_asker.setdefault(asker, {})[reading] = None
        self._shares.count(asker)

    def pop(self) -> Reading:
        """The next one; who asked for it is last in turn then. Raises StopIteration when there is none."""
        asker = next(iter(self._by_asker))
        reading = next(iter(self._by_asker[asker]))
        self._remove(reading)
        if asker in self._by_asker:
            self._by_asker.move_to_end(asker)
        return reading

    def left(self, asker: str, reading: Reading) -> Reading | None:
        """A call does not wait any more; the reading that is taken out for it, if any."""
        if reading.waited_for or asker not in reading.askers:
            return None
        before, self._left[asker] = self._left.get(asker), reading
        if before is None or before is reading or before.waited_for:
            return None
        self._remove(before)
        return before

    def _remove(self, reading: Reading) -> None:
        self._length -= 1
        for asker in reading.askers:
            line = self._by_asker[asker]
            del line[reading]
            if not line:
                del self._by_asker[asker]
            self._shares.count(asker, -1)
            if self._left.get(asker) is reading:
                del self._left[asker]
        reading.askers.clear()
