"""A store goes from us to the real broker 5.5.0 and back: each starts on it at once and serves what was not settled."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.metadata.data_version import DataVersion, parse_data_version
from broker_gateway.migration.rocketmq_files import quoted_keys
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.messages import message
from lakebroker_testing.official_client import OfficialClient, OfficialClientError, just_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import LONG

SEGMENT = 1 << 20
COUNT = 300


def receive_all(official: OfficialClient, count: int, seconds: float = 60) -> list[str]:
    """Ids of messages, each acknowledged, until `count` are there and a little longer."""
    found: list[str] = []
    deadline = time.monotonic() + seconds
    quiet = 0
    while time.monotonic() < deadline and (len(found) < count or quiet < 2):
        try:
            messages = official.call("receive", max=32, invisible_s=30)["messages"]
        except OfficialClientError as error:
            if not just_started(error):
                raise
            time.sleep(0.5)
            continue
        quiet = 0 if messages else quiet + 1
        if messages:
            assert official.call("ack", ids=[m["id"] for m in messages])["errors"] == {}
            found += [m["id"] for m in messages]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_the_real_broker_goes_on_with_our_store_and_we_with_its(tmp_path: Path, end: str) -> None:
    options = {**OPTIONS, "mappedFileSizeCommitLog": str(SEGMENT), "brokerName": "broker-a"}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        ids = []
        for number in range(COUNT):
            one = message("orders", b"%d " % number * 10_000, queue_id=number % 8)
            one.system_properties.tag = "even" if number % 2 == 0 else "odd"
            answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
            assert answer.status.code == pb.OK
            ids.append(answer.entries[0].message_id)
        held = client.receive("orders", "readers", batch=8, invisible_ms=60_000)[1]
        assert len(held) == 8
        settled: set[str] = set()
        while len(settled) < 120:
            messages = client.receive("orders", "readers", invisible_ms=600_000)[1]
            assert client.ack("orders", "readers", *messages).status.code == pb.OK
            settled |= {m.system_properties.message_id for m in messages}
        client.channel.close()
        if end == "stopped":
            assert gateway.terminate() == 0
        else:
            time.sleep(1)  # more than flushIntervalCommitLog
            gateway.kill()
        store = gateway.store
    assert len(list((store / "commitlog").iterdir())) > 10
    done = subprocess.run(
        command("store", "rebuild", str(store)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "topics.json" in done.stdout
    peer = RocketMQ(
        tmp_path / "peer",
        {},
        storePathRootDir=str(store),
        storePathCommitLog=str(store / "commitlog"),
        mappedFileSizeCommitLog=str(SEGMENT),
    )
    with peer, OfficialClient() as official:
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        # those held too, nothing settled behind them
        found = receive_all(official, COUNT - len(settled), 120)
        assert sorted(found) == sorted(set(ids) - settled)
        official.call("producer", endpoints=peer.address, topics=["orders"])
        sent = [official.call("send", topic="orders", bodies=[f"after {n}"], tag="a") for n in range(3)]
        new = [each for answer in sent for each in answer["ids"]]
        assert sorted(receive_all(official, 3)) == sorted(new)
        left = official.call("send", topic="orders", bodies=["left"], tag="a")["ids"]
        if end == "stopped":
            peer.terminate()
        else:
            time.sleep(6)  # more than flushConsumerOffsetInterval
            peer.kill()
    done = subprocess.run(
        command("store", "import", str(store), "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["groups"] > 0
    with Gateway(tmp_path / "again", **options, storePathRootDir=str(store)) as gateway:
        client = Client(gateway.address)
        assert [m.system_properties.message_id for m in take(client, "readers")] == left
        one = message("orders", b"ours again", queue_id=0)
        answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
        assert answer.status.code == pb.OK
        assert [m.body for m in take(client, "readers")] == [b"ours again"]
        every = {m.system_properties.message_id for m in take(client, "late")}
        assert every == {*ids, *new, *left, one.system_properties.message_id}
        client.channel.close()
        assert gateway.terminate() == 0
    done = subprocess.run(command("store", "verify", str(store)), cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def take(client: Client, group: str) -> list[pb.Message]:
    """Everything there is for the group, acknowledged."""
    found: list[pb.Message] = []
    while messages := client.receive("orders", group, invisible_ms=60_000)[1]:
        assert client.ack("orders", group, *messages).status.code == pb.OK
        found += messages
    return found


def run(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = subprocess.run(
        command(*arguments, "--json"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def real_send(official: OfficialClient, body: str) -> str:
    """The id of a message sent, also when the name server has just begun to know the broker."""
    deadline = time.monotonic() + 60
    while True:
        try:
            sent: list[str] = official.call("send", topic="orders", bodies=[body], tag="a")["ids"]
            return sent[0]
        except OfficialClientError as error:
            if not just_started(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def real_receive(official: OfficialClient, count: int, invisible_s: int) -> list[dict[str, Any]]:
    """So many messages from the real broker, none acknowledged."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        try:
            found += official.call("receive", max=min(8, count - len(found)), invisible_s=invisible_s)[
                "messages"
            ]
        except OfficialClientError as error:
            if not just_started(error):
                raise
            time.sleep(0.5)
    return found


