"""What is under way is bounded and shared out, and what waited too long is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_gateway.api.grpc.guarded import Guarded
from broker_gateway.api.remoting.bulkheads import admitted, bulkhead_of
from broker_gateway.messaging.admission import Admission
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.reply import Reply
from broker_gateway.runtime.tick import Stage, Tick
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors
from lakebroker_testing.clock import ManualClock
from tests.support.brokers.bulkheads import OWN, STRANGER, fill, options


def test_replies_count_until_they_are_given_cancelled_or_abandoned() -> None:
    bulkhead = Admission(options(ackThreadPoolQueueCapacity="3"), Tick()).ack
    given, cancelled, abandoned = (Reply[int](None, bulkhead) for _ in range(3))
    assert bulkhead.under_way == 3
    with pytest.raises(
        ServiceError, match=r"3 ack calls are under way \(ackThreadPoolQueueCapacity=3\)"
    ) as full:
        bulkhead.check("127.0.0.1:1")
    assert full.value.reason is Reason.TOO_MANY_REQUESTS
    given.set(1)
    given.set(2)
    assert bulkhead.under_way == 2
    bulkhead.check("127.0.0.1:1")
    cancelled.cancel()
    cancelled.set(1)
    heard: list[int] = []
    abandoned = Reply(lambda: heard.append(1), bulkhead)
    abandoned.abandon()
    assert heard == []
    assert bulkhead.under_way == 1
    assert bulkhead.refused == 1


def test_every_kind_has_its_option() -> None:
    admission = Admission(options(), Tick())
    assert {bulkhead.name: bulkhead.capacity for bulkhead in admission.bulkheads()} == {
        "send": 10_000,
        "pull": 100_000,
        "ack": 100_000,
        "query": 20_000,
        "client manager": 1_000_000,
        "consumer manager": 1_000_000,
        "heartbeat": 50_000,
        "end transaction": 100_000,
        "admin broker": 10_000,
        "load balance": 100_000,
    }
    assert {bulkhead.wait_s for bulkhead in admission.bulkheads()} == {0.0}, "not while the process starts"
    admission.check_waiting()
    assert {bulkhead.name: bulkhead.wait_s for bulkhead in admission.bulkheads() if bulkhead.wait_s} == {
        "send": 0.2,
        "pull": 5.0,
        "ack": 3.0,
        "heartbeat": 31.0,
        "end transaction": 3.0,
        "admin broker": 5.0,
    }
    admission.configure(options(brokerFastFailureEnable="false", sendThreadPoolQueueCapacity="7"))
    assert {bulkhead.wait_s for bulkhead in admission.bulkheads()} == {0.0}
    assert admission.send.capacity == 7


def test_remoting_requests_have_the_lanes_of_the_originals_executors() -> None:
    admission = Admission(options(), Tick())
    expected = {
        RequestCode.PULL_MESSAGE: "pull",
        RequestCode.QUERY_MESSAGE: "query",
        RequestCode.VIEW_MESSAGE_BY_ID: "query",
        RequestCode.HEART_BEAT: "heartbeat",
        RequestCode.UNREGISTER_CLIENT: "client manager",
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumer manager",
        RequestCode.UPDATE_CONSUMER_OFFSET: "consumer manager",
        RequestCode.QUERY_CONSUMER_OFFSET: "consumer manager",
        RequestCode.UPDATE_AND_CREATE_TOPIC: "admin broker",
        RequestCode.GET_MAX_OFFSET: "admin broker",
    }
    assert {code: bulkhead_of(admission, code).name for code in expected} == expected


def test_a_remoting_request_given_up_before_it_began_is_not_under_way_any_more() -> None:
    async def scenario() -> None:
        bulkhead = Admission(options(adminBrokerThreadPoolQueueCapacity="1"), Tick()).admin_broker
        never = asyncio.Event()

        async def serve(_: Connection, request: Command) -> Command:
            await never.wait()
            return request.reply()

        processor = admitted(bulkhead, serve)
        connection = Connection(Processors(), ConnectionOptions())
        first = processor(connection, Command(1))
        assert isinstance(first, asyncio.Future)
        assert bulkhead.under_way == 1
        with pytest.raises(RequestError, match="adminBrokerThreadPoolQueueCapacity=1") as full:
            processor(connection, Command(1))
        assert full.value.code == ResponseCode.SYSTEM_BUSY
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert bulkhead.under_way == 0

    asyncio.run(scenario())


def test_a_call_read_late_in_a_turn_is_refused_and_the_next_turn_takes_it() -> None:
    async def scenario() -> None:
        tick = Tick()
        admission = Admission(options(waitTimeMillsInAckQueue="20", waitTimeMillsInPullQueue="60000"), tick)
        admission.check_waiting()
        tick.add(Stage.JOURNAL, lambda: None)
        admission.ack.check("127.0.0.1:1")
        clock.move(30_000_000)
        with pytest.raises(ServiceError, match=r"waited \d+ ms \(waitTimeMillsInAckQueue=20\)") as late:
            admission.ack.check("127.0.0.1:1")
        assert late.value.reason is Reason.TOO_MANY_REQUESTS
        admission.pull.check("127.0.0.1:1")
        await asyncio.sleep(0)
        admission.ack.check("127.0.0.1:1")
        clock.move(30_000_000)
        admission.ack.check("127.0.0.1:1")  # nothing of this tick was read before it

    clock = ManualClock()
    with clock.in_place():
        asyncio.run(scenario())


def test_a_guarded_service_refuses_beyond_its_lane() -> None:
    class Slow:
        def __init__(self) -> None:
            self.go = asyncio.Event()

        async def PutTopic(self, request: str, context: Any) -> str:
            await self.go.wait()
            return request

    async def scenario() -> None:
        bulkhead = Admission(options(adminBrokerThreadPoolQueueCapacity="1"), Tick()).admin_broker
        service = Slow()
        guarded = Guarded(service, bulkhead)
        context = CallContext({}, "127.0.0.1:1", None, ("127.0.0.1", 2))
        first = asyncio.create_task(guarded.PutTopic("a", context))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        with pytest.raises(RpcError, match="adminBrokerThreadPoolQueueCapacity=1") as refused:
            await guarded.PutTopic("b", context)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        service.go.set()
        assert await first == "a"
        assert await guarded.PutTopic("c", context) == "c"
        assert bulkhead.under_way == 0

    asyncio.run(scenario())


def test_one_address_does_not_take_a_lane_alone() -> None:
    bulkhead = Admission(options(ackThreadPoolQueueCapacity="100"), Tick()).ack
    taken = fill(bulkhead, STRANGER)
    assert len(taken) == 75
    with pytest.raises(
        ServiceError,
        match=r"75 ack calls .*\(ackThreadPoolQueueCapacity=100\), 25 .*10\.0\.0\.66.*lakeMaxSharePerAddress=25",
    ):
        bulkhead.check("10.0.0.66:7")
    taken += fill(bulkhead, OWN)
    assert len(taken) == 100
    for peer in (OWN, STRANGER):
        for reply in taken:
            reply.set(1)
        assert bulkhead.under_way == 0
        taken = fill(bulkhead, peer)
        assert len(taken) == 75, "what it had is given back"


def test_shares_can_be_left_out() -> None:
    bulkhead = Admission(options(ackThreadPoolQueueCapacity="100", lakeMaxSharePerAddress="100"), Tick()).ack
    assert len(fill(bulkhead, STRANGER)) == 100


def test_who_has_its_share_is_logged_once() -> None:
    bulkhead = Admission(options(pullThreadPoolQueueCapacity="100", lakeMaxWaitingReceives="40"), Tick()).pull
    with capture_logs() as logs:
        fill(bulkhead, STRANGER)
        with pytest.raises(
            ServiceError, match=r"30 pull calls .*lakeMaxWaitingReceives=40.*10 of the second"
        ):
            bulkhead.check(STRANGER)
    (said,) = logs
    assert (said["log_level"], said["address"], said["limit"]) == (
        "warning",
        "10.0.0.66",
        "lakeMaxWaitingReceives=40",
    )
