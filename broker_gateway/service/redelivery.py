"""What becomes of messages whose invisible time is over: renewed, delivered again, or dead letters."""

from __future__ import annotations

from typing import Any

from broker_gateway.clients import ClientRegistry
from broker_gateway.clock import now_ms
from broker_gateway.delivery.queue_delivery import QueueDelivery
from broker_gateway.delivery.retry_topics import subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.metadata.catalog import Catalog, Group
from broker_gateway.service.dead_letters import DeadLetterMover

RENEWED_MS = 60_000
"""Invisible time of a message whose client renews it by staying alive (`auto_renew`)."""
RENEW_AT_MOST_MS = 3 * 3_600_000
"""No renewal beyond this after the delivery, as in the real proxy."""


class Redelivery:
    """Looks after due messages, whether anybody receives or not."""

    def __init__(
        self,
        catalog: Catalog,
        deliveries: DeliveryTable,
        clients: ClientRegistry,
        mover: DeadLetterMover,
        wakeups: Wakeups[Any],
    ) -> None:
        self._catalog = catalog
        self._deliveries = deliveries
        self._clients = clients
        self._mover = mover
        self._wakeups = wakeups

    def sweep(self, state: QueueDelivery, now: int) -> None:
        """Sorts the due messages of `state` into renewed, ready for delivery and dead letters."""
        group = self._catalog.group(state.key.group) or Group(state.key.group)
        while (message := state.pop_due(now)) is not None:
            if (
                message.auto_renew
                and now - message.delivered_ms < RENEW_AT_MOST_MS
                and self._clients.alive(message.client_id)
            ):
                state.postpone(message, now + RENEWED_MS)
            elif message.attempt >= group.max_attempts:
                self._mover.move(
                    state, message, f"not acknowledged after {message.attempt} delivery attempts"
                )
            else:
                state.make_ready(message)
        self._deliveries.schedule(state)

    def sweep_due(self) -> None:
        """Handles every queue with something due and wakes those who wait for it."""
        now = now_ms()
        for state in self._deliveries.pop_due(now):
            self.sweep(state, now)
            self._wakeups.due(subscribed_topic(state.key), state.key.group)

    def release(self, client_id: str, group: str) -> None:
        """Ends the renewal of a client that left: its messages are due now."""
        now = now_ms()
        for state in list(self._deliveries.queues()):
            if state.key.group != group:
                continue
            for message in list(state.in_flight.values()):
                if message.auto_renew and message.client_id == client_id:
                    message.auto_renew = False
                    state.postpone(message, now)
            self._deliveries.schedule(state)
