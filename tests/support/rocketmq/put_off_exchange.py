"""Pending timers and halves in a store that goes to the real broker 5.5.0 and back: nothing fires twice, nothing is lost.

Ours runs by a clock of the test: it begins a minute before the real time, so that none of its records is of the future there, and
ends an hour behind it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import grpc

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.client import Client
from lakebroker_testing.messages import MessagingCalls, message
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.rocketmq.exchange import take
from tests.support.waiting import wait_until

TOPIC, GROUP = "later", "waiters"
HOUR_S = 3600
SETTLED = 11
"""Messages of the topic that the group has behind it when the real broker ends."""
TIMERS, TRANSACTIONS = 7, 2
"""That are pending then."""


def real_ms() -> int:
    return time.time_ns() // 1_000_000


def send_later(client: MessagingCalls, body: str, due_ms: int) -> None:
    one = message(TOPIC, body.encode(), message_type=pb.DELAY, delivery_timestamp=timestamp(due_ms))
    answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
    assert answer.status.code == pb.OK, answer.status.message


def half(client: MessagingCalls, body: str, **system: Any) -> str:
    # the real broker gives up a half that was born, as it takes it, in 1970
    born = timestamp(real_ms())
    one = message(TOPIC, body.encode(), message_type=pb.TRANSACTION, born_timestamp=born, **system)
    answer = client.call("SendMessage", rpc.SendMessageRequest(messages=[one]))
    assert answer.status.code == pb.OK, answer.status.message
    found: str = answer.entries[0].transaction_id
    return found


def commit(client: MessagingCalls, transaction: str) -> pb.Code:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name=TOPIC),
        transaction_id=transaction,
        message_id=transaction,
        resolution=pb.COMMIT,
        source=pb.SOURCE_CLIENT,
    )
    code: pb.Code = client.call("EndTransaction", request).status.code
    return code


def bodies(client: MessagingCalls) -> list[str]:
    """Of all that is there now, acknowledged."""
    return sorted(each.body.decode() for each in take(client, TOPIC, GROUP))


def received(client: Client, count: int) -> list[str]:
    """Bodies of so many messages of the real broker, acknowledged, and of those that came with them."""
    found: list[str] = []

    def all_there() -> bool:
        try:
            messages = client.receive(TOPIC, GROUP, invisible_ms=60_000, wait_ms=5000)[1]
        except grpc.RpcError:  # a proxy that has just started
            return False
        if messages:
            assert client.ack(TOPIC, GROUP, *messages).status.code == pb.OK
            found.extend(each.body.decode() for each in messages)
        return len(found) >= count

    wait_until(all_there, lambda: f"{count} messages, with {found},")
    return sorted(found)


@contextlib.contextmanager
def known(address: str) -> Iterator[None]:
    """A consumer that the real proxy knows: it takes no receives of others. Asked again while the proxy begins to know its broker."""
    with contextlib.ExitStack() as stack:

        def settled() -> bool:
            settings = consumer_settings(GROUP, TOPIC, pb.SIMPLE_CONSUMER)
            client = TelemetryClient(address, "tester", settings)
            try:
                client.__enter__()
            except AssertionError:
                client.__exit__()
                return False
            stack.push(client)
            return True

        wait_until(settled)
        yield


class PutOff:
    """What is sent and received at each of the three; in a store of one's own, or one that has more."""

    def __init__(self) -> None:
        self._there = real_ms() + 15_000
        self._back = real_ms() + HOUR_S * 1000
        self._ended = self._pending = self._other = ""

    def begin(self, broker: InProcessBroker) -> None:
        """At ours, whose time goes on by some seconds."""
        for number in range(3):
            send_later(broker, f"ours, early {number}", broker.clock.now_ms + 1000)
        broker.advance(3.0)
        assert bodies(broker) == [f"ours, early {number}" for number in range(3)]
        for number in range(5):
            send_later(broker, f"ours, there {number}", self._there + number * 100)
            send_later(broker, f"ours, back {number}", self._back + number * 100)
        self._ended, self._pending = half(broker, "ours, ended"), half(broker, "ours, pending")
        assert commit(broker, self._ended) == pb.OK
        broker.advance(2.0)
        assert bodies(broker) == ["ours, ended"]

    def there(self, address: str) -> None:
        """At the real one."""
        with contextlib.closing(Client(address)) as client, known(address):
            assert received(client, 5) == [f"ours, there {number}" for number in range(5)]
            for number in range(2):
                send_later(client, f"theirs, back {number}", self._back + 1000)
                send_later(client, f"theirs, early {number}", real_ms() + 1500)
            hour = Duration(seconds=HOUR_S)
            self._other = half(client, "theirs, pending", orphaned_transaction_recovery_duration=hour)
            assert received(client, 2) == ["theirs, early 0", "theirs, early 1"]

    def back(self, broker: InProcessBroker) -> None:
        """At ours, whose time goes on by more than an hour."""
        assert bodies(broker) == []
        assert commit(broker, self._pending) == commit(broker, self._other) == pb.OK
        broker.advance(1.0)
        assert bodies(broker) == ["ours, pending", "theirs, pending"]
        broker.advance(HOUR_S + 5.0)
        assert bodies(broker) == [*(f"ours, back {n}" for n in range(5)), "theirs, back 0", "theirs, back 1"]
        assert commit(broker, self._ended) == pb.INVALID_TRANSACTION_ID
