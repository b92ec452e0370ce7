"""Where groups find something: an append costs the same however many have searched, and none of them misses it."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from broker_gateway.delivery.arrivals import Arrivals
from broker_gateway.delivery.queue_delivery import QueueKey
from lakebroker_testing.broker import InProcessBroker


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, compiled ones too, are called by some work."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what it removes may call something
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


def test_an_append_costs_the_same_for_any_number_of_groups() -> None:
    with InProcessBroker() as broker:
        broker.create_topic("t", queues=4)
        broker.send("t", b"warm")
        wakeups = broker.broker.wakeups
        costs = []
        for groups in (1, 500):
            for number in range(groups):
                broker.receive("t", f"g{number}")
            waiting = broker.begin_receive("t", "g0", wait_ms=60_000)
            assert not waiting.done
            costs.append(broker.do(lambda: calls_of(lambda: wakeups.arrived("t", (0,)))))
            broker.hang_up(waiting)
        assert costs[0] == costs[1]


def test_every_group_finds_what_was_appended_since_it_looked() -> None:
    """As a model says that has a set of queues for each group."""
    chance = random.Random(11)
    arrivals, model, last = Arrivals(), dict[str, set[int]](), 0
    for _ in range(5000):
        group, queue_id = chance.choice("abc"), chance.randrange(8)
        key = QueueKey(group, "t", queue_id)
        before, offered = arrivals.last("t"), False
        match chance.randrange(7):
            case 0 | 1:
                arrivals.appended("t", queue_id)
                offered = bool(model)
                for queues in model.values():
                    queues.add(queue_id)
            case 2 | 3:
                arrivals.nothing_left(key)
                model.get(group, set()).discard(queue_id)
            case 4:
                assert arrivals.queues_to_search(group, "t", 8) == model.setdefault(group, set(range(8)))
            case 5:
                arrivals.came_back(key)
                offered = bool(model)
                model.get(group, set()).add(queue_id)
            case _ if chance.random() < 0.1:
                arrivals.forget(group, "t")
                model.pop(group, None)
        assert not offered or arrivals.last("t") > max(before, last)
        last = max(last, arrivals.last("t"))
    assert arrivals.queues_to_search("d", "t", 8) == set(range(8))


def test_queues_that_a_topic_gets_are_looked_at() -> None:
    arrivals = Arrivals()
    arrivals.queues_to_search("g", "t", 2).clear()
    before = arrivals.last("t")
    arrivals.queues_changed("t")
    assert arrivals.last("t") > before, "who is about to wait searches again"
    assert arrivals.queues_to_search("g", "t", 4) == {0, 1, 2, 3}


def test_of_topics_that_nobody_looks_at_nothing_is_kept() -> None:
    arrivals = Arrivals()
    for number in range(100):
        arrivals.appended(f"t{number}", 0)
        arrivals.queues_changed(f"t{number}")
    key = QueueKey("g", "t", 0)
    arrivals.queues_to_search("g", "t", 2)
    arrivals.came_back(key)
    arrivals.forget("g", "t")
    arrivals.came_back(key)
    assert {arrivals.last(topic) for topic in ("t", *[f"t{number}" for number in range(100)])} == {0}
    assert arrivals.queues_to_search("g", "t", 2) == {0, 1}
