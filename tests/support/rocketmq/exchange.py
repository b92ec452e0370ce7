"""A store that goes from a broker of ours to the real one and back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.crash_image import copy_at_rest
from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.messages import MessagingCalls
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.waiting import wait_until

SEGMENT = 1 << 20


def ours(folder: Path, clock: ManualClock | None = None, **options: str) -> InProcessBroker:
    """A broker of ours that stands for the real one; without a `clock` its own begins at the real time."""
    own = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": str(SEGMENT),
        "maxMessageSize": str(1 << 19),
        "lakeAutoCreateTopics": "true",
    }
    return InProcessBroker(folder, clock=clock, **{**own, **options})


def left(broker: InProcessBroker, end: str, image: Path) -> Path:
    """The store that it leaves, `stopped` or `killed` at this instant."""
    if end == "stopped":
        broker.stop()
        return broker.root
    copy_at_rest(broker.root, image)
    return image


def theirs(folder: Path, store: Path, **options: str) -> RocketMQ:
    """The real broker over a store; it writes consumers' offsets twice a second, from 10 s after its start on."""
    return RocketMQ(
        folder,
        {},
        heap="1g",
        storePathRootDir=str(store),
        storePathCommitLog=str(store / "commitlog"),
        mappedFileSizeCommitLog=str(SEGMENT),
        flushConsumerOffsetInterval="500",
        **options,
    )


def written_offsets(peer: RocketMQ, topic: str, group: str, count: int) -> None:
    """Returns when the real broker has written that the group is behind so many messages of the topic."""
    file = peer.store / "config" / "consumerOffset.json"

    def behind() -> bool:
        text = file.read_text() if file.exists() else ""
        # its JSON has numbers as names of queues
        begin = text.find(f'"{topic}@{group}"')
        of_queues = text[text.find("{", begin) + 1 : text.find("}", begin)] if begin >= 0 else ""
        return sum(int(each.rpartition(":")[2]) for each in of_queues.split(",") if ":" in each) >= count

    wait_until(behind, lambda: f"an offset of {count} in {file.read_text()}")


def run(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = subprocess.run(
        command(*arguments, "--json"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def take(client: MessagingCalls, topic: str, group: str) -> list[pb.Message]:
    """Everything there is now for the group, acknowledged."""
    found: list[pb.Message] = []
    while messages := client.receive(topic, group, invisible_ms=60_000)[1]:
        assert client.ack(topic, group, *messages).status.code == pb.OK
        found += messages
    return found
