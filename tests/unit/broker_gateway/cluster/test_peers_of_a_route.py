"""Which brokers of a name server's route are lakebrokers, and where."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker_gateway.api.remoting.administration.configuration import OptionAdministration
from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.api.remoting.broker_requests import BrokerRequests
from broker_gateway.auth.policy import LoopbackPolicy
from broker_gateway.cluster.broker_config import (
    GET_BROKER_CONFIG,
    MAX_BODY,
    PUBLIC,
    Member,
    NoMemberError,
    member_of,
)
from broker_gateway.cluster.peer_routes import masters, merged
from broker_gateway.config.gateway import load_config
from broker_gateway.config.reload import Configuration
from broker_gateway.protocol.body.route import BrokerData, QueueData
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors


def test_masters_of_others() -> None:
    datas = [
        BrokerData("c", "own", {0: "h:1"}),
        BrokerData("c", "a", {0: "h:2", 1: "h:3"}),
        BrokerData("c", "slave-only", {1: "h:4"}),
    ]
    assert masters(datas, "own") == {"a": "h:2"}


def test_only_members_are_in_a_route_in_the_order_of_their_names() -> None:
    a, b = Member("a", "h", 1), Member("b", "h", 2)
    route = [QueueData("b", 1, 1), QueueData("theirs", 4, 4), QueueData("a", 2, 2), QueueData("a", 3, 3)]
    assert merged(route, {"b": b, "a": a, "silent": Member("silent", "h", 3)}) == [
        (a, route[3]),
        (b, route[0]),
    ]
    assert merged(route, {}) == []


def configuration(**options: str) -> bytes:
    config, _ = load_config(None, {"brokerName": "a", "brokerIP1": "10.0.0.7", "grpcServerPort": "8081"}, {})
    shown = {**config.options(), **options}
    return "".join(f"{name}={value}\n" for name, value in shown.items()).encode()


def test_a_member_says_where_it_serves() -> None:
    assert member_of("a", configuration()) == Member("a", "10.0.0.7", 8081)
    assert member_of("a", configuration(brokerIP1="::1")).host == "::1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"brokerName=a\nbrokerIP1=h\ngrpcServerPort=8081\n", "no lakebroker"),
        (b"", "no lakebroker"),
        (b"\xff\xfe\x00", "no lakebroker"),
        (configuration(brokerName="other"), "'other'"),
        (configuration(grpcServerPort="0"), "grpcServerPort '0'"),
        (configuration(grpcServerPort="70000"), "grpcServerPort '70000'"),
        (configuration(grpcServerPort="80 81"), "grpcServerPort"),
        (configuration(brokerIP1="a b"), "brokerIP1 'a b'"),
        (b"x" * (MAX_BODY + 1), str(MAX_BODY)),
    ],
)
def test_others_are_none_and_it_is_said_why(body: bytes, reason: str) -> None:
    with pytest.raises(NoMemberError, match=reason):
        member_of("a", body)


def test_other_machines_are_told_only_where_it_serves() -> None:
    async def test() -> None:
        config = load_config(None, {"brokerName": "a", "lakeTokenFile": "/secret"}, {})[0]
        configuration = Configuration(config)
        shown = ShownOptions(configuration)
        options: Any = SimpleNamespace(options=OptionAdministration(configuration, shown, 0))
        processors = Processors()
        BrokerRequests(options, LoopbackPolicy(lambda: False, "")).bind(processors)
        processor = processors.by_code[RequestCode.GET_BROKER_CONFIG]
        connection = Connection(Processors(), ConnectionOptions())
        told = {}
        for host in ("127.0.0.1", "::1", "10.0.0.1"):
            connection.peer_host = host
            answer = processor(connection, GET_BROKER_CONFIG)
            assert isinstance(answer, Command)
            told[host] = answer.body
        assert b"lakeTokenFile=/secret\n" in told["127.0.0.1"]
        assert told["127.0.0.1"] == told["::1"]
        assert {line.partition("=")[0] for line in told["10.0.0.1"].decode().splitlines()} == set(PUBLIC)
        assert member_of("a", told["10.0.0.1"]) == member_of("a", told["::1"])

    asyncio.run(test())
