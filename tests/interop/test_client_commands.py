"""Commands to clients: what the broker says of a consumer's answers beside the real broker, and how official clients in
Java, Go, Node and Python answer them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.ports import free_ports
from lakebroker_testing.real_rocketmq import RocketMQ
from store.log.record import decode_record, offset_msg_id
from tests.support.brokers.telemetry_client import TelemetryClient, answered, consumer_settings
from tests.support.rocketmq.foreign_clients import OFFICIAL
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.requests import ask, create, done
from tests.support.waiting import wait_until

TOPIC = "commanded"
GROUP = f"{TOPIC}-listen"
RUNNING_INFO, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
_OURS_LATE = {ResponseCode.SYSTEM_BUSY: 5.0}
_REAL_LATE = {**_OURS_LATE, ResponseCode.CONSUME_MSG_TIMEOUT: 10.0}
"""Seconds after which each code says that a client did not answer: the second one of a broker that waits for its proxy."""


def sent(address: str, body: bytes, topic: str = TOPIC) -> rpc.SendResultEntry:
    """Of a message that is taken; a real proxy may not know the topic at once."""
    with contextlib.closing(Client(address)) as client:

        def taken() -> rpc.SendResultEntry | None:
            answer = client.send(topic, body)
            return answer.entries[0] if answer.status.code == pb.OK else None

        found: rpc.SendResultEntry = wait_until(taken)
        return found


def answers(remoting: str, address: str, place: str, late: Mapping[int, float]) -> dict[str, Any]:
    """What the broker says of each way to answer, without times and addresses. `late` maps its codes for an answer that did not come
    to the seconds that it waits."""
    found: dict[str, Any] = {}

    def came_late(answer: Command, began: float) -> bool:
        return answer.code in late and time.monotonic() - began > 0.9 * late[answer.code]

    with TelemetryClient(address, "c", consumer_settings(GROUP, TOPIC)) as consumer:
        named = {"consumerGroup": GROUP, "clientId": "c", "msgId": place, "topic": TOPIC}

        def consumed() -> tuple[Command, Any] | None:
            """The answer, and the message that the client got; asked again when the client's came too late."""
            began, answer = time.monotonic(), ask(remoting, CONSUME, **named)
            seen = consumer.next_command().verify_message_command.message
            return None if came_late(answer, began) else (answer, seen)

        def given_up() -> Command | None:
            """The answer of whoever waits for the client; asked again when the real broker did not wait for its proxy's."""
            began, answer = time.monotonic(), ask(remoting, CONSUME, **named)
            by_broker = answer.code == ResponseCode.CONSUME_MSG_TIMEOUT and came_late(answer, began)
            return None if by_broker else answer

        for code in (
            pb.OK,
            pb.FAILED_TO_CONSUME_MESSAGE,
            pb.MESSAGE_CORRUPTED,
            pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED,
            pb.NOT_IMPLEMENTED,
            pb.INTERNAL_ERROR,
        ):
            consumer.answers = lambda command, code=code: [answered(command, code)]
            answer, message = wait_until(consumed)
            system = message.system_properties
            for name in ("born_timestamp", "store_timestamp", "born_host", "store_host", "queue_offset"):
                system.ClearField(name)
            system.ClearField("message_id")
            found[pb.Code.Name(code)] = answer.code, json.loads(answer.body), str(message)
        consumer.answers = lambda _: ()
        silent = wait_until(given_up)
        found["no answer"] = silent.code, (silent.remark or "")[:19]
        nobody = ask(remoting, CONSUME, **{**named, "clientId": "nobody"})
        found["nobody"] = nobody.code, nobody.remark
        found["no message"] = ask(remoting, CONSUME, **{**named, "msgId": f"{place[:16]}{1 << 40:016X}"}).code
        nobody = ask(remoting, RUNNING_INFO, **{**named, "clientId": "nobody", "jstackEnable": "true"})
        found["no stack trace"] = nobody.code, nobody.remark
    return found


def stack_trace(remoting: str, client_id: str, group: str) -> Command:
    return ask(remoting, RUNNING_INFO, consumerGroup=group, clientId=client_id, jstackEnable="true")


def test_the_real_broker_says_the_same_of_a_message_that_a_client_is_to_consume(
    tmp_path: Path, rocketmq: RocketMQ
) -> None:
    remoting = rocketmq.broker_address
    create(remoting, {TOPIC: (1, "NORMAL")}, {GROUP: {}})
    place = place_of(remoting, sent(rocketmq.address, b"body"))
    theirs = answers(remoting, rocketmq.address, place, _REAL_LATE)
    with TelemetryClient(rocketmq.address, "c", consumer_settings(GROUP, TOPIC)) as consumer:
        assert stack_trace(remoting, "c", GROUP).code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert consumer.commands.empty(), "it is not asked there: docs/differences.md"
    with Gateway(tmp_path / "ours", lakeAutoCreateTopics="false") as gateway:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        create(remoting, {TOPIC: (1, "NORMAL")})
        place = place_of(remoting, sent(gateway.address, b"body"))
        ours = answers(remoting, gateway.address, place, _OURS_LATE)
    assert ours == theirs


