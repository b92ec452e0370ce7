"""Commands to gRPC clients: what tools ask of a consumer, and what a stop tells every client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, Processors
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from store.log.record import decode_record, offset_msg_id
from tests.support.brokers.telemetry_client import (
    TelemetryClient,
    answered,
    consumer_settings,
    in_background,
    producer_settings,
)
from tests.support.rocketmq.requests import ask
from tests.support.waiting import LIMIT_S, wait_until

ONE = {"defaultTopicQueueNums": "1", "grpcProxyRelayRequestTimeoutInSeconds": "60"}
TOPIC, GROUP, CONSUMER = "orders", "billing", "consumer-1"
RUNNING_INFO, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("commands"), **ONE) as gateway:
        yield gateway


@pytest.fixture
def consumer(gateway: Gateway) -> Iterator[TelemetryClient]:
    with TelemetryClient(gateway.address, CONSUMER, consumer_settings(GROUP, TOPIC)) as client:
        yield client


def asked(gateway: Gateway, code: int, client_id: str = CONSUMER, **fields: str) -> Command:
    named = {"consumerGroup": GROUP, "clientId": client_id, **fields}
    return ask(gateway.remoting_address, code, **named)


def sent(gateway: Gateway, body: bytes) -> tuple[str, str]:
    """The client's id of a new message, and the one of its place in the log."""
    client = Client(gateway.address)
    entry = client.send(TOPIC, body, tag="a", keys=["k"]).entries[0]
    client.close()
    pulled = ask(
        f"127.0.0.1:{gateway.remoting_port}",
        RequestCode.PULL_MESSAGE,
        consumerGroup=GROUP,
        topic=TOPIC,
        queueId="0",
        queueOffset=str(entry.offset),
        maxMsgNums="1",
    )
    record = decode_record(pulled.body, verify=False)
    return entry.message_id, offset_msg_id(record.store_host.packed, record.physical_offset)


def test_a_stack_trace_is_the_clients(gateway: Gateway, consumer: TelemetryClient) -> None:
    trace = "Thread-1\n" + "at java.lang.Thread.run\n" * 20_000
    consumer.answers = lambda command: [answered(command, text=trace)]
    answer = asked(gateway, RUNNING_INFO, jstackEnable="true")
    info = json.loads(answer.body)
    assert (answer.code, info["jstack"]) == (0, trace)
    assert [each["topic"] for each in info["subscriptionSet"]] == [TOPIC]
    consumer.answers = lambda command: [answered(command, pb.INTERNAL_ERROR)]
    assert asked(gateway, RUNNING_INFO, jstackEnable="true").code == ResponseCode.SYSTEM_ERROR
    consumer.answers = lambda command: [answered(command, pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED)]
    assert asked(gateway, RUNNING_INFO, jstackEnable="true").code == ResponseCode.NO_PERMISSION


def test_without_a_stack_trace_no_client_is_asked(gateway: Gateway, consumer: TelemetryClient) -> None:
    info = json.loads(asked(gateway, RUNNING_INFO).body)
    assert "jstack" not in info
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert 0 <= time.time() * 1000 - int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) < 600_000
    assert consumer.commands.empty()


def test_a_message_is_consumed_at_once_and_stays_where_it_is(
    gateway: Gateway, consumer: TelemetryClient
) -> None:
    message_id, place = sent(gateway, b"body")
    results = {
        pb.OK: "CR_SUCCESS",
        pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
        pb.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
        pb.NOT_IMPLEMENTED: None,
    }
    for code, result in results.items():
        consumer.answers = lambda command, code=code: [answered(command, code)]
        answer = asked(gateway, CONSUME, msgId=place, topic=TOPIC)
        assert (answer.code, json.loads(answer.body).get("consumeResult")) == (0, result)
        message = consumer.next_command().verify_message_command.message
        system = message.system_properties
        assert (message.topic.name, message.body, system.message_id) == (TOPIC, b"body", message_id)
        assert (system.tag, list(system.keys), system.delivery_attempt) == ("a", ["k"], 1)
        assert not system.HasField("receipt_handle")
        assert not system.HasField("invisible_duration")
    client = Client(gateway.address, CONSUMER)
    found = client.receive(TOPIC, GROUP, wait_ms=5000)[1]
    client.close()
    assert [each.system_properties.message_id for each in found][-1] == message_id
    assert found[-1].system_properties.delivery_attempt == 1


