"""QueryOffset and GetOffset: where a queue begins and ends, where it was at a time, how far a group is."""

from __future__ import annotations

import asyncio

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.service.resources import Resources
from broker_gateway.service.status import OK, ServiceError
from broker_gateway.service.validation import group_of, shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from store.index.time_search import BoundaryType
from store.message_store import MessageStore

MAX_SEARCHES = 32
"""By time, at once: each reads the log on a thread."""


class OffsetService:
    """Answers about queues of this broker; creates nothing."""

    def __init__(self, store: MessageStore, resources: Resources, deliveries: DeliveryTable) -> None:
        self._store = store
        self._resources = resources
        self._deliveries = deliveries
        self._searches = 0

    async def query(self, request: rpc.QueryOffsetRequest) -> rpc.QueryOffsetResponse:
        """BEGINNING: the first offset that can be received; END: the next one to be given; TIMESTAMP: the
        first stored at that time or later, END when there is none."""
        topic, queue_id = self._queue(request.message_queue)
        policy = request.query_offset_policy
        if policy == pb.BEGINNING:
            offset = self._store.index.min_offset(topic, queue_id)
        elif policy == pb.END:
            offset = self._store.index.max_offset(topic, queue_id)
        elif policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise ServiceError(pb.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp; give one")
            offset = await self._at(topic, queue_id, _ms(request.timestamp))
        else:
            raise ServiceError(
                pb.BAD_REQUEST, f"offset policy {policy} is unknown; use BEGINNING, END or TIMESTAMP"
            )
        return rpc.QueryOffsetResponse(status=OK, offset=offset)

    def committed(self, request: rpc.GetOffsetRequest) -> rpc.GetOffsetResponse:
        """How far the group is: what it has settled, or a client committed."""
        topic, queue_id = self._queue(request.message_queue)
        group = group_of(request.group)
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        if state is None:
            raise ServiceError(
                pb.OFFSET_NOT_FOUND,
                f"consumer group {shown(group)} has received nothing from queue {queue_id} of {shown(topic)} yet",
            )
        return rpc.GetOffsetResponse(status=OK, offset=state.consumer_offset)

    async def _at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if self._searches >= MAX_SEARCHES:
            raise ServiceError(
                pb.TOO_MANY_REQUESTS, f"{MAX_SEARCHES} searches by time run already; try again later"
            )
        self._searches += 1
        try:
            search = self._store.at_time(topic, queue_id)
            return await asyncio.to_thread(search, timestamp_ms, BoundaryType.LOWER)
        finally:
            self._searches -= 1

    def _queue(self, queue: pb.MessageQueue) -> tuple[str, int]:
        topic = self._resources.known_topic(queue.topic)
        if queue.broker.name not in ("", self._store.broker):
            raise ServiceError(
                pb.BAD_REQUEST,
                f"the queue is of broker {shown(queue.broker.name)}, this one is {self._store.broker}; ask there",
            )
        queues = max(topic.read_queues, topic.write_queues)
        if not 0 <= queue.id < queues:
            raise ServiceError(
                pb.BAD_REQUEST, f"topic {shown(topic.name)} has no queue {queue.id}; it has 0 to {queues - 1}"
            )
        return topic.name, queue.id


def _ms(timestamp: Timestamp) -> int:
    if not 0 <= timestamp.nanos <= 999_999_999:
        raise ServiceError(
            pb.BAD_REQUEST,
            f"a timestamp of {timestamp.nanos} ns behind the second is none; give 0 to 999999999",
        )
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
