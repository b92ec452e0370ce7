"""What holds of a broker's deliveries at any time, whatever clients know."""

from __future__ import annotations

from collections.abc import Mapping

from broker_gateway.delivery.arrivals import Arrivals
from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
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
        due = {(until, offset) for until, offset in state._due}
        for offset, message in state.in_flight.items():
            ready, returned = offset in state._ready, offset in state._returned
            assert (ready, returned) == (
                message.status == Status.READY,
                message.status == Status.RETURNED,
            )
            held = message.status == Status.HELD
            assert held == (offset in state._held)
            if not ready and not held:
                assert (message.invisible_until_ms, offset) in due, (
                    f"{state.key}: {message} is due at no time"
                )
                assert state.scheduled_ms <= message.invisible_until_ms
                assert (state.scheduled_ms, state.key) in deliveries._due
        new = broker.store.index.max_offset(*state.key[1:]) > state.position
        if state._groups is None:
            can_be_had = bool(state._ready or state._returned or state._held)
        else:
            can_be_had = state._groups.any_open
            _check_open(state, groups)
        assert not (new or can_be_had) or _looked_at(deliveries.arrivals, state.key), (
            f"nobody looks at {state.key}"
        )


def _check_open(state: QueueDelivery, groups: Mapping[Place, str]) -> None:
    """Of each message group the first can be had, unless it is due later or a client has one."""
    assert state._groups is not None
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
    assert set(state._groups._open) == can_be_had


def _looked_at(arrivals: Arrivals, key: QueueKey) -> bool:
    """Whether the next look of a group is at a queue, too."""
    topic = arrivals._topics.get(key.topic)
    looked = None if topic is None else topic.groups.get(key.group)
    if topic is None or looked is None:  # its first look is at all
        return True
    return key.queue_id in looked.queues or topic.appended.get(key.queue_id, 0) > looked.compared
