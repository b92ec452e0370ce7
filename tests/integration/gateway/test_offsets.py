"""QueryOffset and GetOffset over gRPC; where queues begin once retention has deleted their front."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import AT_ONCE, BODY, SEGMENT, answer, drain, first_segment, run
from tests.support.waiting import wait_until

ONE_QUEUE = {**AT_ONCE, "defaultTopicQueueNums": "1"}


@pytest.fixture
def retaining(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, **ONE_QUEUE) as gateway:
        yield gateway


def queue(topic: str, number: int = 0, broker: str = "") -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=number, broker=pb.Broker(name=broker))


def query(client: Client, topic: str, policy: pb.QueryOffsetPolicy, at: Timestamp | None = None) -> int:
    request = rpc.QueryOffsetRequest(message_queue=queue(topic), query_offset_policy=policy, timestamp=at)
    answer = client.call("QueryOffset", request)
    assert answer.status.code == pb.OK, answer.status.message
    return int(answer.offset)


def committed(client: Client, topic: str, group: str) -> Any:
    request = rpc.GetOffsetRequest(group=pb.Resource(name=group), message_queue=queue(topic))
    return client.call("GetOffset", request)


def test_offsets_of_a_queue_and_by_the_times_its_messages_carry(client: Client, name: str) -> None:
    for body in (b"0", b"1", b"2", b"3"):
        client.send(name, body)
    found = client.receive(name, name)[1]
    of_one = [each for each in found if each.system_properties.queue_id == 0]
    assert query(client, name, pb.BEGINNING) == 0
    assert query(client, name, pb.END) == len(of_one)
    for each in of_one:
        stored = each.system_properties.store_timestamp
        earlier = [
            m
            for m in of_one
            if m.system_properties.store_timestamp.ToMilliseconds() < stored.ToMilliseconds()
        ]
        assert query(client, name, pb.TIMESTAMP, stored) == len(earlier)
    assert query(client, name, pb.TIMESTAMP, Timestamp(seconds=0)) == 0
    assert query(client, name, pb.TIMESTAMP, Timestamp(seconds=1 << 33)) == len(of_one)


def test_the_offset_of_a_group_is_where_everything_before_is_settled(client: Client, name: str) -> None:
    for _ in range(16):  # two for every queue
        client.send(name, b"x")
    assert committed(client, name, name).status.code == pb.OFFSET_NOT_FOUND
    found = drain(client, name, name)
    of_one = sorted(
        (each for each in found if each.system_properties.queue_id == 0),
        key=lambda each: each.system_properties.queue_offset,
    )
    assert committed(client, name, name).offset == 0
    client.ack(name, name, *of_one[1:])
    assert committed(client, name, name).offset == 0
    client.ack(name, name, of_one[0])
    answer = committed(client, name, name)
    assert (answer.status.code, answer.offset) == (pb.OK, len(of_one))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            {"message_queue": queue("nobody-made-it")},
            pb.TOPIC_NOT_FOUND,
            "`lakebroker topic list` names those that do",
        ),
        ({"message_queue": queue("TBW102")}, pb.ILLEGAL_TOPIC, "TBW102"),
        ({"message_queue": queue("{}", 8)}, pb.BAD_REQUEST, "no queue 8; it has 0 to 7"),
        ({"message_queue": queue("{}", -1)}, pb.BAD_REQUEST, "no queue -1"),
        ({"message_queue": queue("{}", 0, "elsewhere")}, pb.BAD_REQUEST, "of broker 'elsewhere'"),
        ({"query_offset_policy": 7}, pb.BAD_REQUEST, "offset policy 7 is unknown"),
        ({"query_offset_policy": pb.TIMESTAMP}, pb.BAD_REQUEST, "needs a timestamp"),
        (
            {"query_offset_policy": pb.TIMESTAMP, "timestamp": Timestamp(nanos=-1)},
            pb.BAD_REQUEST,
            "-1 ns behind the second",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_reason(
    client: Client, name: str, change: dict[str, Any], code: int, message: str
) -> None:
    client.send(name, b"x")
    request = rpc.QueryOffsetRequest(**{"message_queue": queue(name), **change})
    if request.message_queue.topic.name == "{}":
        request.message_queue.topic.name = name
    answer = client.call("QueryOffset", request)
    assert answer.status.code == code, answer.status.message
    assert message in answer.status.message
    if "policy" not in str(change):
        group = rpc.GetOffsetRequest(group=pb.Resource(name=name), message_queue=request.message_queue)
        assert client.call("GetOffset", group).status.code == code


def test_a_group_below_the_minimum_goes_on_at_the_minimum(retaining: Gateway, name: str) -> None:
    client = Client(retaining.address)
    client.send(name, *(b"small" for _ in range(3)))
    early = drain(client, name, "early")
    client.ack(name, "early", *early)
    assert committed(client, name, "early").offset == 3
    run(retaining, "group", "create", "at-zero")
    run(retaining, "offset", "reset", "at-zero", "--topic", name, "--to", "earliest")
    for _ in range(60):
        assert client.send(name, BODY).status.code == pb.OK
    wait_until(lambda: first_segment(retaining) == 5 * SEGMENT)  # the last one, which stays
    least = query(client, name, pb.BEGINNING)
    assert 3 < least < 63 == query(client, name, pb.END)
    assert query(client, name, pb.TIMESTAMP, Timestamp(seconds=0)) == least
    (row,) = answer(retaining, "offset", "list", "at-zero")
    assert (row["committed"], row["behind"]) == (0, 63), "also by what has expired"
    received = drain(client, name, "early")
    least_after = query(client, name, pb.BEGINNING)
    offsets = [message.system_properties.queue_offset for message in received]
    assert offsets == list(range(offsets[0], 63)), "from the minimum on, none left out"
    assert least <= offsets[0] <= least_after
    client.channel.close()
    retaining.kill()
    retaining.start()
    client = Client(retaining.address)
    assert query(client, name, pb.BEGINNING) >= least_after
    assert query(client, name, pb.END) == 63
    client.channel.close()
