"""A store as a real broker leaves it, with what its consumers hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import journal_at_rest
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.migration.check_points import TIMER_TOPIC
from lakebroker_testing.logs import HOST
from store.log.record import PendingRecord, encode_properties, tags_code
from store.message_store import MessageStore
from store.opening import StoreOptions

REVIVE = "rmq_sys_REVIVE_LOG_c"
ORDERS = QueueKey("g", "orders", 0)


class Real:
    """A store with what a real broker puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = self.open()
        self.offsets: dict[str, dict[str, int]] = {}

    def open(self) -> MessageStore:
        return MessageStore.open(
            self.root, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 20)
        )

    def put(
        self, topic: str, queue_id: int, body: bytes, properties: Mapping[str, str], reconsume_times: int = 0
    ) -> None:
        self.store.append(
            [
                PendingRecord(
                    topic,
                    queue_id,
                    body,
                    encode_properties(properties),
                    1,
                    HOST.packed,
                    reconsume_times=reconsume_times,
                    tags_code=tags_code(properties.get("TAGS")),
                )
            ]
        )

    def messages(self, topic: str, count: int, **properties: str) -> None:
        for number in range(count):
            self.put(topic, 0, b"%d" % number, {"UNIQ_KEY": f"{topic}-{number}", **properties})

    def revive(self, tag: str, body: Mapping[str, Any] | bytes, *, arrived: bool = False) -> None:
        """In the timer, or as copied to the revive topic."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if arrived:
            self.put(REVIVE, 3, data, {"TAGS": tag})
        else:
            self.put(TIMER_TOPIC, 0, data, {"TAGS": tag, "REAL_TOPIC": REVIVE, "REAL_QID": "3"})

    def close(self) -> None:
        self.store.close()
        config = self.root / "config"
        config.mkdir(exist_ok=True)
        (config / "consumerOffset.json").write_text(
            json.dumps({"dataVersion": {"counter": 5}, "offsetTable": self.offsets})
        )
        (config / "topics.json").write_text('{"topicConfigTable":{"orders":{"readQueueNums":1}}}')
        table = {"g": {"groupName": "g"}}
        (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": table}))

    def end(self) -> int:
        """Where the log ends."""
        store = self.open()
        store.close()
        return store.max_offset

    def state(self) -> tuple[Catalog, DeliveryTable]:
        """What a gateway finds when it starts."""
        store = self.open()
        try:
            catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
            journal_at_rest(store, catalog, deliveries).journal.replay()
            return catalog, deliveries
        finally:
            store.close()

    def in_flight(self, key: QueueKey = ORDERS) -> dict[int, tuple[int, int]]:
        """Attempt and end of the invisible time by offset."""
        state = self.state()[1].known(key)
        assert state is not None
        return {
            each.queue_offset: (each.attempt, each.invisible_until_ms) for each in state.in_flight.values()
        }
