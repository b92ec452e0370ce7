"""What a search of a receive may still do."""

from __future__ import annotations

import pytest

from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.in_flight import InFlight, Plan
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.poll import RECEIVE_BYTES, Poll
from broker_gateway.messaging.search import WORK, Search
from broker_gateway.metadata.catalog import Group, Topic


class NoWriter:
    """Is never asked."""


def search(batch: int = 4) -> Search:
    poll = Poll(Group("g"), Topic("t", 1, 1), EVERYTHING, batch, 1000, False, "c", "", 0.0, NoWriter())  # type: ignore[arg-type]
    made = Search(poll, 5)
    made.begin(QueueKey("g", "t", 0))
    return made


def test_a_search_ends_by_what_it_looks_at() -> None:
    made, steps = search(), 0
    left = made.work
    assert left < WORK, "a queue costs something"
    made.skipped()
    made.passed_over(12_800)
    assert left - made.work == 64 + 64 + 100
    while made.work > 0:
        made.begin(QueueKey("g", "t", 1))
        steps += 1
    assert steps < 100


@pytest.mark.parametrize(("room", "left"), [(10, 3), (2, 2), (0, 0)])
def test_a_queue_has_the_room_of_the_batch_and_of_its_plan(room: int, left: int) -> None:
    made = search()
    given = made.add(b"written", 10, "id", 7, 1, 0)
    assert (given.queue_offset, given.invisible_until_ms, given.delivered_ms) == (7, 1005, 5)
    assert made.room(Plan(0, 0, room, ())) == left


def test_large_messages_leave_no_room() -> None:
    made = search()
    made.add(b"written", RECEIVE_BYTES, "id", 7, 1, 0)
    assert made.room(Plan(0, 0, 10, [InFlight(1, 1, 1, 1, "m", "c")])) == 0
