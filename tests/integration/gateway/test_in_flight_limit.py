"""A queue with as many messages in flight as may be: who waits is served once there is room, by whatever makes it.

Each wait ends with nothing unless it is woken: nobody looks again when its time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway

LIMIT = 2
WAIT_MS = 8000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = {
        **OPTIONS,
        "defaultTopicQueueNums": "1",
        "retryMaxTimes": "0",
        "lakeMaxInFlightPerQueue": str(LIMIT),
    }
    with Gateway(tmp_path_factory.mktemp("limit"), **options) as gateway:
        yield gateway.address


def waiting(address: str, name: str, count: int = 1) -> Callable[[], list[bytes]]:
    """Receives that wait; the bodies they get when called."""
    client = Client(address, "waiter")
    got: list[bytes] = []

    def receive() -> None:
        _, found = client.receive(name, name, batch=1, invisible_ms=60_000, wait_ms=WAIT_MS)
        got.extend(message.body for message in found)

    threads = [threading.Thread(target=receive) for _ in range(count)]
    for thread in threads:
        thread.start()
    # a call behind theirs on their connection comes back with nothing: theirs have looked
    assert client.receive(name, name, wait_ms=400) == (pb.MESSAGE_NOT_FOUND, [])

    def result() -> list[bytes]:
        for thread in threads:
            thread.join(WAIT_MS)
        client.channel.close()
        return got

    return result


def full(address: str, name: str, **extra: Any) -> tuple[Client, list[pb.Message]]:
    client = Client(address)
    client.send(name, *(b"%d" % number for number in range(5)))
    found = client.receive(name, name, **extra)[1]
    assert [message.body for message in found] == [b"0", b"1"]
    return client, found


def request_of(make: type, name: str, message: pb.Message) -> Any:
    return make(
        group=pb.Resource(name=name),
        topic=pb.Resource(name=name),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )


def test_an_ack_serves_one_who_waits_and_no_more_than_there_is_room_for(address: str, name: str) -> None:
    client, (first, second) = full(address, name, invisible_ms=60_000)
    got = waiting(address, name, count=3)
    assert client.ack(name, name, first).status.code == pb.OK
    assert got() == [b"2"]
    more = waiting(address, name, count=2)
    assert client.ack(name, name, second).status.code == pb.OK
    assert more() == [b"3"]
    client.channel.close()


def test_a_message_forwarded_to_dead_letters_makes_room(address: str, name: str) -> None:
    client, (first, _) = full(address, name, invisible_ms=60_000)
    got = waiting(address, name)
    request = request_of(rpc.ForwardMessageToDeadLetterQueueRequest, name, first)
    assert client.call("ForwardMessageToDeadLetterQueue", request).status.code == pb.OK
    assert got() == [b"2"]
    client.channel.close()


def test_a_message_expired_for_the_last_time_makes_room(address: str, name: str) -> None:
    client, _ = full(address, name, invisible_ms=4000)
    got = waiting(address, name)
    assert got() == [b"2"], "one delivery only: the two that expire become dead letters"
    client.channel.close()


def test_a_message_given_back_is_delivered_to_one_who_waits(address: str, name: str) -> None:
    client = Client(address)
    assert client.send(name, b"0").status.code == pb.OK
    (message,) = client.receive(name, name, invisible_ms=60_000)[1]
    got = waiting(address, name)
    request = request_of(rpc.ChangeInvisibleDurationRequest, name, message)
    request.suspend = True
    request.invisible_duration.FromMilliseconds(0)
    assert client.call("ChangeInvisibleDuration", request).status.code == pb.OK
    assert got() == [b"0"]
    client.channel.close()
