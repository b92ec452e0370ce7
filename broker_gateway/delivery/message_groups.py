"""Ordered delivery: the messages in flight of a queue by their message group, and what a receive may have of them.

The unit of order is the message group, not the queue; messages without one are the group ''. The rules, for each group:

| rule | |
|---|---|
| nothing of it is handed out while a client has one of its messages | one that is INVISIBLE and not nacked |
| otherwise the first that is not settled comes first, and others behind it in their order | up to one that is nacked and not due |
| a new message is held back unless all before it are settled, or go to the same receive | HELD: in flight, with nobody; it takes room |

A message that was acknowledged out of turn is settled, and does not come again. What is held back goes to any receive: a filter
took it when it was held. No IO, no clock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.in_flight import InFlight, Status

_LOOKED_AT = 1024
"""Message groups, by one receive: a filter may take nothing of them until they are due to anybody."""


class _Group:
    """`messages` in flight by queue offset, ascending; `out`: the offsets of those that a client has."""

    __slots__ = ("messages", "out")

    def __init__(self) -> None:
        self.messages: dict[int, InFlight] = {}
        self.out: set[int] = set()


class MessageGroups:
    """Of one queue. `messages` come by ascending offset and know their message groups."""

    __slots__ = ("_groups", "_open", "_opened")

    def __init__(self, messages: Iterable[InFlight]) -> None:
        self._groups: dict[str, _Group] = {}
        self._open: dict[str, None] = {}
        self._opened = False
        for message in messages:
            self.put(message)
        self._opened = False

    @property
    def any_open(self) -> bool:
        """Whether the first message of some group can be had."""
        return bool(self._open)

    def opened(self) -> bool:
        """Whether some group's messages could be had again since this was asked last."""
        opened, self._opened = self._opened, False
        return opened

    def put(self, message: InFlight) -> None:
        """A message is in flight, or has another status."""
        name = _name(message)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        group.messages[message.queue_offset] = message
        if message.status == Status.INVISIBLE and not message.nacked:
            group.out.add(message.queue_offset)
        else:
            group.out.discard(message.queue_offset)
        self._judge(name, group)

    def remove(self, message: InFlight) -> None:
        """A message is in flight no more."""
        name = _name(message)
        group = self._groups[name]
        del group.messages[message.queue_offset]
        group.out.discard(message.queue_offset)
        self._judge(name, group)
        if not group.messages:
            del self._groups[name]

    def next(self, count: int, wanted: MessageFilter) -> list[InFlight]:
        """At most `count` messages that may be handed out: of each group the first ones, in their order."""
        found: list[InFlight] = []
        returned: list[str] = []
        for name in itertools.islice(self._open, _LOOKED_AT):
            if next(iter(self._groups[name].messages.values())).status == Status.RETURNED:
                returned.append(name)  # last: a filter may refuse it once it is read
            else:
                self._take(found, name, count, wanted)
        for name in returned:
            self._take(found, name, count, wanted)
        return found

    def _take(self, found: list[InFlight], name: str, count: int, wanted: MessageFilter) -> None:
        for message in self._groups[name].messages.values():
            if len(found) == count or not _can_be_had(message):
                return
            if message.status == Status.RETURNED and not _takes(wanted, message):
                return
            found.append(message)

    def turn(self) -> Turn:
        """For the plan of a receive."""
        return Turn(self._groups)

    def _judge(self, name: str, group: _Group) -> None:
        first = next(iter(group.messages.values()), None)
        if first is None or group.out or not _can_be_had(first):
            self._open.pop(name, None)
        elif name not in self._open:
            self._open[name] = None
            self._opened = True


class Turn:
    """What one receive may have of each message group, as it reads: those in flight first, then new messages."""

    __slots__ = ("_closed", "_gone", "_groups")

    def __init__(self, groups: Mapping[str, _Group]) -> None:
        self._groups = groups
        self._closed: set[str] = set()
        self._gone: Counter[str] = Counter()

    def goes_on(self, message: InFlight) -> bool:
        """Whether a message in flight follows what the receive has of its group."""
        return _name(message) not in self._closed

    def gone(self, message: InFlight) -> None:
        """A message that was in flight goes to the receive, or cannot be read and is settled."""
        self._gone[_name(message)] += 1

    def close(self, group: str) -> None:
        """The receive gets no more of a group."""
        self._closed.add(group)

    def takes(self, group: str) -> bool:
        """Whether a new message of a group may go to the receive."""
        if group in self._closed:
            return False
        known = self._groups.get(group)
        return known is None or len(known.messages) == self._gone[group]


def _name(message: InFlight) -> str:
    assert message.message_group is not None, f"nobody looked up the message group of {message}"
    return message.message_group


def _can_be_had(message: InFlight) -> bool:
    return message.status != Status.INVISIBLE


def _takes(wanted: MessageFilter, message: InFlight) -> bool:
    return bool(wanted.mask(np.array([message.tags_code], dtype=np.int64))[0])
