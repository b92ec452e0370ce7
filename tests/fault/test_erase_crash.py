"""SIGKILL of the gateway right behind the answer to an erasure, and in the middle of one: what was answered holds, and the same
call again goes on."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from store.log_source import FolderLog
from tests.suite.evidence import EVIDENCE

ROUNDS = 40 if EVIDENCE else 1


def by_path(gateway: Gateway) -> set[int]:
    log = FolderLog(gateway.store)
    found = set(log.erased(log.describe().log_id).tolist())
    log.close()
    return found


def received(client: Client, group: str) -> list[bytes]:
    found: list[bytes] = []
    while some := client.receive("crash", group)[1]:
        client.ack("crash", group, *some)
        found += [each.body for each in some]
    return found


def test_what_was_answered_holds_and_what_was_not_is_done_by_the_same_call(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    options = {**OPTIONS, "defaultTopicQueueNums": "1", "lakeJournalSnapshotBytes": "65536"}
    gateway = Gateway(tmp_path / "gateway", flushIntervalCommitLog="60000", **options)
    kept: list[bytes] = []
    erased: set[int] = set()
    with gateway:
        for number in range(ROUNDS):
            client = Client(gateway.address)
            for key in ("answered", "asked", "kept"):
                for _ in range(3):
                    body = f"{key} {number}".encode()
                    assert client.send("crash", body, keys=[f"{key}{number}"]).status.code == pb.OK
                    kept += [body] if key == "kept" else []
            answer = client.erase("crash", keys=[f"answered{number}"])
            gateway.kill()
            erased |= {each.physical_offset for each in answer.records}
            assert len(answer.records) == answer.new_records == 3
            assert by_path(gateway) >= erased
            gateway.start()
            client.close()

            client = Client(gateway.address)
            death = threading.Timer(dice.uniform(0, 0.05), gateway.kill)
            death.start()
            try:
                asked = client.erase("crash", keys=[f"asked{number}"])
            except grpc.RpcError:
                asked = None
            death.join()
            client.close()
            gateway.start()
            client = Client(gateway.address)
            again = client.erase("crash", keys=[f"asked{number}"])
            assert len(again.records) == 3
            assert asked is None or (asked.records == again.records and again.new_records == 0)
            erased |= {each.physical_offset for each in again.records}
            assert by_path(gateway) == erased
            assert received(client, f"g{number}") == kept
            client.close()
