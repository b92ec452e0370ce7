"""What a receive asks for: how long it waits, what it may have, and why it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker_gateway.api.grpc.receive import ReceiveService
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.poll import MAX_BATCH, RECEIVE_BYTES, RENEWED_MS, Patience, Poll, Wanted
from broker_gateway.metadata.catalog import WRITE, Group, Topic
from lakebroker_testing.broker import InProcessBroker

WANTED = Wanted("t", "g", EVERYTHING, 32, 10_000, "client", "", "10.0.0.1:1000", Patience())


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """With the waits that a broker has by default."""
    with InProcessBroker(
        grpcClientConsumerMinLongPollingTimeoutMillis="5000",
        grpcClientConsumerMaxLongPollingTimeoutMillis="20000",
    ) as broker:
        broker.create_topic("t")
        broker.create_group("g")
        yield broker


def polled(broker: InProcessBroker, **asked: Any) -> Poll:
    """The poll that is made of what a receive asks for, answered over gRPC."""
    parts = broker.broker.parts
    writer = ReceiveService(parts.polls, parts.long_polling)
    return broker.do(lambda: parts.polls.make(replace(WANTED, **asked), writer))


@pytest.mark.parametrize(
    ("polling_ms", "remaining_s", "request_timeout_ms", "wait_s"),
    [
        (10_000, None, None, 10.0),
        (1_000, None, None, 5.0),
        (60_000, None, None, 20.0),
        (None, None, None, 20.0),
        (None, 13.0, None, 11.5),
        (None, 13.0, 6_000, 10.0),
        (None, 60.0, None, 20.0),
        (10_000, 9.0, None, 8.8),
        (None, 4.9, None, 4.7),
    ],
)
def test_a_receive_waits_as_long_as_it_asks_for_and_its_deadline_leaves(
    broker: InProcessBroker,
    polling_ms: int | None,
    remaining_s: float | None,
    request_timeout_ms: int | None,
    wait_s: float,
) -> None:
    """What does not say how long leaves half of its client's timeout of other calls."""
    poll = polled(broker, patience=Patience(polling_ms, remaining_s, request_timeout_ms))
    assert poll.wait_s == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Patience(remaining_s=4.7), "the deadline leaves 4.7 s, long polling needs at least 5 s"),
        (Patience(polling_ms=-1500), "the polling timeout of -1.5 s is negative"),
    ],
)
def test_a_wait_that_cannot_be_is_refused(broker: InProcessBroker, asked: Patience, text: str) -> None:
    with pytest.raises(ServiceError, match=text) as refused:
        polled(broker, patience=asked)
    assert refused.value.reason is Reason.ILLEGAL_POLLING_TIME


def test_receives_wait_shortly_while_long_polling_is_off(broker: InProcessBroker) -> None:
    broker.run(
        broker.broker.configuration.apply({"longPollingEnable": "false", "shortPollingTimeMills": "300"})
    )
    assert polled(broker, patience=Patience(10_000)).wait_s == 0.3
    broker.run(broker.broker.configuration.apply({"longPollingEnable": "true"}))
    assert polled(broker, patience=Patience(10_000)).wait_s == 10.0


@pytest.mark.parametrize("topic", [Topic("write-only", 1, 1, WRITE), Topic("no-queue", 0, 1)])
def test_a_topic_that_gives_nothing_is_not_received_from(broker: InProcessBroker, topic: Topic) -> None:
    broker.do(lambda: broker.broker.catalog.put_topic(topic))
    with pytest.raises(ServiceError, match=f"topic '{topic.name}' must not be read") as refused:
        polled(broker, topic=topic.name)
    assert refused.value.reason is Reason.FORBIDDEN


def test_a_group_that_may_not_consume_gets_nothing(broker: InProcessBroker) -> None:
    broker.do(lambda: broker.broker.catalog.put_group(Group("g", consume_enabled=False)))
    with pytest.raises(ServiceError, match="consumer group 'g' must not consume") as refused:
        polled(broker)
    assert refused.value.reason is Reason.FORBIDDEN


def test_a_broker_that_may_not_be_read_makes_no_group(broker: InProcessBroker) -> None:
    broker.restart(brokerPermission="2")
    with pytest.raises(ServiceError, match=r"gives no messages now \(brokerPermission=2\)") as refused:
        polled(broker, group="new")
    assert refused.value.reason is Reason.FORBIDDEN
    assert broker.broker.catalog.group("new") is None


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (MAX_BATCH, MAX_BATCH), (MAX_BATCH + 1, MAX_BATCH)])
def test_a_batch_is_not_larger_than_the_largest(broker: InProcessBroker, asked: int, given: int) -> None:
    assert polled(broker, batch_size=asked).batch_size == given


def test_an_attempts_id_is_kept_as_far_as_it_is_needed(broker: InProcessBroker) -> None:
    assert polled(broker, attempt_id="x" * 10_000).attempt_id == "x" * 128


def test_a_message_is_renewed_where_its_client_is_known(broker: InProcessBroker) -> None:
    """Of a client that was never heard of at its address the id alone counts."""
    unknown = polled(broker, invisible_ms=None)
    assert (unknown.auto_renew, unknown.invisible_ms, unknown.renewed_at) == (True, RENEWED_MS, "")
    broker.do(lambda: broker.broker.clients.seen("client", "10.0.0.1:2000"))
    assert polled(broker, invisible_ms=None).renewed_at == "10.0.0.1"
    assert polled(broker, invisible_ms=None, peer="10.0.0.2:1").renewed_at == ""
    asked = polled(broker, invisible_ms=30_000)
    assert (asked.auto_renew, asked.invisible_ms, asked.renewed_at) == (False, 30_000, "")


def test_a_poll_is_full_by_the_number_of_messages_or_by_their_bytes(broker: InProcessBroker) -> None:
    poll = polled(broker, batch_size=2)
    poll.messages.append(b"one")
    poll.body_bytes = RECEIVE_BYTES - 1
    assert not poll.full
    poll.body_bytes += 1
    assert poll.full
    poll.body_bytes = 0
    poll.messages.append(b"two")
    assert poll.full
