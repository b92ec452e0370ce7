"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

from collections.abc import Sequence

from broker_gateway.api.grpc import shortcuts
from broker_gateway.api.grpc.fields import client_id_of, duration_ms, group_name, topic_name
from broker_gateway.api.grpc.status import OK, summary
from broker_gateway.messaging.outcome import Reason
from broker_gateway.messaging.settlement import Settlement
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc


class SettlementService:
    """The calls about messages that a client has."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement

    def ack(self, request: rpc.AckMessageRequest, context: CallContext) -> bytes:
        """Answers every entry with a status of its own."""
        client_id = client_id_of(context)
        entries = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
        handles = [handle for _, handle in entries]
        topic, group = topic_name(request.topic), group_name(request.group)

        def lite_topics() -> list[str]:
            return [entry.lite_topic for entry in request.entries]

        outcomes = self._settlement.acknowledge(client_id, topic, group, handles, lite_topics)
        return shortcuts.acked(entries, outcomes)

    def change_invisible(
        self, request: rpc.ChangeInvisibleDurationRequest, context: CallContext
    ) -> rpc.ChangeInvisibleDurationResponse:
        """Answers the message's new handle."""
        handle = self._settlement.change_invisible(
            client_id_of(context),
            topic_name(request.topic),
            group_name(request.group),
            request.receipt_handle,
            duration_ms(request.invisible_duration, "the invisible duration", Reason.ILLEGAL_INVISIBLE_TIME),
            request.suspend,
            request.lite_topic,
        )
        return rpc.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    def forward_to_dead_letters(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: CallContext
    ) -> rpc.ForwardMessageToDeadLetterQueueResponse:
        """Gives a message up."""
        topic, group = topic_name(request.topic), group_name(request.group)
        self._settlement.move_to_dead_letters(
            client_id_of(context), topic, group, request.receipt_handle, request.lite_topic
        )
        return rpc.ForwardMessageToDeadLetterQueueResponse(status=OK)


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
