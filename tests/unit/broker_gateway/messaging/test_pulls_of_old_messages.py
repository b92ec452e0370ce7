"""Pulls and offsets by time of what the log has no more: from the lake, as if it were still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.messaging.stored_message import MessageReader, StoredMessage
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_testing.messages import bodies
from store.index.time_search import BoundaryType
from tests.support.brokers.with_lake import (
    LakeBroker,
    drain,
    pull,
    query,
    queue,
    send,
    take_away,
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        made.create_topic("t")
        made.create_topic("filler")
        made.create_group("g", 3)
        yield made


def test_a_pull_goes_through_the_lake_into_the_log(broker: LakeBroker) -> None:
    for number in range(70):
        broker.send("t", b"%d" % number, tag="ab"[number % 2])
    before = pull(broker, 0)
    broker.retire()
    broker.send("t", b"70", tag="a")
    assert pull(broker, 0) == before
    found, offset = list[int](), 5
    while (answer := pull(broker, offset, tag="b"))[0] == pb.OK:
        found += [int(each.body) for each in answer[1]]
        offset = answer[2]
    assert answer == (pb.MESSAGE_NOT_FOUND, [], 71)
    assert found == list(range(5, 70, 2))
    assert bodies(pull(broker, 60)[1]) == [b"%d" % number for number in range(60, 71)]
    assert pull(broker, 72)[0] == pb.ILLEGAL_OFFSET


def test_a_pull_with_a_costly_filter_goes_through_the_lake_some_at_a_time(
    broker: LakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        broker.send("t", b"%d" % number, properties={"n": str(number)})
    broker.retire()
    looks = Counter[int]()
    made_of = MessageReader.made_of

    def counted(messages: MessageReader, record: bytes | None, queue_offset: int) -> StoredMessage | None:
        looks[broker.loop.iterations] += 1
        return made_of(messages, record, queue_offset)

    monkeypatch.setattr(MessageReader, "made_of", counted)
    costly = " AND ".join([*["n CONTAINS '9'"] * 60, "n > 38"])
    request = rpc.PullMessageRequest(
        group=pb.Resource(name="g"),
        message_queue=queue(),
        batch_size=32,
        filter_expression=pb.FilterExpression(type=pb.SQL, expression=costly),
        long_polling_timeout=Duration(),
    )
    found = [each.message.body for each in broker.call("PullMessage", request) if each.HasField("message")]
    assert found == [b"39"]
    assert (looks.total(), max(looks.values())) == (40, 3)


def test_a_pull_says_that_the_lake_is_away_and_which_offset_is_right(broker: LakeBroker) -> None:
    send(broker, 10)
    broker.retire()
    DeltaTable(str(broker.lake / "messages")).delete("topic = 't' AND queue_offset < 4")
    assert pull(broker, 2) == (pb.ILLEGAL_OFFSET, [], 4)
    broker.advance(60)
    broker.restart()
    back = take_away(broker)
    with capture_logs() as lines:
        assert pull(broker, 5)[0] == pb.INTERNAL_SERVER_ERROR
        assert query(broker, pb.BEGINNING).status.code == pb.INTERNAL_SERVER_ERROR
        message = query(broker, pb.BEGINNING).status.message
    assert "the lake" in message
    assert str(broker.lake.parent) not in message, "strangers are not told where it is"
    (told,) = (line for line in lines if line["event"] == "the lake cannot be read for a call")
    assert str(broker.lake) in told["error"]
    assert query(broker, pb.END).offset == 10, "that needs no lake"
    with pytest.raises(ServiceError, match="lake"):
        broker.reset("t", "g", 0, 5)
    back()
    broker.advance(31)
    assert query(broker, pb.BEGINNING).offset == 4
    assert len(pull(broker, 5)[1]) == 5
    broker.reset("t", "g", 0, 5)
    with pytest.raises(ServiceError, match=r"range \[4-10\]"):
        broker.reset("t", "g", 0, 3)


def test_offsets_of_times_before_the_log_are_the_lakes(broker: LakeBroker) -> None:
    times = []
    for number in range(6):
        times.append(broker.clock.now_ms)
        broker.send("t", b"%d" % number)
        broker.advance(1)
    asked = [time + more for time in times for more in (-1, 0, 1)]
    offsets = broker.broker.parts.offsets

    def at(boundary: BoundaryType) -> list[int]:
        return [broker.run(offsets.at("t", 0, each, boundary)) for each in asked]

    broker.retire()  # the log has none of these
    broker.advance(1)
    times.append(broker.clock.now_ms)
    broker.send("t", b"6")
    asked += [times[-1] - 1, times[-1], times[-1] + 1]
    lower, upper = at(BoundaryType.LOWER), at(BoundaryType.UPPER)
    assert lower == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7]
    assert upper == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6]
    assert query(broker, pb.TIMESTAMP, times[2]).offset == 2
    changed = broker.run(broker.broker.parts.offset_changes.reset("g", "t", -1, times[3], None))
    assert changed == {0: 3}
    assert bodies(drain(broker)) == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("seconds", [-(1 << 63), -9_223_372_036_854_776, (1 << 63) - 1])
def test_times_that_the_lake_cannot_hold_are_its_ends(broker: LakeBroker, seconds: int) -> None:
    send(broker, 3)
    broker.retire()
    request = rpc.QueryOffsetRequest(message_queue=queue(), query_offset_policy=pb.TIMESTAMP)
    request.timestamp.seconds = seconds
    found = broker.call("QueryOffset", request)
    assert (found.status.code, found.offset) == (pb.OK, 0 if seconds < 0 else 3)
    offsets = broker.broker.parts.offsets
    assert broker.run(offsets.at("t", 0, seconds * 1000, BoundaryType.UPPER)) == (0 if seconds < 0 else 2)
