"""SIGKILL and SIGTERM of the gateway under load: nothing answered is lost, nothing acknowledged comes back.

`make evidence` runs many rounds, `make test` a few.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as admin
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.logs.contents import stored
from tests.support.waiting import LIMIT_S, wait_until

ROUNDS = 200 if EVIDENCE else 2


class Load:
    """Senders and consumers until the gateway dies; what was answered to them."""

    def __init__(self, address: str, round_: int) -> None:
        self.address = address
        self.round = round_
        self.sent: dict[str, bytes] = {}
        self.acked: set[str] = set()
        self.unsure: set[str] = set()
        """Received; whether the acknowledgement got there is not known."""
        self.ends: list[grpc.StatusCode] = []
        """How each thread's last call ended."""
        self.lock = threading.Lock()

    def send(self, sender: int) -> None:
        client = Client(self.address, f"sender-{sender}")
        for number in range(100_000):
            body = f"{self.round}/{sender}/{number} ".encode() * 20
            try:
                answer = client.send("crash", body)
            except grpc.RpcError as error:
                self.ends.append(error.code())
                return
            if answer.status.code == pb.OK:
                with self.lock:
                    self.sent[answer.entries[0].message_id] = body

    def consume(self, consumer: int) -> None:
        client = Client(self.address, f"consumer-{consumer}")
        messages: list[pb.Message] = []
        while True:
            try:
                messages = client.receive("crash", "g", invisible_ms=1000)[1]
                if not messages:
                    continue
                answer = client.ack("crash", "g", *messages)
            except grpc.RpcError as error:
                self.ends.append(error.code())
                self.unsure |= {m.system_properties.message_id for m in messages}
                return
            messages = []
            with self.lock:
                self.acked |= {e.message_id for e in answer.entries if e.status.code == pb.OK}


@pytest.mark.timeout(7200 if EVIDENCE else 600)
@pytest.mark.parametrize("mode", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=LONG)])
def test_sigkill_under_load(
    tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(7)
    sent: dict[str, bytes] = {}
    acked: set[str] = set()
    unsure: set[str] = set()
    options = {
        **OPTIONS,
        "mappedFileSizeCommitLog": str(1 << 20),
        "flushDiskType": mode,
        "lakeJournalSnapshotBytes": "131072",
    }
    with Gateway(tmp_path, **options) as gateway:
        for round_ in range(ROUNDS):
            load = Load(gateway.address, round_)
            threads = [threading.Thread(target=load.send, args=(n,)) for n in range(3)]
            threads += [threading.Thread(target=load.consume, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            enough = rng.randint(30, 300)
            wait_until(lambda load=load, enough=enough: len(load.sent) > enough)
            gateway.kill()
            for thread in threads:
                thread.join()
            sent |= load.sent
            acked |= load.acked
            unsure |= load.unsure
            gateway.start()
        found = everything(Client(gateway.address))
        record_property("rounds", ROUNDS)
        record_property("answered", len(sent))
        record_property("acknowledged", len(acked))
        assert not acked & set(found), "acknowledged messages came back"
        lost = set(sent) - set(found) - acked - unsure
        assert not lost, f"{len(lost)} of {len(sent)} answered messages are gone"
        assert not [i for i, body in found.items() if i in sent and sent[i] != body]
        assert gateway.terminate() == 0
    assert set(sent) <= stored(gateway.store).keys(), "an answered message is not in the log"


@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        ("SYNC_FLUSH", "http2"),
        pytest.param("ASYNC_FLUSH", "http2", marks=LONG),
        ("ASYNC_FLUSH", "grpcio"),
        pytest.param("SYNC_FLUSH", "grpcio", marks=LONG),
    ],
)
def test_sigterm_under_load(tmp_path: Path, mode: str, transport: str) -> None:
    with Gateway(tmp_path, transport=transport, **OPTIONS, flushDiskType=mode) as gateway:
        load = Load(gateway.address, 0)
        threads = [threading.Thread(target=load.send, args=(n,)) for n in range(6)]
        threads += [threading.Thread(target=load.consume, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(load.sent) > 300 and len(load.acked) > 50)
        assert gateway.terminate() == 0
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a call hangs"
        allowed = {grpc.StatusCode.UNAVAILABLE}
        if transport == "grpcio":
            allowed.add(grpc.StatusCode.CANCELLED)  # what grpcio answers to calls it has taken and not begun
        assert len(load.ends) == len(threads)
        assert set(load.ends) <= allowed
        gateway.start()
        found = everything(Client(gateway.address))
        assert not load.acked & set(found), "acknowledged messages came back"
        assert set(load.sent) <= set(found) | load.acked | load.unsure
        assert not [i for i, body in found.items() if i in load.sent and load.sent[i] != body]


def everything(client: Client) -> dict[str, bytes]:
    """Every message that the group has not acknowledged, by id."""
    found: dict[str, bytes] = {}
    asked = admin.DescribeGroupAccumulationRequest(group=pb.Resource(name="g"))

    def all_of_it() -> bool:
        messages = client.receive("crash", "g", invisible_ms=3_600_000)[1]
        found.update({m.system_properties.message_id: m.body for m in messages})
        left = client.admin("DescribeGroupAccumulation", asked).accumulation
        return bool(left.ready_messages == 0 and left.inflight_messages == len(found))

    wait_until(all_of_it, lambda: f"the rest of {len(found)} messages")
    return found
