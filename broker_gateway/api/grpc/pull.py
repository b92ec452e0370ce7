"""PullMessage: a request's wishes, and the reply: status, messages, where the next pull goes on."""

from __future__ import annotations

from broker_gateway.api.grpc.codec import message_id_of, to_message
from broker_gateway.api.grpc.fields import filter_of, group_name, patience_of, topic_name
from broker_gateway.api.grpc.status import status
from broker_gateway.messaging.pull import Pulls, PullWanted
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.runtime.shares import host_of
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.log.record import decode_record


class PullService:
    """Reads requests of consumers that keep their own offsets, and writes what they get."""

    def __init__(self, pulls: Pulls) -> None:
        self._pulls = pulls

    async def pull(
        self, request: rpc.PullMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> list[rpc.PullMessageResponse]:
        """All responses of the call; raises ServiceError when it cannot be served."""
        queue = request.message_queue
        topic = topic_name(queue.topic)
        wanted = PullWanted(
            group_name(request.group),
            topic,
            queue.id,
            queue.broker.name,
            request.offset,
            request.batch_size,
            filter_of(request.filter_expression),
            patience_of(request, context, request_timeout_ms),
            host_of(context.peer),
        )
        pulled = await self._pulls.pull(wanted)
        return [
            rpc.PullMessageResponse(status=status(pulled.outcome)),
            *(rpc.PullMessageResponse(message=_message(each, topic)) for each in pulled.messages),
            rpc.PullMessageResponse(next_offset=pulled.next_offset),
        ]


def _message(stored: StoredMessage, topic: str) -> pb.Message:
    """As a receive gives it, without what a delivery has: handle, attempt, invisible time."""
    record = decode_record(stored.data, verify=False)
    properties = stored.properties
    message = to_message(
        topic, record, properties, message_id_of(record, properties), handle="", attempt=0, invisible_ms=0
    )
    for name in ("receipt_handle", "delivery_attempt", "invisible_duration"):
        message.system_properties.ClearField(name)
    return message
