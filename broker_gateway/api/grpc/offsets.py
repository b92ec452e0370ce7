"""QueryOffset, GetOffset and UpdateOffset."""

from __future__ import annotations

from broker_gateway.api.grpc.fields import group_name, timestamp_ms, topic_name
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.offset_changes import OffsetChanges
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc


class OffsetService:
    """The calls about offsets."""

    def __init__(self, offsets: Offsets, changes: OffsetChanges) -> None:
        self._offsets = offsets
        self._changes = changes

    async def query(self, request: rpc.QueryOffsetRequest) -> rpc.QueryOffsetResponse:
        """BEGINNING: the first offset that can be received; END: the next one to be given; TIMESTAMP: the
        first stored at that time or later, END when there is none."""
        topic, queue_id = self._queue(request.message_queue)
        policy = request.query_offset_policy
        if policy == pb.BEGINNING:
            offset = await self._offsets.oldest(topic, queue_id)
        elif policy == pb.END:
            offset = self._offsets.end(topic, queue_id)
        elif policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise ServiceError(Reason.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp; give one")
            offset = await self._offsets.at(topic, queue_id, timestamp_ms(request.timestamp))
        else:
            raise ServiceError(
                Reason.BAD_REQUEST, f"offset policy {policy} is unknown; use BEGINNING, END or TIMESTAMP"
            )
        return rpc.QueryOffsetResponse(status=OK, offset=offset)

    def committed(self, request: rpc.GetOffsetRequest) -> rpc.GetOffsetResponse:
        """How far the group is."""
        topic, queue_id = self._queue(request.message_queue)
        offset = self._offsets.committed(group_name(request.group), topic, queue_id)
        return rpc.GetOffsetResponse(status=OK, offset=offset)

    def update(self, request: rpc.UpdateOffsetRequest, _: CallContext) -> rpc.UpdateOffsetResponse:
        """Sets how far the group is; to be answered once the journal has it."""
        topic, queue_id = self._queue(request.message_queue)
        self._changes.commit(group_name(request.group), topic, queue_id, request.offset)
        return rpc.UpdateOffsetResponse(status=OK)

    def _queue(self, queue: pb.MessageQueue) -> tuple[str, int]:
        topic = topic_name(queue.topic)
        self._offsets.check_queue(topic, queue.id, queue.broker.name)
        return topic, queue.id