def test_a_node_client_that_answers_with_the_command_itself_is_understood(
    gateway: Gateway, consumer: TelemetryClient
) -> None:
    _, place = sent(gateway, b"body")
    consumer.answers = lambda command: [
        rpc.TelemetryCommand(
            status=pb.Status(code=pb.NOT_IMPLEMENTED),
            verify_message_command=rpc.VerifyMessageCommand(nonce=command.verify_message_command.nonce),
        )
    ]
    answer = asked(gateway, CONSUME, msgId=place, topic=TOPIC)
    assert (answer.code, "consumeResult" in json.loads(answer.body)) == (0, False)


def test_what_cannot_be_asked_is_refused_with_the_reason(gateway: Gateway, consumer: TelemetryClient) -> None:
    _, place = sent(gateway, b"body")
    assert asked(gateway, RUNNING_INFO, "nobody", jstackEnable="true").remark == (
        "The Consumer <billing> <nobody> not online"
    )
    assert (
        asked(gateway, CONSUME, "nobody", msgId=place).remark == "The Consumer <billing> <nobody> not online"
    )
    assert asked(gateway, CONSUME, msgId="7F0000010000277F" + "F" * 16).code == ResponseCode.SYSTEM_ERROR
    assert asked(gateway, CONSUME, msgId=f"{place[:16]}{int(place[16:], 16) + 1:016X}").remark.startswith(
        "can not find message by the offset"
    )
    assert asked(gateway, CONSUME, msgId="M1").code == ResponseCode.INVALID_PARAMETER
    assert asked(gateway, CONSUME).remark == "the custom field <msgId> is null"
    assert consumer.commands.empty()


def test_a_client_that_does_not_answer_is_waited_for_so_long(tmp_path: Path) -> None:
    settings = consumer_settings(GROUP, TOPIC)
    with (
        Gateway(tmp_path, **{**ONE, "grpcProxyRelayRequestTimeoutInSeconds": "1"}) as gateway,
        TelemetryClient(gateway.address, CONSUMER, settings) as consumer,
    ):
        answer = asked(gateway, RUNNING_INFO, jstackEnable="true")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == ("call remote timeout: client 'consumer-1' did not answer within 1 s")
        consumer.send(answered(consumer.next_command()))  # too late: for nobody
        consumer.answers = lambda command: [
            answered(command, pb.OK, "of another"),
            answered(command, pb.OK, "of a second answer"),
        ]

        def in_time() -> Command | None:
            answer = asked(gateway, RUNNING_INFO, jstackEnable="true")
            return answer if answer.code == 0 else None

        for _ in range(2):
            assert json.loads(wait_until(in_time).body)["jstack"] == "of another"


def test_an_answer_of_another_client_is_none(gateway: Gateway, consumer: TelemetryClient) -> None:
    settings = consumer_settings("another", TOPIC)
    with TelemetryClient(gateway.address, "consumer-2", settings) as stranger:

        def answers(command: rpc.TelemetryCommand) -> Iterator[rpc.TelemetryCommand]:
            stranger.send(answered(command, text="of a stranger"))
            stranger.settle()
            yield answered(command, text="its own")

        consumer.answers = answers
        info = json.loads(asked(gateway, RUNNING_INFO, jstackEnable="true").body)
        assert info["jstack"] == "its own"
        assert not stranger.ended.is_set(), "its stream goes on"


