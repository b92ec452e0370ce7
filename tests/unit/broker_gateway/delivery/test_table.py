"""Which groups have a state on a topic: kept in step, and found without a walk through all states."""

from __future__ import annotations

import itertools
import random
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import pytest

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable


def test_groups_and_topics_follow_what_is_made_and_forgotten() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    chance = random.Random(7)
    known: set[QueueKey] = set()
    for _ in range(3000):
        key = QueueKey(chance.choice("gh"), chance.choice("tuv"), chance.randrange(3))
        if chance.random() < 0.5:
            table.forget(key)
            known.discard(key)
        else:
            table.queue(key) if chance.random() < 0.5 else table.restore(key, 3)
            known.add(key)
        assert {state.key for state in table.queues()} == known
        for group in "gh":
            assert table.topics_of(group) == {each.topic for each in known if each.group == group}
            assert sorted(table.keys_of_group(group)) == sorted(e for e in known if e.group == group)
        for topic in "tuv":
            assert table.groups_of(topic) == {each.group for each in known if each.topic == topic}
            assert sorted(table.keys_of_topic(topic)) == sorted(e for e in known if e.topic == topic)
        assert table.topics_by_group() == {
            group: {each.topic for each in known if each.group == group}
            for group in {each.group for each in known}
        }


class Counted(dict[Any, Any]):
    """A dictionary that counts what is walked through of it, by its iterators and by those of its views."""

    walked = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            Counted.walked += 1
            yield key

    def keys(self) -> Any:
        return KeysView(self)

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def copy(self) -> Any:
        Counted.walked += len(self)
        return super().copy()


def test_one_topic_of_many_is_found_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard asks for each topic each minute: no table of all states, topics or groups is gone through."""
    table = DeliveryTable(lambda topic, queue_id: 0)
    for group, topic in itertools.product(range(10), range(50)):
        table.queue(QueueKey(f"g{group}", f"t{topic}", 0))
    tables = [
        (owner, name)
        for owner in (table, *vars(table).values())
        if type(owner).__module__ == DeliveryTable.__module__
        for name, each in vars(owner).items()
        if type(each) is dict
    ]
    assert len(tables) >= 3, "the states, their topics and their groups"
    for owner, name in tables:
        monkeypatch.setattr(owner, name, Counted(getattr(owner, name)))
    assert len(list(table.queues())) == 500
    assert Counted.walked >= 500, "a walk is counted"
    Counted.walked = 0
    for topic in range(50):
        assert len(table.groups_of(f"t{topic}")) == 10
        assert len(table.keys_of_topic(f"t{topic}")) == 10
    for group in range(10):
        assert len(table.topics_of(f"g{group}")) == 50
        assert len(table.keys_of_group(f"g{group}")) == 50
    assert Counted.walked == 0


def test_who_holds_a_forgotten_state_disturbs_no_other() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    gone, stays = table.queue(QueueKey("g", "t", 0)), table.queue(QueueKey("h", "t", 0))
    for state in (gone, stays):
        state.restore(InFlight(0, 1, 1000, 1, "m", "me"))
    table.forget(gone.key)
    assert not gone.in_flight
    gone.restore(InFlight(1, 1, 1000, 2, "n", "me"))
    assert table.pop_due(2000) is stays
    assert table.pop_due(2000) is None
