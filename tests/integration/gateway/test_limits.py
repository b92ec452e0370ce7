"""Options that bound or forbid calls, over the wire."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.prestarted import run
from tests.support.brokers.scraped import metric
from tests.support.rocketmq.requests import ask
from tests.support.waiting import LIMIT_S, wait_until


@contextmanager
def broker(folder: Path, **options: str) -> Iterator[tuple[Gateway, Client]]:
    with Gateway(folder, **OPTIONS, **options) as gateway:
        client = Client(gateway.address)
        yield gateway, client
        client.channel.close()


def test_receives_beyond_the_capacity_are_refused_and_taken_again(tmp_path: Path) -> None:
    with broker(tmp_path, pullThreadPoolQueueCapacity="2") as (gateway, client):
        answers: list[int] = []
        waiting = [
            threading.Thread(target=lambda: answers.append(client.receive("t", "g", wait_ms=200_000)[0]))
            for _ in range(2)
        ]
        for each in waiting:
            each.start()
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 2)
        assert client.receive("t", "g")[0] == pb.TOO_MANY_REQUESTS
        assert metric(gateway.metrics_port, "lakebroker_calls_refused", kind="pull") == 1

        def all_ended() -> bool:
            code = client.send("t", b"for one of them").status.code
            assert code == pb.OK, "sends have a bulkhead of their own"
            return not any(each.is_alive() for each in waiting)

        wait_until(all_ended, "the end of receives for which there are messages")
        assert pb.OK in answers
        assert client.receive("t", "g")[0] in (pb.OK, pb.MESSAGE_NOT_FOUND)
        assert metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 0
        assert metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="send") == 0


def test_remoting_requests_count_with_calls_of_their_kind(tmp_path: Path) -> None:
    with broker(tmp_path, pullThreadPoolQueueCapacity="1", adminBrokerThreadPoolQueueCapacity="1") as (
        gateway,
        client,
    ):
        assert client.send("t", b"x").status.code == pb.OK
        waiting = threading.Thread(target=lambda: client.receive("empty", "g", wait_ms=200_000))
        waiting.start()
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 1)
        pull = {"topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
        busy = ask(gateway.remoting_address, RequestCode.PULL_MESSAGE, **pull)
        assert busy.code == ResponseCode.SYSTEM_BUSY
        assert "start flow control for a while" in (busy.remark or "")
        assert "pullThreadPoolQueueCapacity=1" in (busy.remark or "")
        assert metric(gateway.metrics_port, "lakebroker_calls_refused", kind="pull") == 1
        assert ask(gateway.remoting_address, RequestCode.GET_BROKER_RUNTIME_INFO).code == 0, "another kind"
        client.send("empty", b"x")
        waiting.join(LIMIT_S)
        assert (
            ask(gateway.remoting_address, RequestCode.PULL_MESSAGE, **pull).code != ResponseCode.SYSTEM_BUSY
        )
        codes = together(gateway, [Command(RequestCode.GET_ALL_TOPIC_CONFIG)] * 20)
        assert set(codes) == {0, ResponseCode.SYSTEM_BUSY}
        assert metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="admin broker") == 0
        assert ask(gateway.remoting_address, RequestCode.GET_ALL_TOPIC_CONFIG).code == 0


def together(gateway: Gateway, commands: list[Command]) -> list[int]:
    """Codes of the answers to commands that are sent at the same time, on one connection."""

    async def invoke() -> list[int]:
        client = RemotingClient()
        try:
            address = f"127.0.0.1:{gateway.remoting_port}"
            answers = await asyncio.gather(*(client.invoke(address, each, LIMIT_S) for each in commands))
            return [each.code for each in answers]
        finally:
            await client.close()

    return asyncio.run(invoke())


def test_a_receive_whose_caller_left_makes_room(tmp_path: Path) -> None:
    with broker(tmp_path, pullThreadPoolQueueCapacity="1") as (gateway, client):
        gone = Client(gateway.address)
        left = threading.Thread(target=_receive_until_closed, args=(gone,))
        left.start()
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 1)
        gone.channel.close()
        left.join(LIMIT_S)
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 0)
        assert client.receive("t", "g")[0] == pb.MESSAGE_NOT_FOUND


def test_a_connection_without_calls_is_closed(tmp_path: Path) -> None:
    with broker(tmp_path, serverChannelMaxIdleTimeSeconds="1") as (_, client):
        client.send("t", b"x")
        idle = threading.Event()

        def heard(state: grpc.ChannelConnectivity) -> None:
            if state is grpc.ChannelConnectivity.IDLE:
                idle.set()

        client.channel.subscribe(heard)
        assert idle.wait(LIMIT_S), "the server said goodbye"
        client.channel.unsubscribe(heard)
        assert client.send("t", b"x").status.code == pb.OK, "and takes the next connection"


def test_system_topics_are_there_and_tasks_say_how_they_went(tmp_path: Path) -> None:
    with broker(tmp_path) as (gateway, _):
        arguments = ("--gateway", gateway.address, "--json")
        assert _json("topic", "list", *arguments) == []
        names = {row["name"] for row in _json("topic", "list", "--system", *arguments)}
        assert {"TBW102", "SELF_TEST_TOPIC", "DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= names
        wait_until(
            lambda: metric(gateway.metrics_port, "lakebroker_task_last_run_seconds", task="redelivery") > 0
        )
        tasks = {row["name"]: row for row in _json("tasks", *arguments)}
        assert tasks["redelivery"]["runs"] > 0
        assert set(tasks) == {
            "redelivery",
            "peers",
            "housekeeping",
            "self-check",
            "retention",
            "broker-statistics",
            "protect-broker",
            "load-report",
            "dispatch-lag",
            "ordered-sends",
            "lite-subscriptions",
            "lite-topics",
            "put-off-files",
        }
        assert tasks["redelivery"]["failures"] == 0
        assert tasks["redelivery"]["last_run_ms"] > 0
        assert tasks["protect-broker"]["period_ms"] == 180_000
        assert metric(gateway.metrics_port, "lakebroker_task_failures", task="redelivery") == 0


def receive_request(wait_ms: int) -> rpc.ReceiveMessageRequest:
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name="g"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name="t"), id=-1),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=1,
    )
    request.invisible_duration.FromSeconds(10)
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    return request


def _receive_until_closed(client: Client) -> None:
    with pytest.raises(grpc.RpcError):
        client.call("ReceiveMessage", receive_request(wait_ms=200_000), timeout=210.0)


def _json(*arguments: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(run(*arguments, check=True).stdout)
    return rows
