"""PRIORITY messages beside the real proxy: what is taken, its queue, and the order of receives."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.rocketmq.requests import create, invoke, queue_end
from tests.support.waiting import wait_until

QUEUES = 4
TYPES = {"urgent": "PRIORITY", "orders": "NORMAL", "fifo": "FIFO"}
PRIORITY, NORMAL, FIFO = pb.PRIORITY, pb.NORMAL, pb.FIFO
CASES: dict[str, dict[str, Any]] = {
    "priority": {"message_type": PRIORITY, "priority": 2},
    "priority 0": {"message_type": PRIORITY, "priority": 0},
    "priority above the queues": {"message_type": PRIORITY, "priority": 9},
    "the largest priority": {"message_type": PRIORITY, "priority": (1 << 31) - 1},
    "of type NORMAL": {"message_type": NORMAL, "priority": 1},
    "of no type": {"message_type": 0, "priority": 1},
    "with a message group": {"message_type": PRIORITY, "priority": 1, "message_group": "g"},
    "FIFO": {"message_type": FIFO, "priority": 1, "message_group": "g"},
    "without a priority": {"message_type": PRIORITY},
}
OTHERWISE = {
    ("orders", "without a priority"): ("OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("fifo", "with a message group"): ("OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("negative",): ("INTERNAL_SERVER_ERROR", "BAD_REQUEST"),
}
"""There and here; the reasons are in docs/differences.md."""


BY_CLIENT, LOOKED_AT = "by-client", "looked-at"
"""More topics of type PRIORITY."""
FACTORS = {"always": 100, "often": 50, "never": 0}
"""`priority.factor` of groups, by their names."""


class Side(NamedTuple):
    """Where clients connect, and the address for remoting requests."""

    address: str
    remoting: str


Both = tuple[Side, Side]
"""The real proxy and ours."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, rocketmq: RocketMQ) -> Iterator[Both]:
    """With the same topics and groups."""
    with Gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        sides = (
            Side(rocketmq.address, rocketmq.broker_address),
            Side(gateway.address, f"127.0.0.1:{gateway.remoting_port}"),
        )
        topics = dict.fromkeys((BY_CLIENT, LOOKED_AT), (QUEUES, "PRIORITY"))
        groups: dict[str, dict[str, Any]] = {"by-priority": {}}
        groups |= {
            name: {"attributes": {"+priority.factor": str(factor)}} for name, factor in FACTORS.items()
        }
        for side in sides:
            create(side.remoting, topics, groups)
        yield sides


@contextlib.contextmanager
def ordered(both: Both, order: str) -> Iterator[None]:
    """Both brokers give the highest priority first, or last."""
    try:
        for side in both:
            set_option(side, f"priorityOrderAsc={str(order == 'ascending').lower()}")
        yield
    finally:
        for side in both:
            set_option(side, "priorityOrderAsc=true")


def set_option(side: Side, line: str) -> None:
    answer = invoke(side.remoting, Command(RequestCode.UPDATE_BROKER_CONFIG, body=line.encode()))
    assert answer.code == 0, answer.remark


def played(side: Side, order: str) -> tuple[dict[tuple[str, ...], str], list[tuple[int, ...]]]:
    """`sent_and_received` by a client that the proxy knows, with topics of this order."""
    topics = {name: f"{name}-{order}" for name in TYPES}
    create(side.remoting, {topics[name]: (QUEUES, kind) for name, kind in TYPES.items()})
    with TelemetryClient(side.address, "c", consumer_settings("by-priority", topics["urgent"])):
        return sent_and_received(side, topics)


def first_sent(client: Client, topic: str, priority: int) -> None:
    """A message that is taken: a real proxy may not know the topic at once."""
    wait_until(
        lambda: client.send(topic, b"first", message_type=PRIORITY, priority=priority).status.code == pb.OK
    )


def wait_until_in_queues(remoting: str, topic: str, messages: int) -> None:
    wait_until(
        lambda: sum(queue_end(remoting, topic, each) for each in range(QUEUES)) == messages,
        f"{messages} messages in the queues of {topic}",
    )


