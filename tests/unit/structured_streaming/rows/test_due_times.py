"""`deliver_timestamp` of delayed messages in the logs of both brokers: the time that was asked for, before and after it came."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from store.log_reader import LogReader
from tests.support.lakes.staged import StagedLake

REAL_STORE = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"
TIMER_TOPIC = "rmq_sys_wheel_timer"


@pytest.fixture
def lake(tmp_path: Path) -> StagedLake:
    return StagedLake(tmp_path / "lake")


def due_by_topic(lake: StagedLake, log: LogReader) -> dict[str, list[tuple[dict[str, str], int]]]:
    """Properties and due time, ms, of the messages of each topic that have one."""
    chunks = log.read_chunks(0, log.readable_offset, 64 << 20)
    rows = lake.take(b"".join(bytes(data) for _, data, _ in chunks))["messages"].to_pylist()
    found: dict[str, list[tuple[dict[str, str], int]]] = {}
    for row in sorted(rows, key=_place):
        if row["deliver_timestamp"] is not None:
            due = round(row["deliver_timestamp"].timestamp() * 1000)
            found.setdefault(row["topic"], []).append((dict(row["properties"]), due))
    return found


def _place(row: dict[str, Any]) -> int:
    return int(row["physical_offset"])


@pytest.mark.parametrize("ms", [1500, 2000, 2001])
def test_of_lakebroker(tmp_path: Path, lake: StagedLake, ms: int) -> None:
    with InProcessBroker(tmp_path / "broker") as broker:
        broker.create_topic("reminders")
        due = broker.clock.now_ms + ms
        sent = broker.send("reminders", b"x", message_type=pb.DELAY, delivery_timestamp=timestamp(due))
        assert sent.status.code == pb.OK
        broker.advance(ms / 1000 + 1)
        assert len(broker.receive("reminders", "readers")[1]) == 1
    found = due_by_topic(lake, LogReader(tmp_path / "broker" / "store"))
    assert {topic: [told for _, told in each] for topic, each in found.items()} == {
        TIMER_TOPIC: [due],
        "reminders": [due],
    }


def test_of_the_real_broker(tmp_path: Path, lake: StagedLake) -> None:
    """Its client asked for times; what its POP puts off for itself is in the timer's topic too."""
    with tarfile.open(REAL_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    found = due_by_topic(lake, LogReader(tmp_path / "store-cap", broker="broker-a", log_id="golden"))
    assert {"delay", TIMER_TOPIC} <= set(found)
    for topic in found:
        for told, due in found[topic]:
            assert due == int(told["TIMER_DELIVER_MS"])
    waited = [
        (int(told["TIMER_OUT_MS"]), due)
        for each in found.values()
        for told, due in each
        if "TIMER_OUT_MS" in told
    ]
    assert len(waited) > 2
    assert all(out < due for out, due in waited), "TIMER_OUT_MS is not what was asked for"