def test_a_client_that_goes_away_ends_the_wait(tmp_path: Path) -> None:
    options = {"grpcProxyRelayRequestTimeoutInSeconds": "60"}
    with Gateway(tmp_path, **options) as gateway, contextlib.ExitStack() as connected:
        settings = consumer_settings(GROUP, TOPIC)
        consumer = connected.enter_context(TelemetryClient(gateway.address, CONSUMER, settings))
        with in_background(lambda: asked(gateway, RUNNING_INFO, jstackEnable="true")) as found:
            consumer.next_command()
            connected.close()
            answer = found.get(timeout=LIMIT_S)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the telemetry stream of client 'consumer-1' ended before it answered" in answer.remark


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_a_stop_tells_every_client_to_reconnect_before_its_stream_ends(
    tmp_path: Path, transport: str
) -> None:
    with Gateway(tmp_path, transport=transport) as gateway:
        clients = [
            TelemetryClient(gateway.address, CONSUMER, consumer_settings(GROUP, TOPIC)),
            TelemetryClient(gateway.address, "producer-1", producer_settings(TOPIC)),
        ]
        with clients[0], clients[1]:
            stopping = threading.Thread(target=gateway.terminate)
            stopping.start()
            nonces = [each.next_command().reconnect_endpoints_command.nonce for each in clients]
            for each in clients:
                assert each.ended.wait(LIMIT_S)
                assert each.commands.empty()
            stopping.join()
    assert len(set(nonces)) == 2
    assert "" not in nonces


class RemotingConsumer:
    """A remoting client that is listed as a consumer, and answers what the broker asks over its connection."""

    def __init__(self, answer: Callable[[Command], Awaitable[Command]]) -> None:
        processors = Processors()
        for code in (RUNNING_INFO, CONSUME):
            processors.register(code, self._asked)
        self._answer = answer
        self.requests: list[Command] = []
        self.client = RemotingClient(processors)

    async def _asked(self, _: Connection, request: Command) -> Command:
        self.requests.append(request)
        return await self._answer(request)

    async def beat(self, address: str) -> None:
        consumer = {"groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}
        beat = {"clientID": "remoting-1", "producerDataSet": [], "consumerDataSet": [consumer]}
        answer = await self.client.invoke(
            address, Command(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()), 20
        )
        assert answer.code == 0


def test_a_remoting_consumer_is_asked_over_its_connection(gateway: Gateway) -> None:
    _, place = sent(gateway, b"body")
    address = f"127.0.0.1:{gateway.remoting_port}"

    async def answered(request: Command) -> Command:
        if "jstackEnable" in request.ext_fields:
            return request.reply(body=b'{"jstack":"main"}')
        return request.reply(ResponseCode.SYSTEM_ERROR, remark="not now", fields={"a": "b"})

    async def play() -> None:
        consumer, tool = RemotingConsumer(answered), RemotingClient()
        named = {"consumerGroup": GROUP, "clientId": "remoting-1"}
        try:
            await consumer.beat(address)
            info = await tool.invoke(
                address, Command(RUNNING_INFO, {**named, "jstackEnable": "true"}), LIMIT_S
            )
            assert (info.code, info.body) == (0, b'{"jstack":"main"}')
            consumed = await tool.invoke(address, Command(CONSUME, {**named, "msgId": place}), LIMIT_S)
            assert (consumed.code, consumed.remark) == (ResponseCode.SYSTEM_ERROR, "not now")
            assert consumed.ext_fields["a"] == "b"
            assert decode_record(consumer.requests[1].body, verify=False).body == b"body"
            assert consumer.requests[1].ext_fields["brokerName"]
            await consumer.client.close()
            gone = await tool.invoke(address, Command(RUNNING_INFO, named), LIMIT_S)
            assert gone.remark == "The Consumer <billing> <remoting-1> not online"
        finally:
            await consumer.client.close()
            await tool.close()

    asyncio.run(play())


def test_a_remoting_consumer_that_goes_away_ends_the_wait(gateway: Gateway) -> None:
    address = f"127.0.0.1:{gateway.remoting_port}"

    async def play() -> None:
        asked = asyncio.Event()

        async def never(_: Command) -> Command:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        consumer, tool = RemotingConsumer(never), RemotingClient()
        try:
            await consumer.beat(address)
            named = {"consumerGroup": GROUP, "clientId": "remoting-1"}
            answer = asyncio.create_task(tool.invoke(address, Command(RUNNING_INFO, named), LIMIT_S))
            await asyncio.wait_for(asked.wait(), LIMIT_S)
            await consumer.client.close()
            refused = await answer
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith("invoke consumer <billing> <remoting-1> Exception: ")
        finally:
            await consumer.client.close()
            await tool.close()

    asyncio.run(play())