def drain(client: Client, group: str, count: int, seconds: float = 90) -> list[pb.Message]:
    """`count` messages and what comes for a little longer, each acknowledged."""
    found: list[pb.Message] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and len(found) < count:
        found += take(client, group)
    return found + take(client, group)


def versions(store: Path) -> dict[str, DataVersion]:
    return {
        name: parse_data_version(
            json.loads(quoted_keys((store / "config" / name).read_text()))["dataVersion"]
        )
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
    }


def ids_of(messages: list[dict[str, Any]]) -> set[str]:
    return {message["id"] for message in messages}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", [pytest.param("stopped", marks=LONG), "killed"])
def test_what_pop_consumers_hold_goes_there_and_back(tmp_path: Path, end: str) -> None:
    peer = RocketMQ(
        tmp_path / "peer",
        {"orders": (2, "NORMAL")},
        ["readers"],
        mappedFileSizeCommitLog=str(SEGMENT),
    )
    with peer, OfficialClient() as official:
        official.call("producer", endpoints=peer.address, topics=["orders"])
        sent = [real_send(official, f"{number}") for number in range(60)]
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        expired = real_receive(official, 6, 10)
        held = real_receive(official, 8, 40)
        popped = real_receive(official, 24, 900)
        acked, nacked, kept = popped[:16], popped[16:20], popped[20:]
        assert official.call("ack", ids=[each["id"] for each in acked])["errors"] == {}
        for each in nacked:
            official.call("invisible", id=each["id"], seconds=10)
        for each in kept[:2]:
            official.call("invisible", id=each["id"], seconds=1200)
        official.call("stop")
        # more than flushConsumerOffsetInterval, and until the expired ones are in the retry topic
        time.sleep(18)
        if end == "stopped":
            peer.terminate()
        else:
            peer.kill()
    store = peer.store
    before = versions(store)
    taken = run("store", "import", str(store))
    assert taken["in_flight"] >= len(kept)
    options = {**OPTIONS, "brokerName": "broker-a", "storePathRootDir": str(store)}
    left = set(sent) - ids_of(acked) - ids_of(kept)
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        found = drain(client, "readers", len(left))
        assert sorted(m.system_properties.message_id for m in found) == sorted(left)
        attempts = {m.system_properties.message_id: m.system_properties.delivery_attempt for m in found}
        again = ids_of(expired) | ids_of(nacked) | ids_of(held)
        assert {each for each, attempt in attempts.items() if attempt == 2} == again
        assert {each for each, attempt in attempts.items() if attempt == 1} == left - again
        assert {m.topic.name for m in found} == {"orders"}
        answers = [client.send("orders", b"%d" % number, queue_id=number % 2) for number in range(12)]
        more = [answer.entries[0].message_id for answer in answers]
        ours = client.receive("orders", "readers", batch=8, invisible_ms=15_000)[1]
        settled = ours[::2]
        assert client.ack("orders", "readers", *settled).status.code == pb.OK
        client.channel.close()
        if end == "stopped":
            assert gateway.terminate() == 0
        else:
            time.sleep(1)  # more than flushIntervalCommitLog
            gateway.kill()
    run("store", "rebuild", str(store))
    after = versions(store)
    assert all(after[name] > before[name] for name in before)
    run("store", "rebuild", str(store))  # once more: no check point twice
    assert all(each > after[name] for name, each in versions(store).items())
    unsettled = set(more) - {m.system_properties.message_id for m in settled}
    with (
        RocketMQ(
            tmp_path / "again",
            {},
            storePathRootDir=str(store),
            storePathCommitLog=str(store / "commitlog"),
            mappedFileSizeCommitLog=str(SEGMENT),
        ) as peer,
        OfficialClient() as official,
    ):
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        got = receive_all(official, len(unsettled), 120)
        assert len(got) == len(set(got))
        # held ones came due while no real broker ran: the stated bound
        assert set(got) - ids_of(held) == unsettled
        peer.terminate()
    assert all(each >= after[name] for name, each in versions(store).items())
    taken = run("store", "import", str(store))
    # theirs, through both; the held ones as above
    assert len(kept) <= taken["in_flight"] <= len(kept) + len(held)


def offset(port: int, **queue: str) -> str:
    """Behind the last message of a queue of the real broker."""
    answer = asked(port, RequestCode.GET_MAX_OFFSET, **queue)
    return str(answer.ext_fields["offset"])


