"""Brokers that went: how much is done in a tick of the loop, who stays, and what is seen meanwhile."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.nameserver.brokers import MinBrokerIdChange
from broker_gateway.nameserver.config import load_config
from broker_gateway.nameserver.lost_brokers import WORK
from broker_gateway.nameserver.route_queries import topics_of_cluster
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.nameserver.state import State
from tests.support.brokers.registrations import (
    Clock,
    addresses,
    mapping_of,
    nothing_is_left,
    registration,
    route,
)

TOPICS = [f"t{number}" for number in range(3 * WORK)]


class Brokers:
    """A name server's state without sockets, on a loop; the test moves its time."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.told: list[MinBrokerIdChange] = []
        given = {
            "kvConfigPath": str(folder / "kv"),
            "configStorePath": str(folder / "options"),
            "notifyMinBrokerIdChanged": "true",
        }
        self.state = State(load_config(None, given, {})[0], self.clock, self.told.append)
        self.table = self.state.routes
        self.lost_brokers = self.state.lost_brokers

    async def ticks(self, count: Callable[[], int]) -> list[int]:
        """By how much a count falls in each tick until nothing is left to do."""
        falls = []
        while self.lost_brokers.scheduled is not None:
            before = count()
            await asyncio.sleep(0)
            falls.append(before - count())
        return falls


@pytest.fixture
def brokers(tmp_path: Path) -> Brokers:
    return Brokers(tmp_path)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_a_turn_clears_so_many_topics(brokers: Brokers) -> None:
    async def test() -> None:
        table = brokers.table
        for number in range(3):
            table.register(registration(0, f"h:{number}", *TOPICS, name=f"b{number}"), "conn")
        brokers.lost_brokers.connection_closed("conn")
        falls = await brokers.ticks(lambda: sum(map(len, table.topics.queues.values())))
        assert sum(falls) == 3 * len(TOPICS)
        assert max(falls) <= WORK
        assert nothing_is_left(table)

    run(test)


def test_unregistering_on_request_is_spread_as_well(brokers: Brokers) -> None:
    async def test() -> None:
        brokers.table.register(registration(0, "h:1", *TOPICS), "conn")
        brokers.table.unregister("c", "h:1", "b", 0)
        assert route(brokers.table, "t0") is None
        falls = await brokers.ticks(lambda: len(brokers.table.topics.queues))
        assert (sum(falls), max(falls)) == (len(TOPICS), WORK)

    run(test)


@pytest.mark.parametrize("names", ["of one name", "at one address", "apart"])
def test_a_turn_removes_so_many_brokers(brokers: Brokers, names: str) -> None:
    """What removing costs grows with the ids of a name."""

    async def test() -> None:
        for number in range(600):
            name = "b" if names == "of one name" else f"b{number}"
            address = "h:1" if names == "at one address" else f"h:{number + 1}"
            broker_id = number if names == "of one name" else 0
            brokers.table.register(registration(broker_id, address, name=name), "conn")
        brokers.lost_brokers.connection_closed("conn")
        falls = await brokers.ticks(
            lambda: sum(len(each.broker_addrs) for each in brokers.table.brokers.values())
        )
        assert sum(falls) == 600
        assert max(falls) < 250
        assert nothing_is_left(brokers.table)

    run(test)


def test_silent_brokers_go_in_turns_and_who_is_heard_stays(brokers: Brokers) -> None:
    async def test() -> None:
        for number in range(400):
            brokers.table.register(registration(0, f"h:{number + 1}", name=f"b{number}"), number)
        brokers.clock.now += 120_001
        ended: list[int] = []
        for key, connection in brokers.table.live.expired() * 2:  # two looks
            brokers.lost_brokers.silent(key, lambda number=connection: ended.append(number))
        await asyncio.sleep(0)
        assert 200 < len(brokers.table.live) < 400
        brokers.table.live.touch("c", "h:400")
        falls = await brokers.ticks(lambda: len(brokers.table.live))
        assert max(falls) < 250
        assert list(brokers.table.live) == [("c", "h:400")]
        assert ended == list(range(399)), "each once"

    run(test)


