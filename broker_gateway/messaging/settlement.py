"""Acknowledging, changing the invisible time, giving up: what a receipt handle is good for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.handles import encode_handle, new_delivery_id
from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import QueueDelivery
from broker_gateway.delivery.retry_topics import handle_queue
from broker_gateway.messaging.checks import check_invisible_ms
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.dead_letters import DeadLetterMover
from broker_gateway.messaging.outcome import Outcome, Reason, ServiceError
from broker_gateway.messaging.receipts import Receipts
from broker_gateway.messaging.resources import Resources
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.counting import counted

MAX_ACKS_A_CALL = 4096


class Settlement:
    """Settles or postpones messages in flight."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        resources: Resources,
        clients: ClientRegistry,
        mover: DeadLetterMover,
    ) -> None:
        self._resources = resources
        self._receipts = Receipts(core.deliveries, clients)
        self._changes = core.changes
        self._mover = mover
        self._core = core
        self._metrics = core.metrics
        self._max_invisible_ms = config.proxy.max_invisible_time_mills

    def acknowledge(
        self,
        client_id: str,
        topic: str,
        group: str,
        handles: Sequence[str],
        lite_topics: Callable[[], Sequence[str]] = tuple,
    ) -> Sequence[Outcome]:
        """Settles what receipt handles are good for; how each of them ends. `lite_topics`: see `Receipts.all`."""
        topic = self._topic(topic, group)
        if not handles:
            raise ServiceError(
                Reason.BAD_REQUEST, "no message to acknowledge; put at least one entry in the request"
            )
        if len(handles) > MAX_ACKS_A_CALL:
            raise ServiceError(
                Reason.PAYLOAD_TOO_LARGE,
                f"{len(handles)} entries in one call, at most {MAX_ACKS_A_CALL} are taken",
            )
        messages, outcomes = self._receipts.all(group, topic, handles, lite_topics)
        self._settle(messages, client_id, topic)
        return outcomes

    def change_invisible(
        self,
        client_id: str,
        topic: str,
        group: str,
        handle: str,
        invisible_ms: int,
        suspend: bool,
        lite_topic: str = "",
    ) -> str:
        """Sets when a message is due again and gives its new handle; the old one is void.

        `suspend` keeps the next delivery from counting as an attempt.
        """
        topic = self._topic(topic, group)
        check_invisible_ms(invisible_ms, 0, self._max_invisible_ms)
        state, message = self._receipts.one(group, topic, handle, lite_topic)
        now = now_ms()
        changed = replace(
            message,
            attempt=max(message.attempt + message.suspended - suspend, 0),
            suspended=suspend,
            invisible_until_ms=now + invisible_ms,
            delivery_id=new_delivery_id(),
            auto_renew=False,
            nacked=True,
            attempt_id="",
            status=Status.INVISIBLE,
        )
        self._changes.events(
            state,
            events.NACKED,
            [changed],
            client_id=client_id,
            delivery_id=changed.delivery_id,
            invisible_until_ms=changed.invisible_until_ms,
            timestamp_ms=now,
        )
        state.replace(message, changed)
        self._core.made_room(state)
        if invisible_ms == 0:
            self._core.came_back(state.key)
        return encode_handle(handle_queue(state.key), changed.queue_offset, changed.delivery_id)

    def move_to_dead_letters(
        self, client_id: str, topic: str, group: str, handle: str, lite_topic: str = ""
    ) -> None:
        """Moves a message to `%DLQ%<group>` at once."""
        topic = self._topic(topic, group)
        state, message = self._receipts.one(group, topic, handle, lite_topic)
        reason = f"given up by the consumer after {counted(message.attempt, 'delivery attempt')}"
        if self._mover.move(state, message, reason, client_id) is not None:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                "the dead letter could not be stored, or its message is still being read from the lake; it stays where it was: "
                "try again",
            )

    def _topic(self, topic: str, group: str) -> str:
        """The topic's name, where both names are good."""
        name = self._resources.topic(topic).name
        self._resources.check_group(group)
        return name

    def _settle(
        self, acked: Sequence[tuple[QueueDelivery, Sequence[InFlight]]], client_id: str, topic: str
    ) -> None:
        """All of a call or, when the journal does not take it, none."""
        self._changes.acked(acked, client_id)
        for state, messages in acked:
            for message in messages:
                state.settle(message)
            self._metrics.acked(topic, state.key.group, len(messages))
            self._core.made_room(state)
