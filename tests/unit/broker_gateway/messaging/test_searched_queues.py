"""Where a receive searches, each time anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_gateway.config.gateway import config_of
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.searched_queues import SearchedQueues
from broker_gateway.metadata.catalog import Group, Topic
from lakebroker_testing.broker import InProcessBroker
from store.log.record import PendingRecord


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t", 3)
        broker.create_group("g")
        yield broker


@pytest.fixture
def queues(broker: InProcessBroker) -> SearchedQueues:
    return SearchedQueues(broker.broker.core, broker.broker.parts.resources)


def poll_of(broker: InProcessBroker) -> Poll:
    topic, group = broker.broker.catalog.topic("t"), broker.broker.catalog.group("g")
    assert topic is not None
    assert group is not None
    return Poll(group, topic, EVERYTHING, 32, 1000, False, "c", "", 0.0, writer=Any)  # type: ignore[arg-type]


def test_each_search_begins_with_another_queue(broker: InProcessBroker, queues: SearchedQueues) -> None:
    poll = poll_of(broker)
    found = [queues.begin(poll) for _ in range(3)]
    assert {each[-1] for each in found} == {0, 1, 2}
    assert all(sorted(each) == [0, 1, 2] for each in found)  # type: ignore[type-var]


def test_a_search_sees_the_topic_and_the_group_as_they_are_now(
    broker: InProcessBroker, queues: SearchedQueues
) -> None:
    poll = poll_of(broker)
    broker.create_topic("t", 5)
    broker.create_group("g", retry_max_times=3)
    poll.left = [0]
    queues.refresh(poll)
    assert poll.left == [], "it begins anew"
    assert len(queues.begin(poll)) == 5
    assert (poll.topic.read_queues, poll.group.retry_max_times) == (5, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda parts: parts.topics.delete("t"), Reason.TOPIC_NOT_FOUND),
        (lambda parts: parts.groups.delete("g", clean_offsets=True), Reason.CONSUMER_GROUP_NOT_FOUND),
        (lambda parts: parts.groups.put(Group("g", consume_enabled=False)), Reason.FORBIDDEN),
        (lambda parts: parts.topics.put(Topic("t", 3, 3, 2), shrink=False), Reason.FORBIDDEN),
    ],
)
def test_what_is_gone_or_forbidden_meanwhile_is_said(
    broker: InProcessBroker, queues: SearchedQueues, change: Callable[[Any], Any], reason: Reason
) -> None:
    poll = poll_of(broker)
    broker.do(lambda: change(broker.broker.parts))
    with pytest.raises(ServiceError) as refused:
        queues.refresh(poll)
    assert refused.value.reason is reason


def test_what_came_since_the_search_began_was_missed(broker: InProcessBroker, queues: SearchedQueues) -> None:
    poll = poll_of(broker)
    queues.begin(poll)
    assert not queues.missed(poll)
    broker.send("t", b"1")
    assert queues.missed(poll)


def test_a_real_brokers_retries_are_searched_first(broker: InProcessBroker) -> None:
    host = broker.store.store_host.packed
    broker.store.append([PendingRecord("%RETRY%g_t", 0, b"x", b"", 1, host)])
    queues = SearchedQueues(broker.broker.core, broker.broker.parts.resources)
    assert queues.begin(poll_of(broker))[-1] == QueueKey("g", "%RETRY%g_t", 0)


def test_of_a_topic_by_priority_the_last_queue_is_searched_first_and_retries_last(
    broker: InProcessBroker,
) -> None:
    host, retry = broker.store.store_host.packed, QueueKey("g", "%RETRY%g_t", 0)
    broker.store.append([PendingRecord("%RETRY%g_t", 0, b"x", b"", 1, host)])
    by_priority = Topic("t", 3, 3, accept_message_types=("PRIORITY",))
    broker.do(lambda: broker.broker.catalog.put_topic(by_priority))
    queues = SearchedQueues(broker.broker.core, broker.broker.parts.resources)
    assert [queues.begin(poll_of(broker)) for _ in range(3)] == [[retry, 0, 1, 2]] * 3
    queues.configure(config_of({"priorityOrderAsc": "false"})[0])
    assert queues.begin(poll_of(broker)) == [retry, 2, 1, 0]
