"""PRIORITY messages beside the real proxy: what is taken, its queue, and the order of receives."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.telemetry_client import TelemetryClient, consumer_settings

QUEUES = 4
TOPICS = {"urgent": "PRIORITY", "orders": "NORMAL", "fifo": "FIFO"}
PRIORITY, NORMAL, FIFO = pb.PRIORITY, pb.NORMAL, pb.FIFO
CASES: dict[str, dict[str, Any]] = {
    "priority": {"message_type": PRIORITY, "priority": 2},
    "priority 0": {"message_type": PRIORITY, "priority": 0},
    "priority above the queues": {"message_type": PRIORITY, "priority": 9},
    "the largest priority": {"message_type": PRIORITY, "priority": (1 << 31) - 1},
    "of type NORMAL": {"message_type": NORMAL, "priority": 1},
    "of no type": {"message_type": 0, "priority": 1},
    "with a message group": {"message_type": PRIORITY, "priority": 1, "message_group": "g"},
    "FIFO": {"message_type": FIFO, "priority": 1, "message_group": "g"},
    "without a priority": {"message_type": PRIORITY},
}
OTHERWISE = {
    ("orders", "without a priority"): ("OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("fifo", "with a message group"): ("OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("negative",): ("INTERNAL_SERVER_ERROR", "BAD_REQUEST"),
}
"""There and here; the reasons are in docs/differences.md."""


def played(address: str) -> tuple[dict[tuple[str, ...], str], list[tuple[int, ...]]]:
    """`sent_and_received` by a client that the proxy knows."""
    with TelemetryClient(address, "c", consumer_settings("readers", "urgent")):
        return sent_and_received(address)


def sent_and_received(address: str) -> tuple[dict[tuple[str, ...], str], list[tuple[int, ...]]]:
    """The code of every send, and of what is received queue, priority and type."""
    client = Client(address, "c")
    deadline = time.monotonic() + 60
    while client.send("urgent", b"first", message_type=PRIORITY, priority=1).status.code != pb.OK:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    codes: dict[tuple[str, ...], str] = {}

    def send(*name: str, topic: str, **fields: Any) -> None:
        codes[name] = pb.Code.Name(client.send(topic, b"x", **fields).status.code)

    for topic in TOPICS:
        for name, fields in CASES.items():
            send(topic, name, topic=topic, **fields)
    later = Timestamp(seconds=int(time.time()) + 5)
    send("delayed", topic="urgent", message_type=PRIORITY, priority=1, delivery_timestamp=later)
    send("negative", topic="urgent", message_type=PRIORITY, priority=-1)
    for priority in (3, 0, 1, 2, 3):
        send(f"another {priority}", topic="urgent", message_type=PRIORITY, priority=priority)
    received: list[tuple[int, ...]] = []
    while True:
        code, messages = client.receive("urgent", "readers", batch=2, invisible_ms=60_000, wait_ms=5000)
        if code == pb.MESSAGE_NOT_FOUND:
            break
        assert code == pb.OK
        for each in messages:
            system = each.system_properties
            received.append((system.queue_id, system.priority, system.message_type))
    code, ordered = client.receive("fifo", "readers", batch=32, invisible_ms=60_000, wait_ms=5000)
    received += [(each.system_properties.priority, each.system_properties.message_type) for each in ordered][
        :1
    ]
    client.close()
    return codes, received


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ascending", ["true", "false"])
def test_what_the_real_proxy_takes_and_gives(tmp_path: Path, ascending: str) -> None:
    topics = {name: (QUEUES, kind) for name, kind in TOPICS.items()}
    with RocketMQ(tmp_path / "peer", topics, ["readers"], priorityOrderAsc=ascending) as peer:
        their_codes, their_messages = played(peer.address)
    with Gateway(tmp_path / "gateway", priorityOrderAsc=ascending) as gateway:
        for name, kind in TOPICS.items():
            create = ["topic", "create", name, "--queues", str(QUEUES), "--type", kind]
            made = command(*create, "--gateway", gateway.address)
            subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
        our_codes, our_messages = played(gateway.address)
    unlike = {
        name: (theirs, our_codes[name]) for name, theirs in their_codes.items() if theirs != our_codes[name]
    }
    assert unlike == OTHERWISE
    assert our_messages == their_messages
    queues = [each[0] for each in our_messages[:-1]]
    assert queues == sorted(queues, reverse=ascending == "true")
    assert set(queues) == set(range(QUEUES))


def by_official_client(address: str) -> list[tuple[str, int]]:
    """Bodies and priorities that the official Python client gets of what it sent."""
    with OfficialClient() as official:
        when_started(official, "producer", endpoints=address, topics=["urgent"])
        for number, priority in enumerate((0, 2, 1, 3, 2, 7)):
            when_started(official, "send", topic="urgent", bodies=[str(number)], priority=priority)
        asked = {"group": "readers", "topics": {"urgent": "*"}, "await_s": 5}
        official.call("simple", endpoints=address, **asked)
        found: list[tuple[str, int]] = []
        while messages := when_started(official, "receive", max=2, invisible_s=60)["messages"]:
            found += [(each["body"], each["priority"]) for each in messages]
        return found


@pytest.mark.timeout(300)
def test_an_official_client_gets_the_order_that_it_gets_of_the_real_proxy(tmp_path: Path) -> None:
    with RocketMQ(tmp_path / "peer", {"urgent": (QUEUES, "PRIORITY")}, ["readers"]) as peer:
        theirs = by_official_client(peer.address)
    with Gateway(tmp_path / "gateway") as gateway:
        create = ["topic", "create", "urgent", "--queues", str(QUEUES), "--type", "PRIORITY"]
        made = command(*create, "--gateway", gateway.address)
        subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
        assert by_official_client(gateway.address) == theirs
    assert theirs == [("3", 3), ("5", 7), ("1", 2), ("4", 2), ("2", 1), ("0", 0)]


FACTORS = {"always": 100, "often": 50, "never": 0}
"""`priority.factor` of groups, by their names."""
RECEIVES = 200


def most_urgent(address: str) -> dict[str, int]:
    """By group, how many of its receives of one message gave one of the highest priority; there are more of each priority."""
    client = Client(address, "c")
    found = {}
    with TelemetryClient(address, "c", consumer_settings("always", "urgent")):
        deadline = time.monotonic() + 60
        while client.send("urgent", b"first", message_type=PRIORITY, priority=0).status.code != pb.OK:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        for priority in [*range(QUEUES)] * (RECEIVES + 1):
            assert client.send("urgent", b"x", message_type=PRIORITY, priority=priority).status.code == pb.OK
    for group in FACTORS:
        with TelemetryClient(address, "c", consumer_settings(group, "urgent")):
            found[group] = 0
            for _ in range(RECEIVES):
                code, messages = client.receive("urgent", group, batch=1, invisible_ms=300_000, wait_ms=5000)
                assert code == pb.OK
                found[group] += messages[0].system_properties.priority == QUEUES - 1
    client.close()
    return found


@pytest.mark.timeout(300)
def test_a_groups_factor_says_how_many_receives_look_by_priority(tmp_path: Path) -> None:
    """The others begin at any of four queues: of 200, 125 of `often` and 50 of `never` give the most urgent, on average, with
    a standard deviation of 7."""
    groups = {name: {"priority.factor": str(factor)} for name, factor in FACTORS.items()}
    with RocketMQ(tmp_path / "peer", {"urgent": (QUEUES, "PRIORITY")}, groups) as peer:
        theirs = most_urgent(peer.address)
    with Gateway(tmp_path / "gateway") as gateway:
        create = ["topic", "create", "urgent", "--queues", str(QUEUES), "--type", "PRIORITY"]
        made = [create]
        for name, attributes in groups.items():
            changes = {f"+{key}": value for key, value in attributes.items()}
            text = json.dumps({"attributes": changes})
            made.append(["group", "create", name, "--configuration", text])
        for each in made:
            done = command(*each, "--gateway", gateway.address)
            subprocess.run(done, cwd=ROOT, check=True, capture_output=True)
        ours = most_urgent(gateway.address)
    assert ours["always"] == RECEIVES
    assert theirs["always"] > 0.9 * RECEIVES, "a pop passes over a queue that the pop before still has locked"
    for side in (theirs, ours):
        assert 85 < side["often"] < 165, side
        assert 15 < side["never"] < 85, side
