"""Commands to clients: what the broker says of a consumer's answers beside the real broker, and how official clients in
Java, Go, Node and Python answer them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
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
from lakebroker_testing.real_rocketmq import RocketMQ, free_ports
from store.log.record import decode_record, offset_msg_id
from tests.support.brokers.telemetry_client import TelemetryClient, answered, ask, consumer_settings
from tests.support.rocketmq.foreign_clients import OFFICIAL
from tests.support.rocketmq.mqadmin import MqAdmin

pytestmark = pytest.mark.timeout(300)
GROUP, TOPIC = "orders-listen", "orders"
RUNNING_INFO, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY


def sent(address: str, body: bytes) -> rpc.SendResultEntry:
    client = Client(address)
    deadline = time.monotonic() + 60
    while True:
        response = client.send(TOPIC, body)
        if response.status.code == pb.OK:
            client.close()
            entry: rpc.SendResultEntry = response.entries[0]
            return entry
        assert time.monotonic() < deadline, response.status
        time.sleep(0.5)


def answers(remoting: str, address: str, place: str) -> dict[str, Any]:
    """What the broker says of each way to answer, without times and addresses."""
    found: dict[str, Any] = {}
    with TelemetryClient(address, "c", consumer_settings(GROUP, TOPIC)) as consumer:
        named = {"consumerGroup": GROUP, "clientId": "c", "msgId": place, "topic": TOPIC}
        for code in (
            pb.OK,
            pb.FAILED_TO_CONSUME_MESSAGE,
            pb.MESSAGE_CORRUPTED,
            pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED,
            pb.NOT_IMPLEMENTED,
            pb.INTERNAL_ERROR,
        ):
            consumer.answers = lambda command, code=code: [answered(command, code)]
            answer = ask(remoting, CONSUME, **named)
            message = consumer.next_command().verify_message_command.message
            system = message.system_properties
            for name in ("born_timestamp", "store_timestamp", "born_host", "store_host", "queue_offset"):
                system.ClearField(name)
            system.ClearField("message_id")
            found[pb.Code.Name(code)] = answer.code, json.loads(answer.body), str(message)
        consumer.answers = lambda _: ()
        late = ask(remoting, CONSUME, **named)
        found["no answer"] = late.code, (late.remark or "")[:19]
        nobody = ask(remoting, CONSUME, **{**named, "clientId": "nobody"})
        found["nobody"] = nobody.code, nobody.remark
        found["no message"] = ask(remoting, CONSUME, **{**named, "msgId": f"{place[:16]}{1 << 40:016X}"}).code
        nobody = ask(remoting, RUNNING_INFO, **{**named, "clientId": "nobody", "jstackEnable": "true"})
        found["no stack trace"] = nobody.code, nobody.remark
    return found


def stack_trace(remoting: str, client_id: str) -> Command:
    return ask(remoting, RUNNING_INFO, consumerGroup=GROUP, clientId=client_id, jstackEnable="true")


def test_the_real_broker_says_the_same_of_a_message_that_a_client_is_to_consume(tmp_path: Path) -> None:
    with RocketMQ(tmp_path / "peer", {TOPIC: (1, "NORMAL")}, [GROUP]) as peer:
        remoting = f"127.0.0.1:{peer.broker_port}"
        sent(peer.address, b"body")
        theirs = answers(remoting, peer.address, f"7F000001{peer.broker_port:08X}{0:016X}")
        with TelemetryClient(peer.address, "c", consumer_settings(GROUP, TOPIC)) as consumer:
            assert stack_trace(remoting, "c").code == ResponseCode.CONSUME_MSG_TIMEOUT
            assert consumer.commands.empty(), "it is not asked there: docs/differences.md"
    with Gateway(tmp_path / "ours", defaultTopicQueueNums="1", lakeAutoCreateTopics="false") as gateway:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        made = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        made |= {"defaultTopic": "TBW102", "order": "false", "topic": TOPIC}
        assert ask(remoting, RequestCode.UPDATE_AND_CREATE_TOPIC, **made).code == 0
        place = place_of(remoting, sent(gateway.address, b"body"))
        ours = answers(remoting, gateway.address, place)
    assert ours == theirs


def place_of(remoting: str, entry: rpc.SendResultEntry) -> str:
    """The id of a message's place in the log, on a topic with one queue."""
    where = {"queueId": "0", "queueOffset": str(entry.offset), "maxMsgNums": "1"}
    pulled = ask(remoting, RequestCode.PULL_MESSAGE, consumerGroup=GROUP, topic=TOPIC, **where)
    record = decode_record(pulled.body, verify=False)
    return offset_msg_id(record.store_host.packed, record.physical_offset)


