"""A broker in this process with a lake, to which its log goes when the test says so, and whose old segments go then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from tests.support.lakes.maintained import reput

SEGMENT = 1 << 20
_ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))


class LakeBroker(InProcessBroker):
    """Its lake is `lake`, beside the store."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.lake = folder / "lake"
        given = {
            "lakeLocation": str(self.lake),
            "mappedFileSizeCommitLog": str(SEGMENT),
            "deleteWhen": _ALWAYS,
            "fileReservedTime": "0",
            "cleanResourceInterval": "3600000",
            "brokerName": "broker-a",
        }
        super().__init__(folder, **given | options)

    def dispatch(self) -> None:
        """All that the log has goes into the lake."""
        self.flush()
        reput(self.root, self.lake)

    def fill_segment(self) -> None:
        """Has the log go on in another segment."""
        start = self.store.max_offset // SEGMENT
        while self.store.max_offset // SEGMENT == start:
            self.send("filler", bytes(60_000))

    def retire(self) -> int:
        """Deletes all segments but the last, where nothing but time is in their way; how many went."""
        self.fill_segment()
        self.dispatch()
        last = self.store.max_offset // SEGMENT * SEGMENT
        gone = 0
        for _ in range(6):
            if self.store.min_offset >= last:
                break
            for path in (self.root / "commitlog").iterdir():
                os.utime(path, (1, 1))
            gone += self.run(self.broker.retention.run_once())
            for _ in range(20):
                self.settle()
            self.flush()
            self.dispatch()
        return gone

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """The first queue offset that the log has."""
        return self.store.index.min_offset(topic, queue_id)


def drain(broker: LakeBroker, topic: str = "t", group: str = "g", **asked: object) -> list[pb.Message]:
    """Everything that is there, in the order that it comes."""
    found: list[pb.Message] = []
    for _ in range(1000):
        waiting = broker.begin_receive(topic, group, **{"wait_ms": 1000, "invisible_ms": 60_000, **asked})
        if not waiting.done:
            broker.hang_up(waiting)
            return found
        assert waiting.response[0].status.code == pb.OK
        found += waiting.messages
    raise AssertionError("no end")


def send(broker: LakeBroker, count: int, topic: str = "t", **system: object) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    broker.send(topic, *sent, **system)
    return sent


def queue(topic: str = "t", number: int = 0) -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=number)


def pull(broker: LakeBroker, offset: int, **asked: object) -> tuple[int, list[pb.Message], int]:
    """Code, messages, and where the next pull goes on."""
    request = rpc.PullMessageRequest(
        group=pb.Resource(name="g"),
        message_queue=queue(),
        offset=offset,
        batch_size=32,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression=str(asked.get("tag", "*"))),
    )
    request.long_polling_timeout.FromMilliseconds(0)
    responses = broker.call("PullMessage", request)
    code = next(each.status.code for each in responses if each.HasField("status"))
    following = next((each.next_offset for each in responses if each.HasField("next_offset")), -1)
    return code, [each.message for each in responses if each.HasField("message")], following


def query(broker: LakeBroker, policy: int, at_ms: int | None = None) -> rpc.QueryOffsetResponse:
    request = rpc.QueryOffsetRequest(message_queue=queue(), query_offset_policy=policy)  # type: ignore[arg-type]
    if at_ms is not None:
        request.timestamp.FromMilliseconds(at_ms)
    found: rpc.QueryOffsetResponse = broker.call("QueryOffset", request)
    return found


def take_away(broker: LakeBroker) -> Callable[[], object]:
    """The lake is away, until the result is called."""
    aside = broker.lake.with_name("aside")
    broker.lake.rename(aside)
    return lambda: aside.rename(broker.lake)
