"""A store goes from us to the real broker 5.5.0 and back: each starts on it at once and serves what was not settled."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.peer.rocketmq import RocketMQ
from demo.official_client import OfficialClient, OfficialClientError
from demo.processes import ROOT, Gateway, command
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from tests.integration.gateway.conftest import OPTIONS, Client, message

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
            if '"settings" is null' not in str(error):  # the real proxy, before it has the client's settings
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
        found = receive_all(official, COUNT - len(settled))
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
