"""Gateways whose retention deletes at once what is due, and messages as large as it takes for several segments."""

from __future__ import annotations

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway

SEGMENT = 1 << 20
AT_ONCE = {
    **OPTIONS,
    "mappedFileSizeCommitLog": str(SEGMENT),
    "fileReservedTime": "0",
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": "100",
}
BODY = b"x" * 100_000


def first_segment(gateway: Gateway) -> int:
    return min(int(path.name) for path in (gateway.store / "commitlog").iterdir())


def drain(client: Client, topic: str, group: str) -> list[pb.Message]:
    found: list[pb.Message] = []
    while messages := client.receive(topic, group, invisible_ms=60_000)[1]:
        found += messages
    return found
