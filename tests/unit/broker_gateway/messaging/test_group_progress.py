"""What a group has before it, and what a client has of that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging.group_progress import Accumulation, Held
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_topic("empty", 3)
        broker.create_group("audit")
        for number in range(6):
            broker.send("orders", b"%d" % number)
            broker.advance(1)
        yield broker


def now_ms(broker: InProcessBroker) -> int:
    return broker.clock.wall_ns // 1_000_000


def accumulations(broker: InProcessBroker, group: str) -> dict[str, Accumulation]:
    catalog = broker.broker.catalog
    topics = [topic for name in ("orders", "empty") if (topic := catalog.topic(name)) is not None]
    progress = broker.broker.parts.progress
    return broker.run(progress.accumulations(group, topics, now_ms(broker)))


def test_a_group_that_was_never_there_has_what_it_would_begin_with(broker: InProcessBroker) -> None:
    assert accumulations(broker, "audit") == {
        "orders": Accumulation(ready=6, delay_ms=6000),
        "empty": Accumulation(),
    }
    assert broker.committed("orders", "audit") is None, "nothing is made by looking"


def test_messages_are_with_consumers_or_ready(broker: InProcessBroker) -> None:
    begun = now_ms(broker) - 6000
    settled = broker.receive("orders", "audit", batch=2)[1]
    broker.ack("orders", "audit", *settled)
    broker.receive("orders", "audit", batch=1, invisible_ms=60_000)
    broker.receive("orders", "audit", batch=1, invisible_ms=20_000)
    found = accumulations(broker, "audit")["orders"]
    assert found == Accumulation(in_flight=2, ready=2, delay_ms=2000, settled_ms=begun + 1000)
    assert found.total == 4
    broker.advance(21)
    found = accumulations(broker, "audit")["orders"]
    assert (found.in_flight, found.ready) == (1, 3), "one came back"
    assert found.delay_ms == 24_000, "it is the oldest that is ready"


def test_what_a_client_has(broker: InProcessBroker) -> None:
    progress = broker.broker.parts.progress
    assert broker.run(progress.held("audit", "tester")) == []
    (first,) = broker.receive("orders", "audit", batch=1)[1]
    broker.ack("orders", "audit", first)
    broker.receive("orders", "audit", batch=1)
    broker.client("other").receive("orders", "audit", batch=1)
    broker.advance(1)
    broker.receive("orders", "audit", batch=1)
    at = now_ms(broker)
    assert broker.run(progress.held("audit", "tester")) == [Held("orders", 0, 1, 1, 3, 2, at)]
    assert broker.run(progress.held("audit", "other")) == [Held("orders", 0, 1, 2, 2, 1, at - 1000)]
    assert broker.run(progress.held("nobody", "tester")) == []


def test_both_together() -> None:
    one, other = Accumulation(1, 2, 3, 40, 50), Accumulation(10, 20, 30, 4, 500)
    assert one.with_other(other) == Accumulation(11, 22, 33, 40, 500)
