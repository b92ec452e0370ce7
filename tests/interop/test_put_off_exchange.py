"""A store with pending timers and halves goes to the real broker 5.5.0 and back: nothing fires twice, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.messages import message
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import LONG
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings

SEGMENT = 1 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_later(client: Client, body: str, due_ms: int) -> None:
    one = message("orders", body.encode(), message_type=pb.DELAY, delivery_timestamp=timestamp(due_ms))
    answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
    assert answer.status.code == pb.OK, answer.status.message


def half(client: Client, body: str, **system: Any) -> str:
    # the real broker gives up a half that was born, as it takes it, in 1970
    born = timestamp(now_ms())
    one = message("orders", body.encode(), message_type=pb.TRANSACTION, born_timestamp=born, **system)
    answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
    assert answer.status.code == pb.OK, answer.status.message
    found: str = answer.entries[0].transaction_id
    return found


def commit(client: Client, transaction: str) -> pb.Code:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name="orders"),
        transaction_id=transaction,
        message_id=transaction,
        resolution=pb.COMMIT,
        source=pb.SOURCE_CLIENT,
    )
    code: pb.Code = client.call("EndTransaction", request).status.code
    return code


def receive_until(client: Client, until_ms: int, group: str = "readers") -> list[str]:
    """Bodies received and acknowledged up to a time."""
    found = []
    while now_ms() < until_ms:
        try:
            code, messages = client.receive("orders", group, invisible_ms=30_000, wait_ms=1000)
        except grpc.RpcError:  # a proxy that has just started
            time.sleep(0.5)
            continue
        if not messages:
            time.sleep(0.2)
            continue
        assert code == pb.OK
        assert client.ack("orders", group, *messages).status.code == pb.OK
        found += [each.body.decode() for each in messages]
    return found


def connected(address: str) -> TelemetryClient:
    """A consumer that the real proxy knows: it takes no receives of others. Asked again while the proxy begins to know its broker."""
    deadline = time.monotonic() + 60
    while True:
        client = TelemetryClient(
            address, "tester", consumer_settings("readers", "orders", pb.SIMPLE_CONSUMER)
        )
        try:
            client.__enter__()
        except AssertionError:
            client.__exit__()
            if time.monotonic() > deadline:
                raise
        else:
            return client


def run(*arguments: str) -> str:
    done = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=LONG)])
def test_there_and_back(tmp_path: Path, end: str) -> None:
    options = {**OPTIONS, "mappedFileSizeCommitLog": str(SEGMENT), "brokerName": "broker-a"}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        begin = now_ms()
        for number in range(3):
            send_later(client, f"ours, early {number}", begin + 1000)
        assert sorted(receive_until(client, begin + 4000)) == [f"ours, early {n}" for n in range(3)]
        there = begin + 60_000
        back = begin + 150_000
        for number in range(5):
            send_later(client, f"ours, there {number}", there + number * 100)
            send_later(client, f"ours, back {number}", back + number * 100)
        ended, pending = half(client, "ours, ended"), half(client, "ours, pending")
        assert commit(client, ended) == pb.OK
        assert receive_until(client, now_ms() + 2000) == ["ours, ended"]
        client.channel.close()
        if end == "stopped":
            assert gateway.terminate() == 0
        else:
            time.sleep(1)  # more than flushIntervalCommitLog
            gateway.kill()
        store = gateway.store
    run("store", "rebuild", str(store))
    peer = RocketMQ(
        tmp_path / "peer",
        {},
        storePathRootDir=str(store),
        storePathCommitLog=str(store / "commitlog"),
        mappedFileSizeCommitLog=str(SEGMENT),
    )
    with peer, contextlib.ExitStack() as known:
        client = Client(peer.address)
        known.push(connected(peer.address))
        found = receive_until(client, max(there + 5000, now_ms() + 15_000))
        assert sorted(found) == [f"ours, there {n}" for n in range(5)]
        assert now_ms() < back - 10_000, "too slow a machine for the times of this test"
        for number in range(2):
            send_later(client, f"theirs, early {number}", now_ms() + 1500)
            send_later(client, f"theirs, back {number}", back + 1000)
        theirs = half(
            client, "theirs, pending", orphaned_transaction_recovery_duration=Duration(seconds=3600)
        )
        assert sorted(receive_until(client, now_ms() + 8000)) == ["theirs, early 0", "theirs, early 1"]
        client.channel.close()
        if end == "stopped":
            peer.terminate()
        else:
            time.sleep(6)  # more than flushConsumerOffsetInterval
            peer.kill()
    taken = json.loads(run("store", "import", str(store), "--json"))
    assert (taken["timers"], taken["transactions"]) == (7, 2)
    with Gateway(tmp_path / "again", **options, storePathRootDir=str(store)) as gateway:
        client = Client(gateway.address)
        found = receive_until(client, max(back + 4000, now_ms() + 4000))
        wanted = [*(f"ours, back {n}" for n in range(5)), "theirs, back 0", "theirs, back 1"]
        assert sorted(found) == wanted
        assert commit(client, pending) == pb.OK
        assert commit(client, theirs) == pb.OK
        assert sorted(receive_until(client, now_ms() + 3000)) == ["ours, pending", "theirs, pending"]
        assert commit(client, ended) == pb.INVALID_TRANSACTION_ID