@contextlib.contextmanager
def listening(language: str, folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """An official client with a consumer of GROUP that is connected until the end."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{language}.out").open("ab") as out:
        process = subprocess.Popen(
            [*OFFICIAL[language](), address, "plain", TOPIC, "listen"],
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


def connected(remoting: str, timeout_s: float = 90) -> str:
    """The id of the one client of GROUP, once it is connected."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask(remoting, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        if answer.code == 0:
            (one,) = json.loads(answer.body)["connectionSet"]
            return str(one["clientId"])
        assert time.monotonic() < deadline, answer.remark
        time.sleep(0.2)


ONE = {"defaultTopicQueueNums": "1", "grpcProxyRelayRequestTimeoutInSeconds": "20"}


@pytest.mark.parametrize(
    ("language", "traced", "results"),
    [
        ("java", "java.lang.Thread", ("CR_SUCCESS", "CR_LATER")),
        ("go", "goroutine", (None, None)),  # it says NOT_IMPLEMENTED of a message
        ("node", "mock stack", (None, None)),
    ],
)
def test_official_clients_answer(
    tmp_path: Path, language: str, traced: str, results: tuple[str | None, str | None]
) -> None:
    with Gateway(tmp_path / "gateway", **ONE) as gateway:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        places = [place_of(remoting, sent(gateway.address, body)) for body in (b"good", b"bad")]
        with listening(language, tmp_path / "client", gateway.address):
            client_id = connected(remoting)
            info = json.loads(stack_trace(remoting, client_id).body)
            assert traced in info["jstack"]
            for place, result in zip(places, results, strict=True):
                named = {"consumerGroup": GROUP, "clientId": client_id, "msgId": place, "topic": TOPIC}
                answer = ask(remoting, CONSUME, **named)
                assert (answer.code, json.loads(answer.body).get("consumeResult")) == (0, result)


def test_the_official_python_client_answers_no_command_and_lives_on(tmp_path: Path) -> None:
    options = {**ONE, "grpcProxyRelayRequestTimeoutInSeconds": "2"}
    with Gateway(tmp_path / "gateway", **options) as gateway, OfficialClient() as official:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        sent(gateway.address, b"body")
        official.call("simple", endpoints=gateway.address, group=GROUP, topics={TOPIC: "*"}, await_s=3)
        client_id = connected(remoting)
        assert stack_trace(remoting, client_id).code == ResponseCode.SYSTEM_BUSY
        received = when_started(official, "receive", max=1, invisible_s=30)["messages"]
        assert [each["body"] for each in received] == ["body"]


@pytest.mark.parametrize("language", ["java", "node"])
def test_official_clients_come_back_after_a_stop_that_told_them_to_reconnect(
    tmp_path: Path, language: str
) -> None:
    """Not Go: it opens a stream with its next settings, up to five minutes later, whatever ended the one before."""
    (port,) = free_ports(1)
    with Gateway(tmp_path / "gateway", **ONE, grpcServerPort=str(port)) as gateway:
        sent(gateway.address, b"body")
        with listening(language, tmp_path / "client", gateway.address):
            client_id = connected(f"127.0.0.1:{gateway.remoting_port}")
            assert gateway.terminate() == 0
            gateway.start()
            remoting = f"127.0.0.1:{gateway.remoting_port}"
            assert connected(remoting) == client_id
            deadline = time.monotonic() + 60
            while stack_trace(remoting, client_id).code:  # its stream comes back some time later
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_mqadmin_shows_the_stack_trace_and_has_a_message_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes files where it runs
    peer = RocketMQ(tmp_path / "peer", {}, proxy=False, broker=False)
    with (
        NameServer(tmp_path / "namesrv") as name_server,
        Gateway(tmp_path / "gateway", namesrvAddr=name_server.address, **ONE) as gateway,
        listening("java", tmp_path / "client", gateway.address),
    ):
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        place = place_of(remoting, sent(gateway.address, b"good"))
        client_id = connected(remoting)
        admin = MqAdmin(peer, name_server.address, tmp_path / "mqadmin.err")
        try:
            shown = admin.run("consumerStatus", "-g", GROUP, "-i", client_id, "-s")
            assert "#Consumer jstack#" in shown, admin.errors()
            assert "java.lang.Thread" in shown
            all_of_group = admin.run("consumerStatus", "-g", GROUP, "-s")
            assert client_id in all_of_group, admin.errors()
            assert "Rebalance OK" in all_of_group, admin.errors()
            consumed = admin.run("queryMsgById", "-t", TOPIC, "-i", place, "-g", GROUP, "-d", client_id)
            assert "CR_SUCCESS" in consumed, admin.errors()
        finally:
            admin.close()
