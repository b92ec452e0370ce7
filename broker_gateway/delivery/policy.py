"""Which messages a group may be given of a queue: asked by `QueueDelivery.plan`, once for each plan.

A policy knows no time and changes nothing. One for ordered delivery would give new messages none while something is in
flight, and those that are due by their offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.metadata.catalog import Group


class DeliveryPolicy(Protocol):
    """What of the messages in flight is delivered again, and how many new ones may be put in flight."""

    def again(
        self, due: Mapping[int, InFlight], in_flight: Mapping[int, InFlight], count: int
    ) -> Sequence[InFlight]:
        """At most `count` of the messages that are `due`, by queue offset in the order in which they became so; others
        are `in_flight` too."""

    def room(self, in_flight: Mapping[int, InFlight], most: int) -> int:
        """How many new messages may be put in flight, of `most` in all; 0 or less: none."""


class Concurrent:
    """Messages are independent of each other: what is due first goes first, and new ones need no other settled."""

    def again(
        self, due: Mapping[int, InFlight], in_flight: Mapping[int, InFlight], count: int
    ) -> Sequence[InFlight]:
        return list(itertools.islice(due.values(), count))

    def room(self, in_flight: Mapping[int, InFlight], most: int) -> int:
        return most - len(in_flight)


CONCURRENT = Concurrent()


def policy_of(group: Group) -> DeliveryPolicy:
    """That of a group's settings: all are served as concurrent consumers, FIFO groups too, since order is not built."""
    return CONCURRENT
