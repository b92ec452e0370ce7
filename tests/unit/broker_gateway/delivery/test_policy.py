"""What of a queue a group may be given is up to a policy, and to nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.policy import CONCURRENT
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey


class InOrder:
    """New messages while nothing is in flight; what is due, by its offset, only when all in flight is."""

    def again(
        self, due: Mapping[int, InFlight], in_flight: Mapping[int, InFlight], count: int
    ) -> Sequence[InFlight]:
        return [due[offset] for offset in sorted(due)][:count] if len(due) == len(in_flight) else []

    def room(self, in_flight: Mapping[int, InFlight], most: int) -> int:
        return 0 if in_flight else most


def with_ready(*offsets: int) -> QueueDelivery:
    """Messages in flight that became due in this order."""
    made = QueueDelivery(QueueKey("g", "t", 0), 0)
    plan = made.plan(100, 100)
    plan.delivered += [InFlight(each, 1, 50, 1, f"m{each}", "c") for each in sorted(offsets)]
    plan.cursor = max(offsets) + 1
    made.commit(plan)
    for offset in offsets:
        made.wake(made.in_flight[offset], 50)
    return made


def test_concurrent_consumers_get_what_was_due_first_and_new_messages_beside_it() -> None:
    plan = with_ready(2, 0, 1).plan(2, 10, policy=CONCURRENT)
    assert ([each.queue_offset for each in plan.again], plan.room) == ([2, 0], 7)


def test_a_policy_decides_on_order_and_room() -> None:
    made, policy = with_ready(2, 0, 1), InOrder()
    plan = made.plan(2, 10, policy=policy)
    assert ([each.queue_offset for each in plan.again], plan.room) == ([0, 1], 0)
    assert all(each.status == Status.READY for each in plan.again)
    held = made.in_flight[1]
    made.replace(held, replace(held, status=Status.INVISIBLE, invisible_until_ms=100))
    assert made.plan(2, 10, policy=policy).again == [], "one before them is with a client"
    for message in list(made.in_flight.values()):
        made.settle(message)
    assert made.freed(), "who was turned away by the policy is told"
    assert made.plan(2, 10, policy=policy).room == 10
