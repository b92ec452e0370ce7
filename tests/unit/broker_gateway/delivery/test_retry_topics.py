"""Which queue a receipt handle means, and which retry topics a group receives from."""

from __future__ import annotations

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.retry_topics import (
    RetryQueues,
    handle_queue,
    handled_queue,
    subscribed_topic,
)


@pytest.mark.parametrize(
    ("topic", "subscribed"),
    [
        ("orders", "orders"),
        ("%RETRY%g_orders", "orders"),
        ("%RETRY%g+orders", "orders"),
        ("%RETRY%g_a_b", "a_b"),
        ("%RETRY%g", "%RETRY%g"),
        ("%RETRY%gg_orders", "%RETRY%gg_orders"),
        ("%DLQ%g", "%DLQ%g"),
    ],
)
@pytest.mark.parametrize("queue_id", [0, 7, 1023])
def test_a_handle_leads_back_to_its_queue(topic: str, subscribed: str, queue_id: int) -> None:
    key = QueueKey("g", topic, queue_id)
    assert subscribed_topic(key) == subscribed
    assert 0 <= handle_queue(key) < 1 << 32
    assert handled_queue("g", subscribed, handle_queue(key)) == key


def test_a_made_up_queue_is_nobodys() -> None:
    assert handled_queue("g", "t", 3 << 30 | 5) == QueueKey("g", "t", 3 << 30 | 5)


def test_a_groups_retry_queues() -> None:
    queues = RetryQueues(
        [
            ("t", 0),
            ("%RETRY%g_t", 1),
            ("%RETRY%g_t", 0),
            ("%RETRY%g+t", 0),
            ("%RETRY%h_t", 0),
            ("%RETRY%g", 0),
        ]
    )
    assert queues.of("g", "t") == [
        QueueKey("g", "%RETRY%g_t", 0),
        QueueKey("g", "%RETRY%g_t", 1),
        QueueKey("g", "%RETRY%g+t", 0),
    ]
    assert queues.count("%RETRY%g_t") == 2
    assert not queues.of("g", "u")
    assert not RetryQueues([("t", 0)]).of("g", "t")
