"""A message in flight, and the plan of a receive. What they become: the table in `queue_delivery.py`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker_gateway.delivery.message_groups import Turn


class Status(enum.IntEnum):
    """Of a message in flight."""

    INVISIBLE = 0
    READY = 1
    RETURNED = 2
    HELD = 3


@dataclass(slots=True)
class InFlight:
    """A message that was handed to a client, or is held back, and is not settled. Times in ms since the epoch.

    `nacked`: by its client or for it, so that the end of its invisible time is no expiry. `suspended`: its delivery
    does not count, and `attempt` is one less.
    """

    queue_offset: int
    attempt: int
    invisible_until_ms: int
    delivery_id: int
    message_id: str
    client_id: str
    auto_renew: bool = False
    nacked: bool = False
    delivered_ms: int = 0
    tags_code: int = 0
    suspended: bool = False
    status: Status = Status.INVISIBLE
    earlier_ms: int = 0
    """When it was delivered for the first time, if that was an earlier delivery; 0: it was not, or nobody knows."""
    refused_moves: int = 0
    """How often it could not be copied to the dead letters. In memory only."""
    host: str = ""
    """From where its client, known there, has it renewed; empty: the client's id alone counts. In memory only."""
    message_group: str | None = None
    """Of ordered delivery; None: nobody has looked yet. In memory only."""
    attempt_id: str = ""
    """Of ordered delivery: the attempt that took it, which gets it again when it is repeated."""

    @property
    def first_delivered_ms(self) -> int:
        """When it was delivered for the first time; 0: nobody knows."""
        return self.earlier_ms or self.delivered_ms


class Plan:
    """What one receive will do on one queue. Whoever reads the messages fills it; `QueueDelivery.commit` carries it out.

    `again` may be delivered again. New messages are those from `cursor` on, at most `room` of them; `cursor` goes on
    with what was searched, in ascending order. `turn`: of ordered delivery, what may be delivered next. `lake_read_to`: behind what
    was searched of the ranges that only the lake has, below the cursor (`lake_only.py`).
    """

    __slots__ = (
        "again",
        "cursor",
        "delivered",
        "held",
        "lake_read_to",
        "replaced",
        "room",
        "skipped",
        "start",
        "turn",
    )

    def __init__(
        self, start: int, cursor: int, room: int, again: Sequence[InFlight], turn: Turn | None = None
    ) -> None:
        self.start = start
        self.cursor = cursor
        self.room = room
        self.again = again
        self.turn = turn
        self.lake_read_to = 0
        self.delivered: list[InFlight] = []
        """What the reply has: redelivered messages, then new ones."""
        self.replaced: list[InFlight] = []
        """Of `again`, what the first of `delivered` takes the place of."""
        self.skipped: list[InFlight] = []
        """What cannot be read, of `again` and new; settled."""
        self.held: list[InFlight] = []
        """New messages that wait for others of their group."""

    def redeliver(self, message: InFlight, delivered: InFlight) -> None:
        """Delivers one of `again`."""
        delivered.earlier_ms = message.first_delivered_ms
        delivered.refused_moves = message.refused_moves
        delivered.message_group = message.message_group
        self.replaced.append(message)
        self.delivered.append(delivered)

    @property
    def room_left(self) -> int:
        """How many more new messages may be put in flight."""
        return self.room - len(self.delivered) + len(self.replaced) - len(self.held)

    @property
    def advanced(self) -> bool:
        """Whether the group goes on elsewhere."""
        return self.cursor != self.start or self.lake_read_to > 0