def place_of(remoting: str, entry: rpc.SendResultEntry, topic: str = TOPIC) -> str:
    """The id of a message's place in the log, on a topic with one queue."""
    where = {"queueId": 0, "queueOffset": entry.offset, "maxMsgNums": 1, "subscription": "*", "sysFlag": 4}
    others = {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
    pulled = ask(
        remoting, RequestCode.PULL_MESSAGE, consumerGroup="TOOLS_CONSUMER", topic=topic, **where, **others
    )
    record = decode_record(pulled.body, verify=False)
    return offset_msg_id(record.store_host.packed, record.physical_offset)


@contextlib.contextmanager
def listening(language: str, folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """An official client with a consumer of topic and group `group_of(language)` that is connected until the end."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{language}.out").open("ab") as out:
        process = subprocess.Popen(
            [*OFFICIAL[language](), address, "plain", language, "listen"],
            env={**os.environ, "HOME": str(folder), "GODEBUG": ""},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def group_of(language: str) -> str:
    return f"{language}-listen"


def connected(remoting: str, group: str) -> str:
    """The id of the one client of a group, once it is connected."""

    def found() -> str | None:
        answer = ask(remoting, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        if answer.code:
            return None
        (one,) = json.loads(answer.body)["connectionSet"]
        return str(one["clientId"])

    return wait_until(found, f"a client of {group}") or ""


ONE = {"defaultTopicQueueNums": "1", "grpcProxyRelayRequestTimeoutInSeconds": "60"}


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with NameServer(tmp_path_factory.mktemp("namesrv")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, name_server: NameServer) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), namesrvAddr=name_server.address, **ONE) as running:
        yield running


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, gateway: Gateway) -> Iterator[tuple[list[str], str]]:
    """The places of two messages, and the id of a Java client that listens to their topic."""
    with answering("java", tmp_path_factory.mktemp("java"), gateway) as found:
        yield found


@contextlib.contextmanager
def answering(language: str, folder: Path, gateway: Gateway) -> Iterator[tuple[list[str], str]]:
    remoting = f"127.0.0.1:{gateway.remoting_port}"
    places = [
        place_of(remoting, sent(gateway.address, body, language), language) for body in (b"good", b"bad")
    ]
    with listening(language, folder, gateway.address):
        yield places, connected(remoting, group_of(language))


def assert_answers(
    gateway: Gateway,
    language: str,
    found: tuple[list[str], str],
    traced: str,
    results: tuple[str | None, str | None],
) -> None:
    """A stack trace that has `traced`, and the results of consuming a good message and a bad one."""
    remoting, group, (places, client_id) = f"127.0.0.1:{gateway.remoting_port}", group_of(language), found
    info = json.loads(stack_trace(remoting, client_id, group).body)
    assert traced in info["jstack"]
    for place, result in zip(places, results, strict=True):
        answer = done(remoting, CONSUME, consumerGroup=group, clientId=client_id, msgId=place, topic=language)
        assert json.loads(answer.body).get("consumeResult") == result


def test_the_official_java_client_answers(gateway: Gateway, java: tuple[list[str], str]) -> None:
    assert_answers(gateway, "java", java, "java.lang.Thread", ("CR_SUCCESS", "CR_LATER"))


@pytest.mark.parametrize(("language", "traced"), [("go", "goroutine"), ("node", "mock stack")])
def test_official_clients_answer(tmp_path: Path, gateway: Gateway, language: str, traced: str) -> None:
    """They say NOT_IMPLEMENTED of a message."""
    with answering(language, tmp_path, gateway) as found:
        assert_answers(gateway, language, found, traced, (None, None))


def test_mqadmin_shows_the_stack_trace_and_has_a_message_consumed(
    mqadmin: MqAdmin,
    name_server: NameServer,
    java: tuple[list[str], str],
) -> None:
    (place, _), client_id = java
    group = group_of("java")
    shown = mqadmin.run(name_server.address, "consumerStatus", "-g", group, "-i", client_id, "-s")
    assert "#Consumer jstack#" in shown, mqadmin.errors()
    assert "java.lang.Thread" in shown
    all_of_group = mqadmin.run(name_server.address, "consumerStatus", "-g", group, "-s")
    assert client_id in all_of_group, mqadmin.errors()
    assert "Rebalance OK" in all_of_group, mqadmin.errors()
    consumed = mqadmin.run(
        name_server.address, "queryMsgById", "-t", "java", "-i", place, "-g", group, "-d", client_id
    )
    assert "CR_SUCCESS" in consumed, mqadmin.errors()


def test_the_official_python_client_answers_no_command_and_lives_on(tmp_path: Path) -> None:
    options = {**ONE, "grpcProxyRelayRequestTimeoutInSeconds": "2"}
    with Gateway(tmp_path / "gateway", **options) as gateway, OfficialClient() as official:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        sent(gateway.address, b"body")
        official.call("simple", endpoints=gateway.address, group=GROUP, topics={TOPIC: "*"}, await_s=3)
        client_id = connected(remoting, GROUP)
        assert stack_trace(remoting, client_id, GROUP).code == ResponseCode.SYSTEM_BUSY
        received = when_started(official, "receive", max=1, invisible_s=30)["messages"]
        assert [each["body"] for each in received] == ["body"]


def test_official_clients_come_back_after_a_stop_that_told_them_to_reconnect(tmp_path: Path) -> None:
    """Not Go: it opens a stream with its next settings, up to five minutes later, whatever ended the one before."""
    (port,) = free_ports(1)
    languages = ("java", "node")
    with (
        Gateway(tmp_path / "gateway", **ONE, grpcServerPort=str(port)) as gateway,
        contextlib.ExitStack() as clients,
    ):
        for each in languages:
            sent(gateway.address, b"body", each)
            clients.enter_context(listening(each, tmp_path / each, gateway.address))
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        before = [connected(remoting, group_of(each)) for each in languages]
        assert gateway.terminate() == 0
        gateway.start()
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        assert [connected(remoting, group_of(each)) for each in languages] == before
        for each, client_id in zip(languages, before, strict=True):  # its stream comes back some time later
            wait_until(lambda each=each, of=client_id: stack_trace(remoting, of, group_of(each)).code == 0)
