"""Quotas of registering hosts: what each kind counts, whose it is, and that nothing is left of who went."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from broker_gateway.nameserver.brokers import BrokerKey
from broker_gateway.nameserver.claims import OWN_MACHINE, Peer
from broker_gateway.nameserver.quotas import Held, Holder, Limits, Quotas
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.body.route import QueueData
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.trusted_hosts import trusted_hosts
from tests.support.brokers.registrations import Clock, gone, nothing_is_left, registration

LISTED = "10.9.0.0/16"


def peer(host: str) -> Peer:
    return Peer(host, trusted_hosts(LISTED))


HOSTILE, OWN, TRUSTED = (peer(host) for host in ("10.0.0.66", "10.0.0.1", "10.9.0.1"))


def mapping(name: str, queues: int) -> dict[str, Any]:
    return {"bname": name, "currIdMap": dict.fromkeys(range(queues), 0), "topic": "orders"}


def large(kind: str, name: str) -> dict[str, Any]:
    """What a registration has, with 10 of a kind."""
    if kind == "filter_servers":
        return {"filter_server_list": tuple(f"{name}:{number}" for number in range(10))}
    if kind == "mapped_queues":
        return {"topic_queue_mapping_info_map": {"orders": mapping(name, 9)}}
    return {}


def topics(kind: str) -> list[str]:
    return [f"t{number}" for number in range(10)] if kind == "queue_datas" else ["orders", "other"]


@pytest.mark.parametrize("kind", ["queue_datas", "mapped_queues", "filter_servers"])
def test_shares_of_what_a_registration_brings(kind: str) -> None:
    table = RouteTable(Clock(), Limits(**{kind: 100}))

    def register(number: int, by: Peer) -> None:
        name = f"{by.host}-{number}"
        given = registration(0, f"{by.host}:{number}", *topics(kind), name=name, **large(kind, name))
        table.register(given, by.host, peer=by)

    for number in range(1, 6):
        register(number, HOSTILE)
    with pytest.raises(
        RequestError, match=r"50 .* are registered from 10\.0\.0\.66, its share of 100.*lakeBrokerAdd"
    ):
        register(6, HOSTILE)
    register(5, HOSTILE)
    for number in range(1, 6):
        register(number, OWN if number < 3 else peer(f"10.0.1.{number}"))
    with pytest.raises(RequestError, match=r"100 .* are registered, 100 are allowed"):
        register(1, peer("10.0.2.1"))
    for number in range(1, 11):
        register(number, TRUSTED)
    with pytest.raises(RequestError, match=r"100 .* are registered, 100 are allowed; .*Try again"):
        register(11, TRUSTED)
    for host in {each.connection for each in table.live.values()}:
        gone(table, host)
    assert nothing_is_left(table)


def test_addresses_of_a_network_are_one_host() -> None:
    held = Quotas("brokers", 100)
    for number in range(1, 51):
        held.hold(number, 1, Holder.of(peer(f"2001:db8::{number:x}")))
    with pytest.raises(RequestError, match="its share"):
        held.check(51, 1, Holder.of(peer("2001:db8::ffff")))
    held.check(51, 1, Holder.of(peer("2001:db8:0:1::1")))


def test_a_name_that_another_host_takes_over_counts_for_that_one() -> None:
    table = RouteTable(Clock(), Limits(queue_datas=100))
    table.register(registration(0, "10.0.0.1:1", *topics("queue_datas")), "own", peer=OWN)
    table.register(registration(1, "10.9.0.1:1", *topics("queue_datas"), acting=True), "slave", peer=TRUSTED)
    assert table.held.queue_datas.holder("b") == Holder.of(OWN), "a slave of a master brings none"
    gone(table, "own")
    again = registration(1, "10.9.0.1:1", *topics("queue_datas"), acting=True, version=2)
    table.register(again, "slave", peer=TRUSTED)
    assert table.held.queue_datas.holder("b") == Holder.of(TRUSTED)
    table.register_topic("more", [QueueData("b", 1, 1)], OWN_MACHINE)
    assert table.held.queue_datas.holder("b") == Holder.of(TRUSTED)
    assert table.held.queue_datas.of("b") == 11


def test_what_is_counted_is_what_is_there() -> None:
    """Against a count from the start, after each of many changes."""
    chosen = random.Random(12)
    table, names = RouteTable(Clock()), [f"b{number}" for number in range(4)]
    peers = [HOSTILE, OWN, TRUSTED, OWN_MACHINE]
    for _ in range(3000):
        name, by, broker_id = chosen.choice(names), chosen.choice(peers), chosen.randrange(3)
        address, cluster = f"{by.host}:{chosen.randrange(1, 4)}", chosen.choice("cd")
        step = chosen.randrange(8)
        if step < 4:
            given = registration(
                broker_id,
                address,
                *chosen.sample(["orders", "other", "third", "more"], 3),
                name=name,
                cluster=cluster,
                acting=chosen.choice([None, True, False]),
                version=chosen.randrange(100),
                filter_server_list=tuple("f:1" for _ in range(chosen.randrange(3))),
                topic_queue_mapping_info_map={"orders": mapping(name, chosen.randrange(4))},
            )
            refused = suppressed(table.register, given, chosen.randrange(3), peer=by)
            assert not refused or "may not speak" in refused
        elif step == 4:
            suppressed(table.register_topic, "single", [QueueData(each, 1, 1) for each in names[:2]], by)
        elif step == 5:
            table.unregister(cluster, address, name, broker_id)
        elif step == 6:
            table.delete_topic(chosen.choice(["orders", "third", "single"]))
        else:
            gone(table, chosen.randrange(3))
        assert_counts(table)
        table.topics.cleanup.clear(chosen.randrange(3))
    for connection in range(3):
        gone(table, connection)
    assert nothing_is_left(table)


def suppressed(what: Any, *given: Any, **named: Any) -> str:
    """What it is refused with."""
    try:
        what(*given, **named)
    except RequestError as error:
        return str(error)
    return ""


def assert_counts_of(kind: Quotas, expected: Mapping[Any, int]) -> None:
    """These, and no others."""
    assert {key: kind.of(key) for key in expected} == expected
    assert len(kind) == sum(expected.values())


def assert_counts(table: RouteTable) -> None:
    held: Held = table.held
    names = dict[BrokerKey, set[str]]()
    for name, broker in table.brokers.items():
        for number, address in broker.broker_addrs.items():
            names.setdefault((broker.clusters[number], address), set()).add(name)
    assert_counts_of(
        held.brokers, {**dict.fromkeys(table.live, 1), **{key: len(each) for key, each in names.items()}}
    )
    assert_counts_of(held.filter_servers, {key: len(each) for key, each in table.live.filter_servers.items()})
    topics, mapped = dict[str, int](), dict[str, int]()
    for topic in table.topics.queues:
        for name in table.topics.queue_datas(topic):
            topics[name] = topics.get(name, 0) + 1
    for topic in table.topics.mappings:
        for name, each in (table.topics.mappings_of(topic) or {}).items():
            mapped[name] = mapped.get(name, 0) + 1 + len(each.get("currIdMap", ()))
    assert_counts_of(held.queue_datas, topics)
    assert_counts_of(held.mapped_queues, mapped)
