"""Groups that fell far behind are forbidden to consume (`disableConsumeIfConsumerReadSlowly`), so that reads of old
messages do not push the newest out of memory. A group is allowed again by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.metadata.catalog import Catalog
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_QUEUES_A_STEP = 50
"""Looked at before others get a turn: each may read the index from disk."""


class ProtectBroker:
    """`run_once` at intervals."""

    def __init__(
        self, config: GatewayConfig, store: MessageStore, catalog: Catalog, deliveries: DeliveryTable
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._deliveries = deliveries
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._enabled = config.broker.disable_consume_if_consumer_read_slowly
        self._threshold = config.broker.consumer_fallbehind_threshold

    async def run_once(self) -> None:
        """Forbids what is behind by more than the threshold, in bytes of the log."""
        if not self._enabled:
            return
        for number, state in enumerate(list(self._deliveries.queues()), 1):
            if number % _QUEUES_A_STEP == 0:
                await asyncio.sleep(0)
            group = self._catalog.group(state.key.group)
            if group is None or not group.consume_enabled:
                continue
            index, (_, topic, queue_id) = self._store.index, state.key
            position = index.behind_absence(topic, queue_id, state.position)
            offsets, sizes, _ = index.every_entry(topic, queue_id, position, 1)
            behind = self._store.max_offset - int(offsets[0]) if len(offsets) and sizes[0] else 0
            if behind > self._threshold:
                self._catalog.put_group(replace(group, consume_enabled=False))
                log.warning(
                    "a group fell behind and may not consume any more",
                    group=group.name,
                    topic=state.key.topic,
                    behind_bytes=behind,
                    option="consumerFallbehindThreshold",
                )
