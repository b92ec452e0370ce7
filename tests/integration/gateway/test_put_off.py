"""Delayed messages and transactions of a process that is killed in between, and asked over TLS."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.deferred.due_file import FOLDER
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import bodies
from lakebroker_testing.timers import SEGMENT, write_timers
from tests.suite.evidence import EVIDENCE, LONG, rounds
from tests.support.brokers.gateways import receive_all
from tests.support.brokers.telemetry_client import TelemetryClient, producer_settings
from tests.support.logs.contents import bodies_of

TOPIC, GROUP = "orders", "billing"
TIMERS, ROUNDS = (100_000, 4) if EVIDENCE else (2_000, 2)
DUE = rounds(300, 1000)
CHECKED = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000",  # with 15, a half is given up when the test stands still for that many seconds
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_later(client: Client, body: bytes, wait_ms: int) -> rpc.SendMessageResponse:
    due = timestamp(now_ms() + wait_ms)
    answer: rpc.SendMessageResponse = client.send(TOPIC, body, message_type=pb.DELAY, delivery_timestamp=due)
    return answer


def half(client: Client, body: bytes) -> str:
    answer = client.send(TOPIC, body, message_type=pb.TRANSACTION)
    assert answer.status.code == pb.OK
    transaction_id: str = answer.entries[0].transaction_id
    return transaction_id


def end(client: Client, transaction_id: str, resolution: pb.TransactionResolution, **more: Any) -> pb.Status:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name=TOPIC),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=resolution,
        **more,
    )
    status: pb.Status = client.call("EndTransaction", request).status
    return status


def received(client: Client, count: int) -> list[bytes]:
    """So many bodies at least, acknowledged."""
    return bodies(receive_all(client, TOPIC, GROUP, count, settle=True))


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=LONG)])
def test_what_was_answered_survives_kill_9_and_goes_once(tmp_path: Path, flush: str) -> None:
    known = random.Random(1)
    options = {**OPTIONS, "recallMessageEnable": "true", "flushDiskType": flush}
    with Gateway(tmp_path, **options) as gateway:
        expected: set[bytes] = set()
        got: list[bytes] = []
        for number in range(ROUNDS):
            client = Client(gateway.address)
            client.receive(TOPIC, GROUP, invisible_ms=500)  # what is not acknowledged before the crash
            halves = {}
            for each in range(20):
                body = b"%d-%d" % (number, each)
                answer = send_later(client, b"later-" + body, known.randint(-500, 1500))
                assert answer.status.code == pb.OK
                expected.add(b"later-" + body)
                halves[b"paid-" + body] = half(client, b"paid-" + body)
            for attempt in itertools.count():  # on a busy machine one may be delivered before it is recalled
                body = b"recalled-%d-%d" % (number, attempt)
                handle = send_later(client, body, 2000).entries[0].recall_handle
                request = rpc.RecallMessageRequest(topic=pb.Resource(name=TOPIC), recall_handle=handle)
                if client.call("RecallMessage", request).status.code == pb.OK:
                    break
                expected.add(body)
            commit = set(known.sample(sorted(halves), 10))
            expected |= commit
            before = set(known.sample(sorted(halves), 10))
            for body in sorted(before):
                how = pb.COMMIT if body in commit else pb.ROLLBACK
                assert end(client, halves[body], how).code == pb.OK
            gateway.kill()
            client.close()
            gateway.start()
            client = Client(gateway.address)
            for body in sorted(halves.keys() - before):
                how = pb.COMMIT if body in commit else pb.ROLLBACK
                assert end(client, halves[body], how).code == pb.OK, "it is pending after the crash"
            unknown = end(client, halves[min(before - commit)], pb.COMMIT)
            assert unknown.code == pb.INVALID_TRANSACTION_ID, "what was rolled back is not committed later"
            if number % 2:
                # due behind what was recalled, which would have come before it
                expected.add(last := b"last-%d" % number)
                send_later(client, last, 2000)
                got += received(client, len(expected) - len(got))
            client.close()
        assert gateway.terminate() == 0
    assert sorted(got) == sorted(expected)
    assert bodies_of(gateway.store, TOPIC) == dict.fromkeys(expected, 1), "none went twice"


def test_producers_are_asked_again_after_kill_9(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS, **CHECKED) as gateway:
        client = Client(gateway.address)
        client.receive(TOPIC, GROUP)
        ids = {body: half(client, body) for body in (b"commit", b"rollback", b"unknown")}
        with TelemetryClient(gateway.address, "producer-1", producer_settings(TOPIC)) as producer:
            assert producer.next_command().HasField("recover_orphaned_transaction_command")
            gateway.kill()
        client.close()
        gateway.start()
        client = Client(gateway.address)
        with TelemetryClient(gateway.address, "producer-1", producer_settings(TOPIC)) as producer:
            answers = {b"commit": pb.COMMIT, b"rollback": pb.ROLLBACK}
            asked: dict[bytes, pb.Message] = {}
            while answers.keys() - asked or b"unknown" not in asked:
                orphan = producer.next_command().recover_orphaned_transaction_command
                body = orphan.message.body
                assert orphan.transaction_id == ids[body]
                if body in answers:
                    status = end(client, ids[body], answers[body], source=pb.SOURCE_SERVER_CHECK)
                    assert status.code == pb.OK
                else:
                    how = pb.TRANSACTION_RESOLUTION_UNSPECIFIED
                    assert end(client, ids[body], how, source=pb.SOURCE_SERVER_CHECK).code == pb.OK
                asked[body] = orphan.message
        assert asked[b"commit"].system_properties.message_type == pb.TRANSACTION
        assert received(client, 1) == [b"commit"]
        client.close()


def test_delayed_messages_and_transactions_over_tls(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS, **CHECKED) as gateway:
        certificate = (gateway.store / "config" / "trial-certificate.pem").read_bytes()
        tls = grpc.ssl_channel_credentials(certificate)
        client = Client(gateway.address)
        client.channel.close()
        client.channel = grpc.secure_channel(gateway.address, tls)
        client.receive(TOPIC, GROUP)
        assert send_later(client, b"later", 1000).status.code == pb.OK
        assert end(client, half(client, b"paid"), pb.COMMIT).code == pb.OK
        half(client, b"asked")
        with TelemetryClient(gateway.address, "producer-1", producer_settings(TOPIC), tls) as producer:
            orphan = producer.next_command().recover_orphaned_transaction_command
            assert end(client, orphan.transaction_id, pb.COMMIT, source=pb.SOURCE_SERVER_CHECK).code == pb.OK
        assert sorted(received(client, 3)) == [b"asked", b"later", b"paid"]
        client.close()


def test_a_broker_with_very_many_timers_starts(tmp_path: Path) -> None:
    """`benchmarks.timers` does it with a million."""
    gateway = Gateway(tmp_path, **OPTIONS, mappedFileSizeCommitLog=str(SEGMENT))
    with gateway:
        client = Client(gateway.address)
        client.receive(TOPIC, GROUP)
        client.close()
        assert gateway.terminate() == 0
        write_timers(gateway.store, TOPIC, TIMERS, now_ms() + 3_600_000, 3_600_000, "FAR")
        write_timers(gateway.store, TOPIC, DUE, now_ms() - 2000, 1000, "DUE")
        file = gateway.store / FOLDER / "timers.due"
        file.unlink(missing_ok=True)
        for stop in (gateway.kill, gateway.terminate):
            gateway.start()
            client = Client(gateway.address)
            assert client.send(TOPIC, b"served").status.code == pb.OK
            client.close()
            stop()
        assert file.stat().st_size > 20 * TIMERS, "a stop wrote what waits"
        gateway.start()
        client = Client(gateway.address)
        bodies = received(client, DUE + 2)
        assert (len(bodies), bodies.count(b"served")) == (DUE + 2, 2)
        client.close()
