"""Remoting clients by their heartbeats: listed, weighed, forgotten group by group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.api.remoting.administration.connections import encode_consumers
from broker_gateway.messaging.clients import ClientRegistry, Subscription
from broker_gateway.messaging.connections import (
    MAX_HELD,
    Client,
    Connections,
    Consumer,
    ConsumerGroup,
    Heartbeat,
)
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.protocol.errors import RequestError


class Peer:
    """A connection."""

    def __init__(self, number: int) -> None:
        self.peer = f"10.0.0.1:{number}"


def peer(number: int) -> Any:
    return Peer(number)


class Read(tuple[Subscription, ...]):
    """Subscriptions that count how often they were read."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[Subscription]:
        Read.times += 1
        return super().__iter__()


def consumer(*topics: str) -> Consumer:
    return Consumer(subscriptions=Read(Subscription(topic, "*", "TAG") for topic in topics))


def connections() -> Connections:
    return Connections(ClientRegistry(10))


def beat(known: Connections, one: Any, heartbeat: Heartbeat, language: str, version: int) -> None:
    known.heartbeat(one, heartbeat, Client(heartbeat.client_id, one.peer, language, version))


def test_ids_are_listed_without_a_look_at_subscriptions() -> None:
    known = connections()
    for number in range(5):
        heartbeat = Heartbeat(f"c{number}", (), {"g" if number % 2 else "h": consumer("t")})
        beat(known, peer(number), heartbeat, "JAVA", 1)
    before = Read.times
    assert known.consumer_ids("g") == ["c1", "c3"]
    assert known.consumer_ids("h") == ["c0", "c2", "c4"]
    assert known.consumer_ids("i") == []
    assert Read.times == before


def test_a_group_that_was_unregistered_subscribes_to_nothing() -> None:
    known, one = connections(), peer(1)
    beat(known, one, Heartbeat("c", ("p",), {"g": consumer("t"), "h": consumer("t", "u")}), "JAVA", 1)
    held = known.held
    assert sorted(known.subscribers("t")) == ["g", "h"]
    known.unregister(one, None, "g")
    assert list(known.subscribers("t")) == ["h"]
    assert known.consumer_ids("g") == []
    assert 0 < known.held < held
    assert known.consumers("g") == ConsumerGroup()
    known.unregister(one, "p", "h")
    assert list(known.subscribers("t")) == []
    assert known.held == 0
    known.closed(one)


def test_an_address_has_its_share_of_what_is_held() -> None:
    known = Connections(ClientRegistry(10), 25)
    large = Heartbeat("c", (), {f"g{number}": consumer() for number in range(1000)})
    greedy = MAX_HELD // 2 // large.weight
    for number in range(greedy):
        beat(known, peer(number), large, "JAVA", 1)
    with pytest.raises(ServiceError, match=r"of 10\.0\.0\.1, which is its share"):
        beat(known, peer(greedy), large, "JAVA", 1)
    known.heartbeat("other", large, Client("c", "10.0.0.2:1", "JAVA", 1))
    assert len(known.consumer_ids("g1")) == greedy + 1


def test_the_newest_heartbeat_of_a_connection_counts() -> None:
    known, one, two = connections(), peer(1), peer(2)
    beat(known, one, Heartbeat("a", (), {"g": consumer("t"), "h": consumer()}), "JAVA", 1)
    beat(known, two, Heartbeat("b", (), {"g": consumer("u")}), "GO", 2)
    assert set(known.consumers("g").subscriptions) == {"t", "u"}
    beat(known, one, Heartbeat("a", (), {"h": consumer()}), "JAVA", 1)
    assert known.consumer_ids("g") == ["b"]
    known.closed(two)
    known.closed(one)
    assert (known.consumer_ids("h"), known.held) == ([], 0)


def test_a_consumer_is_found_by_its_group_and_id_while_it_is_connected() -> None:
    known = connections()
    one, other = peer(1), peer(2)
    beat(known, one, Heartbeat("c", ("p",), {"g": consumer("t")}), "JAVA", 9)
    beat(known, other, Heartbeat("d", (), {"g": consumer("t"), "h": consumer("t")}), "JAVA", 9)
    assert (known.consumer("g", "c"), known.consumer("g", "d"), known.consumer("h", "d")) == (
        one,
        other,
        other,
    )
    assert known.consumer("h", "c") is None
    assert known.consumer("p", "c") is None, "it produces"
    known.closed(one)
    assert known.consumer("g", "c") is None


def test_memory_is_what_is_weighed() -> None:
    few = Heartbeat("c", (), {"g": consumer("t")}).weight
    many = Heartbeat("c", (), {"g": consumer(*(f"{number:x}" for number in range(10_000)))}).weight
    assert many - few > 10_000 * 100, "far more than the 17 bytes of JSON each"
    assert Heartbeat("c", (), {"g": Consumer("x" * 64)}).weight > Heartbeat("c", (), {"g": Consumer()}).weight


def test_a_connected_group_as_tools_see_it() -> None:
    known = connections()
    subscribed = (Subscription("t", "a || b", "TAG", 3), Subscription("u", "*", "TAG", 3))
    beat(known, peer(7), Heartbeat("c", (), {"g": Consumer(subscriptions=subscribed)}), "JAVA", 9)
    assert json.loads(encode_consumers(known.consumers("g"))) == {
        "connectionSet": [
            {"clientAddr": "10.0.0.1:7", "clientId": "c", "language": "JAVA", "version": 9},
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            topic: {
                "classFilterMode": False,
                "codeSet": codes,
                "expressionType": "TAG",
                "subString": expression,
                "subVersion": 3,
                "tagsSet": tags,
                "topic": topic,
            }
            for topic, expression, tags, codes in (
                ("t", "a || b", ["a", "b"], [97, 98]),
                ("u", "*", [], []),
            )
        },
    }
    large = ConsumerGroup(subscriptions={f"{number}": subscribed[0] for number in range(180_000)})
    with pytest.raises(RequestError, match="180000 subscriptions"):
        encode_consumers(large)
