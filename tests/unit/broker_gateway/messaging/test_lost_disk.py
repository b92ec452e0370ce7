"""A broker whose disk was lost goes on with what the lake knows: nothing settled comes again, everything else does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from broker_gateway.messaging.outcome import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import bodies
from tests.suite.evidence import rounds, seeds
from tests.support.brokers.with_lake import (
    LakeBroker,
    drain,
    query,
    send,
    take_away,
)
from tests.support.lakes.maintained import reput


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        made.create_topic("t")
        made.create_topic("filler")
        made.create_group("g", 3)
        yield made


def lose_the_disk(broker: LakeBroker, **options: str) -> None:
    """All is in the lake, and the store is new."""
    broker.dispatch()
    broker.stop()
    reput(broker.root, broker.lake)
    shutil.rmtree(broker.root)
    broker.restart(**options)


def attempts(messages: list[pb.Message]) -> dict[int, int]:
    return {int(each.body): each.system_properties.delivery_attempt for each in messages}


@pytest.mark.parametrize("fifo", [False, True])
def test_after_a_lost_disk_what_was_not_settled_is_delivered(broker: LakeBroker, fifo: bool) -> None:
    broker.create_group("g", 3, fifo=fifo)
    kind = {"message_type": pb.FIFO, "message_group": "m"} if fifo else {}
    for number in range(12):
        broker.send("t", b"%d" % number, **kind)
    broker.reset("t", "g", 0, 0)
    first = broker.receive("t", "g", batch=6, invisible_ms=60_000)[1]
    broker.ack("t", "g", first[0], first[3])
    lose_the_disk(broker)
    broker.advance(1)
    broker.send("t", b"12", **kind)
    found = drain(broker, batch=3)
    if fifo:  # one client has the group's messages
        assert attempts(found) == {1: 2, 2: 2, 4: 2}
        broker.ack("t", "g", *found)
        broker.crash()
        while some := drain(broker, batch=2):
            broker.ack("t", "g", *some)
            found += some
            broker.restart()
        assert [int(each.body) for each in found] == [1, 2, 4, *range(5, 13)]
    else:
        assert attempts(found) == {1: 2, 2: 2, 4: 2, 5: 2, **dict.fromkeys(range(6, 13), 1)}
    assert attempts(found)[5] == 2
    broker.ack("t", "g", *found)
    for start_again in (broker.restart, broker.crash):
        start_again()
        broker.advance(70)
        assert drain(broker) == []
        assert broker.committed("t", "g") == 13
    broker.reset("t", "g", 0, 0)
    assert sorted(map(int, bodies(drain(broker)))) == list(range(13))


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_lost_disk_loses_and_doubles_nothing_that_was_settled(broker: LakeBroker, seed: int) -> None:
    chance = random.Random(seed)
    broker.create_group("g", 16)
    settled: list[int] = []
    sent = 0
    broker.reset("t", "g", 0, 0)
    last = rounds(2, 4) - 1
    for round in range(last + 1):
        for _ in range(chance.randrange(20, 60)):
            broker.send("t", b"%d" % sent)
            sent += 1
        for _ in range(chance.randrange(8)):
            got = broker.begin_receive("t", "g", batch=chance.randint(1, 20), wait_ms=10, invisible_ms=60_000)
            broker.advance(0.1)
            done = [each for each in got.messages if chance.random() < 0.7]
            if done:
                broker.ack("t", "g", *done)
            settled += [int(each.body) for each in done]
            if chance.random() < 0.3:
                chance.choice([broker.restart, broker.crash, broker.retire])()
        if round < last:
            lose_the_disk(broker)
            broker.advance(1)
    broker.advance(61)
    while got := drain(broker):
        broker.ack("t", "g", *got)
        settled += [int(each.body) for each in got]
    assert sorted(settled) == list(range(sent))
    assert broker.committed("t", "g") == broker.store.index.max_offset("t", 0)


def test_a_message_of_a_lost_log_that_had_its_attempts_becomes_a_dead_letter(broker: LakeBroker) -> None:
    broker.create_group("once", 0)
    send(broker, 3)
    broker.reset("t", "once", 0, 0)
    assert len(drain(broker, group="once", invisible_ms=1000, batch=2)) == 3
    lose_the_disk(broker)
    for _ in range(6):
        broker.advance(1)
    assert drain(broker, group="once") == []
    broker.reset("%DLQ%once", "g", 0, 0)
    assert bodies(drain(broker, "%DLQ%once")) == [b"0", b"1", b"2"]


def test_without_the_lake_what_it_alone_has_is_kept(broker: LakeBroker) -> None:
    send(broker, 5)
    broker.reset("t", "g", 0, 0)
    lose_the_disk(broker)
    broker.restart(lakeLocation="")
    broker.send("t", b"5")
    assert bodies(drain(broker)) == [b"5"]
    broker.restart(lakeLocation=str(broker.lake))
    assert bodies(drain(broker)) == [b"%d" % number for number in range(5)]


def test_a_store_lost_while_the_lake_is_slow_waits_in_order(broker: LakeBroker) -> None:
    send(broker, 5)
    broker.reset("t", "g", 0, 0)
    lose_the_disk(broker)
    back = take_away(broker)
    broker.send("t", b"new")
    waiting = broker.begin_receive("t", "g", wait_ms=100_000)
    assert not waiting.done
    back()
    broker.advance(31)
    assert bodies(waiting.messages) == [b"0", b"1", b"2", b"3", b"4", b"new"]


def test_after_a_lost_disk_what_was_deleted_with_its_topic_does_not_come_back(broker: LakeBroker) -> None:
    send(broker, 3)
    for topic in ("gone", "empty"):
        broker.create_topic(topic)
        broker.send(topic, b"deleted")
    for topic in ("t", "gone", "empty"):
        broker.do(partial(broker.broker.parts.topics.delete, topic))
    broker.create_topic("t")
    broker.create_topic("empty")
    broker.send("t", b"new")
    lose_the_disk(broker)
    for again in (lambda: None, broker.crash, broker.retire, broker.restart):
        again()
        assert query(broker, pb.BEGINNING).offset == 3
        broker.create_topic("gone")
        for topic, first, wanted in (("t", 3, [b"new"]), ("gone", 1, []), ("empty", 1, [])):
            with pytest.raises(ServiceError, match=rf"range \[{first}-"):
                broker.reset(topic, "g", 0, 0)
            broker.reset(topic, "g", 0, first)
            assert bodies(drain(broker, topic)) == wanted
