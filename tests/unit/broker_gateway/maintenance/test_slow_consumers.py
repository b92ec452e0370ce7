"""Groups that fell far behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_gateway.config.gateway import load_config
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.maintenance.slow_consumers import ProtectBroker
from broker_gateway.metadata.catalog import Catalog, Group
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions


def test_a_group_that_fell_behind_may_not_consume(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=Host("127.0.0.1", 1), segment_size=1 << 20)
    )
    try:
        record = PendingRecord("t", 0, b"x" * 1000, b"", 1, Host("127.0.0.1", 1).packed)
        store.append([record] * 20)
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        store.index.leave_out("t", 0, 20, 5_000_000)  # a new log was begun
        store.append([record] * 2)
        for name in ("slow", "quick", "crossing"):
            catalog.put_group(Group(name))
        deliveries.queue(QueueKey("slow", "t", 0)).reset(2)
        deliveries.queue(QueueKey("quick", "t", 0)).reset(18)
        deliveries.queue(QueueKey("crossing", "t", 0)).reset(1_000)
        off = load_config(None, {"consumerFallbehindThreshold": "5000"}, {})[0]
        on = load_config(
            None,
            {"consumerFallbehindThreshold": "5000", "disableConsumeIfConsumerReadSlowly": "true"},
            {},
        )[0]
        protect = ProtectBroker(off, store, catalog, deliveries)
        asyncio.run(protect.run_once())
        assert all(group.consume_enabled for group in catalog.groups())
        protect.configure(on)
        asyncio.run(protect.run_once())
        assert {group.name: group.consume_enabled for group in catalog.groups()} == {
            "slow": False,
            "quick": True,
            "crossing": True,
        }
    finally:
        store.close()