@pytest.mark.timeout(300)
def test_what_a_4x_consumer_gave_back_is_received(tmp_path: Path) -> None:
    peer = RocketMQ(
        tmp_path / "peer",
        {"orders": (2, "NORMAL")},
        ["readers"],
        proxy=False,
        mappedFileSizeCommitLog=str(SEGMENT),
    )
    with peer:
        name_server = f"127.0.0.1:{peer.name_server_port}"
        printed = peer.java(Path(__file__).with_name("SendBack.java"), name_server, "orders", "readers", "10")
        sent = [line for line in printed.splitlines() if re.fullmatch(r"[0-9A-F]{32,64}", line)]
        assert len(sent) == 10
        deadline = time.monotonic() + 90
        queue = {"topic": "%RETRY%readers", "queueId": "0"}
        while int(offset(peer.broker_port, **queue)) < len(sent):  # until their delay level's 30 s are over
            assert time.monotonic() < deadline
            time.sleep(0.5)
        peer.terminate()
    taken = run("store", "import", str(peer.store))
    assert taken["retries_moved"] == 10
    assert run("store", "import", str(peer.store))["retries_moved"] == 0
    options = {**OPTIONS, "brokerName": "broker-a", "storePathRootDir": str(peer.store)}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        found = drain(client, "readers", 10)
        assert sorted(m.system_properties.message_id for m in found) == sorted(sent)
        assert {m.system_properties.delivery_attempt for m in found} == {2}
        assert {m.topic.name for m in found} == {"orders"}
        client.channel.close()
        assert gateway.terminate() == 0


EVERY_FIELD: dict[str, Any] = {
    "brokerId": 0, "consumeBroadcastEnable": False, "consumeEnable": True, "consumeFromMinEnable": False,
    "consumeMessageOrderly": False, "consumeTimeoutMinute": 3, "groupName": "every", "groupSysFlag": 2,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1500, "max": 90_000, "multiplier": 3},
    },
    "notifyConsumerIdsChangedEnable": False, "retryMaxTimes": 5, "retryQueueNums": 4,
    "subscriptionDataSet": [{"topic": "every", "expression": "*", "expressionType": "TAG", "version": 7}],
    "whichBrokerWhenConsumeSlowly": 2,
}  # fmt: skip
EVERY_TOPIC_FIELD: dict[str, Any] = {
    "topicName": "every", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6, "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 3, "order": True,
}  # fmt: skip
CONFIGURATION = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}


def asked(port: int, code: int, body: Any = None, **fields: str) -> Command:
    """A broker's answer, which is no refusal."""

    async def invoke() -> Command:
        client = RemotingClient()
        try:
            text = b"" if body is None else java_json.dumps(body)
            return await client.invoke(f"127.0.0.1:{port}", Command(code, fields, text), 20)
        finally:
            await client.close()

    answer = asyncio.run(invoke())
    assert answer.code == 0, answer.remark
    return answer


def ask(port: int, code: int, body: Any = None, **fields: str) -> Any:
    """The body of a broker's answer."""
    answer = asked(port, code, body, **fields)
    return java_json.loads(answer.body) if answer.body else None


def configurations(port: int) -> tuple[Any, Any]:
    """The topic and the group that have every field, as a broker shows them."""
    return (
        ask(port, RequestCode.GET_TOPIC_CONFIG, topic="every"),
        ask(port, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="every"),
    )


def rows(store: Path) -> dict[str, Any]:
    """The tables of both files, of topics and groups that are not the system's."""
    found = {}
    for name, table in CONFIGURATION.items():
        every = json.loads(quoted_keys((store / "config" / name).read_text()))[table]
        found[name] = {each: every[each] for each in ("every", "plain", "readers") if each in every}
    return found


@pytest.mark.timeout(300)
def test_every_field_of_topics_and_groups_goes_there_and_back(tmp_path: Path) -> None:
    """Set at a real broker, with some that a newer one might have; the real one starts again with ours."""
    peer = RocketMQ(tmp_path / "peer", {"plain": (2, "NORMAL")}, ["readers"], proxy=False)
    with peer:
        kinds = {"+message.type": "FIFO", "+cleanup.policy": "DELETE", "+reserve.time": "7"}
        topics = {"topicConfigList": [{**EVERY_TOPIC_FIELD, "attributes": kinds}]}
        ask(peer.broker_port, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics)
        group = {**EVERY_FIELD, "attributes": {"+priority.factor": "9"}}
        ask(peer.broker_port, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        shown = configurations(peer.broker_port)
        assert shown[1] == {**EVERY_FIELD, "attributes": {"priority.factor": "9"}}
        peer.terminate()
    store = peer.store
    for name, table in CONFIGURATION.items():
        path = store / "config" / name
        content = json.loads(quoted_keys(path.read_text()))
        content[table]["every"]["ofANewerBroker"] = {"on": True}
        path.write_text(json.dumps(content))
    before = rows(store)
    assert {len(each) for each in before.values()} == {2}
    run("store", "import", str(store))
    options = {**OPTIONS, "brokerName": "broker-a", "storePathRootDir": str(store)}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        topic, group = configurations(gateway.remoting_port)
        for each in (topic, group):
            assert each.pop("ofANewerBroker") == {"on": True}
        assert (topic, group) == shown
        gateway.kill()
        gateway.start()
        assert gateway.terminate() == 0
    run("store", "rebuild", str(store))
    assert rows(store) == before
    again = RocketMQ(
        tmp_path / "again",
        {},
        proxy=False,
        storePathRootDir=str(store),
        storePathCommitLog=str(store / "commitlog"),
    )
    with again:
        assert configurations(again.broker_port) == shown