def sent_and_received(
    side: Side, topics: dict[str, str]
) -> tuple[dict[tuple[str, ...], str], list[tuple[int, ...]]]:
    """The code of every send, and of what is received queue, priority and type."""
    client, urgent = Client(side.address, "c"), topics["urgent"]
    first_sent(client, urgent, 1)
    codes: dict[tuple[str, ...], str] = {}
    kept = Counter({urgent: 1})

    def send(*name: str, topic: str, **fields: Any) -> None:
        code = client.send(topic, b"x", **fields).status.code
        codes[name] = pb.Code.Name(code)
        kept[topic] += code == pb.OK

    def receive(topic: str, batch: int) -> list[pb.Message]:
        """Of a real proxy there may be none while there are messages."""
        code, messages = client.receive(topic, "by-priority", batch=batch, invisible_ms=600_000, wait_ms=5000)
        assert code == (pb.OK if messages else pb.MESSAGE_NOT_FOUND)
        return messages

    for kind, topic in topics.items():
        for name, fields in CASES.items():
            send(kind, name, topic=topic, **fields)
    later = Timestamp(seconds=int(time.time()) + 5)
    send("delayed", topic=urgent, message_type=PRIORITY, priority=1, delivery_timestamp=later)
    send("negative", topic=urgent, message_type=PRIORITY, priority=-1)
    for priority in (3, 0, 1, 2, 3):
        send(f"another {priority}", topic=urgent, message_type=PRIORITY, priority=priority)
    wait_until_in_queues(side.remoting, urgent, kept[urgent])
    received: list[tuple[int, ...]] = []

    def all_there() -> bool:
        for each in receive(urgent, batch=2):
            system = each.system_properties
            received.append((system.queue_id, system.priority, system.message_type))
        return len(received) >= kept[urgent]

    wait_until(all_there, lambda: f"{kept[urgent]} messages, after {received},")
    assert not receive(urgent, batch=2), "nothing is behind them"
    first = wait_until(lambda: receive(topics["fifo"], batch=32), "a FIFO message")[0].system_properties
    received.append((first.priority, first.message_type))
    client.close()
    return codes, received


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_what_the_real_proxy_takes_and_gives(both: Both, order: str) -> None:
    with ordered(both, order):
        (their_codes, their_messages), (our_codes, our_messages) = (played(side, order) for side in both)
    unlike = {
        name: (theirs, our_codes[name]) for name, theirs in their_codes.items() if theirs != our_codes[name]
    }
    assert unlike == OTHERWISE
    assert our_messages == their_messages
    queues = [each[0] for each in our_messages[:-1]]
    assert queues == sorted(queues, reverse=order == "ascending")
    assert set(queues) == set(range(QUEUES))


PRIORITIES = (0, 2, 1, 3, 2, 7)
"""Of the messages that an official client sends."""


def by_official_client(side: Side) -> list[tuple[str, int]]:
    """Bodies and priorities that the official Python client gets of what it sent."""
    with OfficialClient() as official:
        when_started(official, "producer", endpoints=side.address, topics=[BY_CLIENT])
        for number, priority in enumerate(PRIORITIES):
            when_started(official, "send", topic=BY_CLIENT, bodies=[str(number)], priority=priority)
        asked = {"group": "by-priority", "topics": {BY_CLIENT: "*"}, "await_s": 5}
        official.call("simple", endpoints=side.address, **asked)
        wait_until_in_queues(side.remoting, BY_CLIENT, len(PRIORITIES))
        found: list[tuple[str, int]] = []

        def receive() -> bool:
            """Whether there were any: of a real proxy there may be none while there are messages."""
            messages = when_started(official, "receive", max=2, invisible_s=600)["messages"]
            found.extend((each["body"], each["priority"]) for each in messages)
            return bool(messages)

        def all_there() -> bool:
            receive()
            return len(found) >= len(PRIORITIES)

        wait_until(all_there, lambda: f"{len(PRIORITIES)} messages, after {found},")
        assert not receive(), "nothing is behind them"
        return found


def test_an_official_client_gets_the_order_that_it_gets_of_the_real_proxy(both: Both) -> None:
    theirs, ours = (by_official_client(side) for side in both)
    assert ours == theirs
    assert theirs == [("3", 3), ("5", 7), ("1", 2), ("4", 2), ("2", 1), ("0", 0)]


RECEIVES = 200


def most_urgent(address: str) -> dict[str, int]:
    """By group, how many of its receives of one message gave one of the highest priority; there are more of each priority."""
    client = Client(address, "c")
    found = {}
    with TelemetryClient(address, "c", consumer_settings("always", LOOKED_AT)):
        first_sent(client, LOOKED_AT, 0)
        for priority in [*range(QUEUES)] * (RECEIVES + 1):
            assert client.send(LOOKED_AT, b"x", message_type=PRIORITY, priority=priority).status.code == pb.OK
    for group in FACTORS:
        with TelemetryClient(address, "c", consumer_settings(group, LOOKED_AT)):
            found[group] = 0
            for _ in range(RECEIVES):
                code, messages = client.receive(LOOKED_AT, group, batch=1, invisible_ms=300_000, wait_ms=5000)
                assert code == pb.OK
                found[group] += messages[0].system_properties.priority == QUEUES - 1
    client.close()
    return found


def test_a_groups_factor_says_how_many_receives_look_by_priority(both: Both) -> None:
    """The others begin at any of four queues: of 200, 125 of `often` and 50 of `never` give the most urgent, on average, with
    a standard deviation of 7."""
    theirs, ours = (most_urgent(side.address) for side in both)
    assert ours["always"] == RECEIVES
    assert theirs["always"] > 0.9 * RECEIVES, "a pop passes over a queue that the pop before still has locked"
    for side in (theirs, ours):
        assert 85 < side["often"] < 165, side
        assert 15 < side["never"] < 85, side
