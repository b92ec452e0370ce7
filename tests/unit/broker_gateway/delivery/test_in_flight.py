"""A message in flight, and what a plan says of it."""

from __future__ import annotations

import pytest

from broker_gateway.delivery.in_flight import InFlight, Plan


def flying(offset: int, attempt: int = 1, *, delivered_ms: int = 0, earlier_ms: int = 0) -> InFlight:
    return InFlight(
        offset, attempt, 100, attempt, f"m{offset}", "c", delivered_ms=delivered_ms, earlier_ms=earlier_ms
    )


@pytest.mark.parametrize(
    ("earlier_ms", "delivered_ms", "first_ms"), [(0, 0, 0), (0, 50, 50), (30, 50, 30), (30, 0, 30)]
)
def test_the_first_delivery_is_the_earlier_one_where_there_was_one(
    earlier_ms: int, delivered_ms: int, first_ms: int
) -> None:
    message = flying(0, delivered_ms=delivered_ms, earlier_ms=earlier_ms)
    assert message.first_delivered_ms == first_ms


def test_a_redelivery_knows_of_the_deliveries_before_it() -> None:
    """The third delivery still says when the first was, and how often no dead letter could be made of the message."""
    message = flying(0, delivered_ms=50)
    message.refused_moves = 2
    for attempt in (2, 3):
        plan = Plan(1, 1, 10, [message])
        delivered = flying(0, attempt, delivered_ms=50 * attempt)
        plan.redeliver(message, delivered)
        assert (delivered.first_delivered_ms, delivered.refused_moves) == (50, 2)
        message = delivered


def test_redeliveries_take_the_places_of_what_they_repeat_in_turn() -> None:
    again = [flying(offset) for offset in (0, 1, 2)]
    plan = Plan(3, 3, 10, again)
    delivered = [flying(offset, 2) for offset in (0, 2)]
    plan.redeliver(again[0], delivered[0])
    plan.redeliver(again[2], delivered[1])
    plan.delivered.append(flying(3))
    assert plan.replaced == [again[0], again[2]]
    assert plan.delivered[:2] == delivered


def test_a_group_goes_on_elsewhere_by_what_was_searched_and_not_by_what_comes_again() -> None:
    message = flying(0)
    plan = Plan(3, 3, 10, [message])
    plan.redeliver(message, flying(0, 2))
    assert not plan.advanced
    plan.cursor = 4
    assert plan.advanced
    assert Plan(3, 7, 10, ()).advanced, "what is gone from the log is passed over"
