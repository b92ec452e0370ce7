"""Lite topics: one script against a gateway and, in `make evidence`, against a real RocketMQ's proxy, whose store is opened here."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_gateway.messaging.ordered_sends import bucket
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from tests.suite.evidence import LONG
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.rocketmq.lite_brokers import (
    GROUP,
    TOPIC,
    WILDCARD,
    Consumer,
    Made,
    lite_topics_in,
    our_pair,
    ours,
    real,
    real_pair,
    texts,
)
from tests.support.waiting import in_time, wait_until

both = pytest.mark.parametrize(
    "broker", [pytest.param(real, marks=LONG, id="rocketmq"), pytest.param(ours, id="lakebroker")]
)
"""`make evidence` shows that the script fits the real one; its answers do not change."""


@both
def test_the_same_comes_of_the_same_calls(tmp_path: Path, broker: Made) -> None:
    with broker(tmp_path / "broker") as side:
        settings = consumer_settings(GROUP, TOPIC, pb.LITE_PUSH_CONSUMER)
        with TelemetryClient(side.address, "lite-1", settings):
            consumer = Consumer(side.address)
            assert consumer.heartbeat() == pb.OK
            assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.OK
            for name, body in (("a", "1"), ("b", "2"), ("a", "3")):
                assert consumer.send(name, body) == pb.OK
            first = consumer.until(2)
            assert texts(first) == [("a", "1"), ("a", "3")]
            assert {each.system_properties.message_type for each in first} == {pb.LITE}
            assert {each.topic.name for each in first} == {"chat"}
            assert consumer.ack(*first) == {pb.OK}
            assert consumer.receive() == []

            assert consumer.sync(pb.COMPLETE_ADD, "a", "b", version=1) == pb.OK
            second = consumer.until(1)
            assert texts(second) == [("b", "2")]
            assert consumer.ack(*second) == {pb.OK}

            assert consumer.sync(pb.PARTIAL_REMOVE, "a") == pb.OK
            assert consumer.send("a", "4") == pb.OK
            assert consumer.receive() == []
            option = pb.OffsetOption(policy=pb.OffsetOption.MIN)
            assert consumer.sync(pb.PARTIAL_ADD, "a", offset_option=option) == pb.OK
            third = consumer.until(3)
            assert texts(third) == [("a", "1"), ("a", "3"), ("a", "4")]
            assert consumer.ack(*third) == {pb.OK}

            assert consumer.send("a.b", "x") == pb.ILLEGAL_LITE_TOPIC
            assert consumer.send("x" * 65, "x") == pb.ILLEGAL_LITE_TOPIC
            assert consumer.sync(pb.PARTIAL_ADD, "a.b") == pb.ILLEGAL_LITE_TOPIC
    if broker is real:
        found = lite_topics_in(tmp_path / "broker" / "store", "a", "b")
        assert found == {"a": ["1", "3", "4"], "b": ["2"]}


@both
def test_a_wildcard_group_receives_from_every_lite_topic(tmp_path: Path, broker: Made) -> None:
    with broker(tmp_path / "broker") as side:
        settings = consumer_settings(WILDCARD, TOPIC, pb.LITE_PUSH_CONSUMER)
        with TelemetryClient(side.address, "w-1", settings), TelemetryClient(side.address, "w-2", settings):
            one, two = Consumer(side.address, "w-1", WILDCARD), Consumer(side.address, "w-2", WILDCARD)
            assert one.heartbeat() == two.heartbeat() == pb.OK
            for name, body in (("a", "1"), ("b", "2"), ("a", "3")):
                assert one.send(name, body) == pb.OK
            assert one.receive() == [], "it has not said yet that it receives"
            assert one.sync(pb.PARTIAL_ADD, "a") == pb.INTERNAL_SERVER_ERROR
            assert one.sync(pb.PARTIAL_REMOVE, "a") == pb.OK
            assert one.sync(pb.COMPLETE_ADD) == pb.OK
            first = one.until(3)
            assert [each for each in texts(first) if each[0] == "a"] == [("a", "1"), ("a", "3")]
            assert ("b", "2") in texts(first)
            assert one.ack(*first) == {pb.OK}

            assert one.send("c", "4") == pb.OK, "a lite topic that is new"
            fourth = one.until(1)
            assert texts(fourth) == [("c", "4")]
            assert one.ack(*fourth) == {pb.OK}

            assert two.sync(pb.COMPLETE_ADD) == pb.OK
            for number in range(40):
                assert one.send(f"n{number}", "5") == pb.OK
            found: list[pb.Message] = []
            for _ in range(20):
                for consumer in (one, two):
                    some = consumer.receive(wait_ms=1000)
                    assert not some or consumer.ack(*some) == {pb.OK}
                    found += some
                if len(found) >= 40:
                    break
            assert sorted(texts(found)) == sorted((f"n{number}", "5") for number in range(40))

            assert one.sync(pb.COMPLETE_REMOVE) == pb.OK
            assert two.send("d", "6") == pb.OK
            assert texts(two.until(1)) == [("d", "6")]
            assert one.receive() == []


@pytest.mark.parametrize(
    "brokers", [pytest.param(real_pair, marks=LONG, id="rocketmq"), pytest.param(our_pair, id="lakebroker")]
)
def test_over_two_brokers_each_lite_topic_is_at_one_of_them(tmp_path: Path, brokers: Made) -> None:
    names = [f"t{number}" for number in range(12)]
    expected = {name: "broker-a" if bucket(name, 8) < 4 else "broker-b" for name in names}
    assert set(expected.values()) == {"broker-a", "broker-b"}
    settings = consumer_settings(GROUP, TOPIC, pb.LITE_PUSH_CONSUMER)
    with brokers(tmp_path / "brokers") as side, ExitStack() as stack:
        consumer = Consumer(side.address)
        at = wait_until(lambda: found if len(found := consumer.brokers()) == 2 else {})
        consumers = {}
        for endpoint in sorted(set(at.values())):
            stack.enter_context(TelemetryClient(endpoint, "lite-1", settings))
            consumers[endpoint] = Consumer(endpoint)
            assert consumers[endpoint].heartbeat() == pb.OK
        late = re.compile("did not take the subscription, or did not say so: .*( within | in time)")
        # the other broker has 2 s for its answer
        said = in_time(
            lambda: consumer.synced(pb.PARTIAL_ADD, *names), lambda said: late.search(said.message)
        )
        assert said.code == pb.OK
        for number in "12":
            for name in names:
                assert consumer.send(name, number) == pb.OK
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
        while sum(map(len, found.values())) < 2 * len(names):
            for broker, endpoint in at.items():
                some = consumers[endpoint].receive(wait_ms=1000, broker=broker)
                assert not some or consumers[endpoint].ack(*some) == {pb.OK}
                for name, body in texts(some):
                    found[name].append((broker, body))
        assert found == {name: [(broker, "1"), (broker, "2")] for name, broker in expected.items()}
