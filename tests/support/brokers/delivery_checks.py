"""What holds of a broker's deliveries at any time, whatever clients know."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from broker_gateway.delivery.arrivals import Arrivals
from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import NEVER, QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from lakebroker_testing.broker import InProcessBroker
from tests.support.brokers.delivery_known import Place


def check_queues(broker: InProcessBroker, groups: Mapping[Place, str]) -> None:
    """Of every queue of a group: order, committed offset, when messages are due. `groups`: the message group of each message."""
    deliveries = broker.broker.deliveries
    for state in deliveries.queues():
        offsets = list(state.in_flight)
        assert offsets == sorted(offsets)
        assert state.committed == min(offsets, default=state.cursor)
        assert all(offset < state.cursor for offset in offsets)
        for status in (Status.READY, Status.RETURNED, Status.HELD):
            of_status = {offset for offset, each in state.in_flight.items() if each.status == status}
            assert set(state.line(status)) == of_status
        due = {
            offset: each.invisible_until_ms
            for offset, each in state.in_flight.items()
            if each.status in (Status.INVISIBLE, Status.RETURNED)
        }
        if due:
            assert state.scheduled_ms <= min(due.values())
            assert _due(state, deliveries) == due
        if not state.without_group:
            _check_open(state, groups)
        new = broker.store.index.max_offset(*state.key[1:]) > state.position
        can_be_had = not state.quiet(now_ms=-1)  # none is due by then
        assert not (new or can_be_had) or _looked_at(deliveries.arrivals, state.key), (
            f"nobody looks at {state.key}"
        )
    scheduled = min((state.scheduled_ms for state in deliveries.queues()), default=NEVER)
    assert deliveries.next_due_ms() == (None if scheduled == NEVER else scheduled)


def _due(state: QueueDelivery, deliveries: DeliveryTable) -> dict[int, int]:
    """When messages are due, by their queue offsets: a copy of the state says it until it has none."""
    state, found = copy.deepcopy(state, {id(deliveries): deliveries}), dict[int, int]()
    while (message := state.due(NEVER)) is not None:
        found[message.queue_offset] = message.invisible_until_ms
        state.settle(message)
    return found


def _check_open(state: QueueDelivery, groups: Mapping[Place, str]) -> None:
    """Of each message group the first can be had, unless it is due later or a client has one."""
    firsts: dict[str, Status] = {}
    out: set[str] = set()
    for offset, message in state.in_flight.items():
        group = groups[state.key.queue_id, offset]
        firsts.setdefault(group, message.status)
        if message.status == Status.INVISIBLE and not message.nacked:
            out.add(group)
    can_be_had = {
        group for group, status in firsts.items() if status != Status.INVISIBLE and group not in out
    }
    # of a copy: a state remembers whether there was room for what was planned
    plan = copy.copy(state).plan(len(state.in_flight), most=0, ordered=True)
    assert {message.message_group for message in plan.again} == can_be_had


def _looked_at(arrivals: Arrivals, key: QueueKey) -> bool:
    """Whether the next search of a group is at a queue, too."""
    lite = arrivals.lite
    arrivals = copy.deepcopy(arrivals, {id(lite): lite})  # it notes who has searched
    return key.queue_id in arrivals.queues_to_search(key.group, key.topic, key.queue_id + 1)
