"""The retry policy that consumers get over Telemetry, in answer to their settings and when the group is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from tests.support.waiting import LIMIT_S

CONTEXT = CallContext({"x-mq-client-id": "consumer"}, "127.0.0.1:50000", None, ("127.0.0.1", 8081))
USUAL_S = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


class Consumer:
    """A connected consumer of group `g`."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._broker = broker
        self._ended = broker.run(_event())
        self._stream = broker.telemetry(self._commands(), CONTEXT)

    async def _commands(self) -> AsyncIterator[rpc.TelemetryCommand]:
        subscription = pb.Subscription(group=pb.Resource(name="g"))
        yield rpc.TelemetryCommand(
            settings=pb.Settings(
                client_type=pb.PUSH_CONSUMER,
                subscription=subscription,
                backoff_policy=pb.RetryPolicy(max_attempts=99, exponential_backoff=pb.ExponentialBackoff()),
            )
        )
        await self._ended.wait()

    def told(self) -> pb.RetryPolicy:
        """The policy in the next command."""

        async def next_one() -> rpc.TelemetryCommand:
            return await asyncio.wait_for(anext(self._stream), LIMIT_S)

        command = self._broker.run(next_one())
        assert command.status.code == pb.OK
        return command.settings.backoff_policy

    def leave(self) -> None:
        async def rest() -> list[Any]:
            self._ended.set()
            return [command async for command in self._stream]

        assert self._broker.run(rest()) == []


async def _event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_group("g", retry_max_times=3)
        yield broker


def put(broker: InProcessBroker, policy: Any) -> None:
    text = json.dumps({"groupRetryPolicy": policy})
    broker.call("PutGroup", admin_pb2.PutGroupRequest(group=admin_pb2.Group(name="g", configuration=text)))


def seconds(policy: pb.RetryPolicy) -> list[float]:
    assert policy.WhichOneof("strategy") == "customized_backoff"
    return [each.ToMilliseconds() / 1000 for each in policy.customized_backoff.next]


def test_a_group_without_a_policy_has_rocketmqs(broker: InProcessBroker) -> None:
    consumer = Consumer(broker)
    policy = consumer.told()
    assert policy.max_attempts == 4
    assert seconds(policy) == USUAL_S
    consumer.leave()


def test_a_changed_policy_goes_to_connected_consumers_at_once_and_survives(broker: InProcessBroker) -> None:
    consumer = Consumer(broker)
    consumer.told()
    put(broker, {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 500, 2500]}})
    assert seconds(consumer.told()) == [0, 0.5, 2.5]
    exponential = {"initial": 1500, "max": 60_000, "multiplier": 3}
    put(broker, {"type": "EXPONENTIAL", "exponentialRetryPolicy": exponential})
    for each in (consumer, None):
        if each is None:
            consumer.leave()
            broker.crash()
            consumer = Consumer(broker)
        policy = consumer.told()
        assert policy.max_attempts == 4
        assert policy.WhichOneof("strategy") == "exponential_backoff"
        backoff = policy.exponential_backoff
        assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()) == (1500, 60_000)
        assert backoff.multiplier == 3
    put(broker, None)
    assert seconds(consumer.told()) == USUAL_S, "null is RocketMQ's default again"
    consumer.leave()


def test_no_wait_is_longer_than_clients_may_ask_for() -> None:
    with InProcessBroker(maxInvisibleTimeMills="60000") as broker:
        broker.create_group("g", retry_max_times=3)
        put(broker, {"customizedRetryPolicy": {"next": [1000, 43_200_000]}})
        consumer = Consumer(broker)
        assert seconds(consumer.told()) == [1, 60]
        put(broker, {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 70_000, "max": 90_000}})
        backoff = consumer.told().exponential_backoff
        assert (backoff.initial.seconds, backoff.max.seconds) == (60, 60)
        consumer.leave()


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ('{"groupRetryPolicy":{"type":"X"}}', "group g: type of groupRetryPolicy is 'X'"),
        (
            '{"groupRetryPolicy":{"customizedRetryPolicy":{"next":[NaN]}}}',
            r"next\[0\] of customizedRetryPolicy is nan",
        ),
        (
            '{"groupRetryPolicy":{"customizedRetryPolicy":{"next":[-1]}}}',
            r"next\[0\] of customizedRetryPolicy is -1",
        ),
        ('{"retryMaxTimes":3}', "retryMaxTimes is not set by the configuration"),
        ('{"attributes":{"+x":"1"}}', "'x' is unsupported"),
        ("{", "is no JSON"),
        ("[" * 10_000, "is no JSON: .*recursion"),
        ("[]", "is no JSON object"),
        ('{"new":"' + "x" * 20_000 + '"}', "20010 characters: 16384 are allowed"),
    ],
)
def test_what_makes_no_sense_changes_nothing(broker: InProcessBroker, configuration: str, why: str) -> None:
    before = broker.broker.catalog.group("g")
    asked = admin_pb2.Group(name="g", retry_max_times=9, configuration=configuration)
    with pytest.raises(RpcError, match=why) as refused:
        broker.call("PutGroup", admin_pb2.PutGroupRequest(group=asked))
    assert refused.value.code == "INVALID_ARGUMENT"
    assert broker.broker.catalog.group("g") == before


def test_lists_say_what_is_not_as_in_rocketmq(broker: InProcessBroker) -> None:
    put(broker, {"type": "EXPONENTIAL"})
    broker.create_group("plain")
    groups = broker.call("ListGroups", admin_pb2.ListGroupsRequest()).groups
    assert {each.name: each.configuration for each in groups} == {
        "g": '{"groupRetryPolicy":{"type":"EXPONENTIAL"}}',
        "plain": "",
    }
