"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what a receipt handle is good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.handles import encode_handle, new_delivery_id
from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, Status
from broker_gateway.delivery.retry_topics import handle_queue
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.journal import Journal
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.clock import now_ms
from broker_gateway.service import shortcuts
from broker_gateway.service.clients import ClientRegistry
from broker_gateway.service.context import CallContext
from broker_gateway.service.dead_letters import DeadLetterMover
from broker_gateway.service.receipts import Receipts
from broker_gateway.service.resources import Resources
from broker_gateway.service.status import OK, ServiceError, summary
from broker_gateway.service.validation import check_invisible_ms, client_id_of, duration_ms
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events

MAX_ACKS_A_CALL = 4096


class SettlementService:
    """Settles or postpones messages in flight."""

    def __init__(
        self,
        config: GatewayConfig,
        resources: Resources,
        deliveries: DeliveryTable,
        clients: ClientRegistry,
        journal: Journal,
        mover: DeadLetterMover,
        wakeups: Wakeups[Any],
        metrics: Metrics,
    ) -> None:
        self._resources = resources
        self._deliveries = deliveries
        self._receipts = Receipts(deliveries, clients)
        self._journal = journal
        self._mover = mover
        self._wakeups = wakeups
        self._metrics = metrics
        self._max_invisible_ms = config.proxy.max_invisible_time_mills

    def ack(self, request: rpc.AckMessageRequest, context: CallContext) -> bytes:
        """Answers every entry with a status of its own."""
        client_id = client_id_of(context)
        topic = self._resources.topic(request.topic).name
        group = self._resources.group_name(request.group)
        if not request.entries:
            raise ServiceError(
                pb.BAD_REQUEST, "no message to acknowledge; put at least one entry in the request"
            )
        if len(request.entries) > MAX_ACKS_A_CALL:
            raise ServiceError(
                pb.PAYLOAD_TOO_LARGE,
                f"{len(request.entries)} entries in one call, at most {MAX_ACKS_A_CALL} are taken",
            )
        entries = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
        messages, statuses = self._receipts.all(group, topic, [handle for _, handle in entries])
        self._settle(messages, client_id, topic)
        return shortcuts.acked(entries, statuses)

    def change_invisible(
        self, request: rpc.ChangeInvisibleDurationRequest, context: CallContext
    ) -> rpc.ChangeInvisibleDurationResponse:
        """Sets when the message is due again and answers a new handle; the old one is void.

        `suspend` keeps the next delivery from counting as an attempt.
        """
        client_id = client_id_of(context)
        topic = self._resources.topic(request.topic).name
        group = self._resources.group_name(request.group)
        invisible_ms = check_invisible_ms(
            duration_ms(request.invisible_duration, "the invisible duration", pb.ILLEGAL_INVISIBLE_TIME),
            0,
            self._max_invisible_ms,
        )
        state, message = self._receipts.one(group, topic, request.receipt_handle)
        now = now_ms()
        changed = replace(
            message,
            attempt=max(message.attempt + message.suspended - request.suspend, 0),
            suspended=request.suspend,
            invisible_until_ms=now + invisible_ms,
            delivery_id=new_delivery_id(),
            auto_renew=False,
            given_back=True,
            status=Status.INVISIBLE,
        )
        self._journal.events(
            state,
            events.NACKED,
            [changed],
            client_id=client_id,
            delivery_id=changed.delivery_id,
            invisible_until_ms=changed.invisible_until_ms,
            timestamp_ms=now,
        )
        state.replace(message, changed)
        if invisible_ms == 0:
            self._deliveries.offers.came_back(state.key)
            self._wakeups.due(topic, group)
        return rpc.ChangeInvisibleDurationResponse(
            status=OK,
            receipt_handle=encode_handle(handle_queue(state.key), changed.queue_offset, changed.delivery_id),
        )

    def forward_to_dead_letters(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: CallContext
    ) -> rpc.ForwardMessageToDeadLetterQueueResponse:
        """Moves the message to `%DLQ%<group>` at once."""
        client_id = client_id_of(context)
        topic = self._resources.topic(request.topic).name
        group = self._resources.group_name(request.group)
        state, message = self._receipts.one(group, topic, request.receipt_handle)
        reason = f"given up by the consumer after {message.attempt} delivery attempts"
        if self._mover.move(state, message, reason, client_id) is not None:
            raise ServiceError(
                pb.INTERNAL_SERVER_ERROR,
                "the dead letter could not be stored; the message stays where it was",
            )
        return rpc.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _settle(
        self, acked: Sequence[tuple[QueueDelivery, Sequence[InFlight]]], client_id: str, topic: str
    ) -> None:
        """All of a call or, when the journal does not take it, none."""
        self._journal.acked(acked, client_id)
        for state, messages in acked:
            group = state.key.group
            for message in messages:
                state.settle(message)
            self._metrics.acked(topic, group, len(messages))
            if state.freed():
                self._wakeups.due(topic, group)


def ack_response(
    entries: Sequence[rpc.AckMessageEntry], statuses: Sequence[pb.Status]
) -> rpc.AckMessageResponse:
    """The reply to `entries` by way of messages: slower, and the shortcut's oracle."""
    results = [
        rpc.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )
        for entry, status in zip(entries, statuses, strict=True)
    ]
    return rpc.AckMessageResponse(status=summary(statuses), entries=results)