def test_a_broker_that_registers_anew_meanwhile_stays(brokers: Brokers) -> None:
    async def test() -> None:
        table = brokers.table
        info = {"t0": mapping_of("b")}
        table.register(registration(0, "h:1", *TOPICS, topic_queue_mapping_info_map=info), "old")
        brokers.lost_brokers.connection_closed("old")
        table.register(registration(0, "h:1", "t0", "new"), "new")
        await brokers.ticks(lambda: 0)
        assert addresses(table, "t0") == {0: "h:1"}, "registered anew before its turn came"

        brokers.lost_brokers.connection_closed("new")
        await asyncio.sleep(0)
        assert route(table, "t0") is None
        table.register(registration(0, "h:1", "t0", "t1"), "newest")
        found = route(table, "t0")
        assert found is not None
        assert not found.topic_queue_mapping_by_broker, "that of the one that went"
        assert route(table, "t2") is None
        assert set(topics_of_cluster(table, "c").topic_list) == {"t0", "t1"}
        await brokers.ticks(lambda: 0)
        assert sorted(table.topics.queues) == ["t0", "t1"]
        assert addresses(table, "t1") == {0: "h:1"}

    run(test)


def test_who_brings_topics_faster_than_they_are_cleared_clears_as_many(brokers: Brokers) -> None:
    async def test() -> None:
        table = brokers.table
        for number in range(5):
            topics = [f"{number}-{each}" for each in range(1000)]
            table.register(registration(0, "h:1", *topics), number)
            table.unregister("c", "h:1", "b", 0)
            assert len(table.topics.queues) == 1000
        brokers.lost_brokers.stop()

    run(test)


def test_what_is_told_while_brokers_go(brokers: Brokers) -> None:
    async def test() -> None:
        for number in range(3):
            brokers.table.register(registration(number, f"h:{number + 1}", acting=True), number)
        brokers.lost_brokers.connection_closed(0)
        await brokers.ticks(lambda: 0)
        assert brokers.told == [MinBrokerIdChange("b", 1, "h:2", "h:1", None, ("h:2", "h:3"))]

    run(test)


def test_a_broker_that_cannot_be_removed_holds_up_no_other(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    unregister = RouteTable.unregister_one

    def failing(table: RouteTable, cluster: str, address: str) -> MinBrokerIdChange | None:
        if address == "h:1":
            raise RuntimeError("tried")
        return unregister(table, cluster, address)

    async def test() -> None:
        for number in (1, 2):
            brokers.table.register(registration(0, f"h:{number}", name=f"b{number}"), number)
            brokers.lost_brokers.connection_closed(number)
        monkeypatch.setattr(RouteTable, "unregister_one", failing)
        await brokers.ticks(lambda: 0)
        assert list(brokers.table.live) == [("c", "h:1")]
        monkeypatch.undo()
        brokers.clock.now += 120_001
        brokers.lost_brokers.silent(("c", "h:1"), lambda: None)
        await brokers.ticks(lambda: 0)
        assert nothing_is_left(brokers.table)

    run(test)


def test_routes_are_those_of_a_table_that_is_cleared_at_once() -> None:
    chosen = random.Random(7)
    lazy, eager = RouteTable(Clock()), RouteTable(Clock())
    topics = ["orders", "other", "third", "more"]
    for _ in range(3000):
        name, number = chosen.choice("ab"), chosen.randrange(2)
        address, step = f"h:{chosen.randrange(1, 4)}", chosen.randrange(5)
        given = registration(
            number,
            address,
            *chosen.sample(topics, 2),
            name=name,
            acting=chosen.choice([None, True]),
            version=chosen.randrange(100),
            topic_queue_mapping_info_map={"orders": mapping_of(name)} if chosen.randrange(2) else {},
        )
        for table in (lazy, eager):
            if step < 3:
                table.register(given, "conn")
            elif step == 3:
                table.unregister_one("c", address)
            else:
                table.delete_topic("orders")
        lazy.topics.cleanup.clear(chosen.randrange(2))
        eager.topics.cleanup.clear(sys.maxsize)
        for topic in topics:
            assert seen(lazy, topic) == seen(eager, topic)
        for name in "ab":
            assert lazy.held.queue_datas.of(name) == eager.held.queue_datas.of(name)
            assert lazy.held.mapped_queues.of(name) == eager.held.mapped_queues.of(name)


def seen(table: RouteTable, topic: str) -> Any:
    found = route(table, topic)
    if found is None:
        return None
    queues = {each.broker_name: each for each in found.queue_datas}
    return (
        queues,
        {each.broker_name: each for each in found.broker_datas},
        found.topic_queue_mapping_by_broker or {},
    )
