"""DescribeGroupAccumulation, QueryTimeSpan, ResetGroupOffset."""

from __future__ import annotations

from collections.abc import Iterable

from broker_gateway.api.grpc.admin.requests import Named, message_queue, time_ms
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.connections import Connections
from broker_gateway.messaging.group_progress import Accumulation, GroupProgress
from broker_gateway.messaging.offset_changes import OffsetChanges
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.runtime.clock import LATEST_MS, now_ms
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc


class ProgressAdmin:
    """How far groups are on this broker's queues, and where they go on."""

    def __init__(
        self,
        named: Named,
        broker: str,
        progress: GroupProgress,
        offsets: Offsets,
        changes: OffsetChanges,
        connections: Connections,
    ) -> None:
        self._named = named
        self._broker = broker
        self._progress = progress
        self._offsets = offsets
        self._changes = changes
        self._connections = connections

    async def accumulation(
        self, request: rpc.DescribeGroupAccumulationRequest
    ) -> rpc.DescribeGroupAccumulationResponse:
        """Of a lite topic, or of topics; without, of those topics that the group subscribes to, or has something of."""
        group = self._named.group(request.group)
        topics = self._named.topics(request.topics, self._topics_of(group))
        if request.HasField("lite_topic"):
            return self._of_lite_topic(group, request.lite_topic)
        found = await self._progress.accumulations(group, topics, now_ms())
        whole = Accumulation()
        for each in found.values():
            whole = whole.with_other(each)
        return rpc.DescribeGroupAccumulationResponse(
            status=OK,
            accumulation=_accumulation(whole),
            topic_accumulation={name: _accumulation(each) for name, each in found.items()},
        )

    def _of_lite_topic(self, group: str, name: str) -> rpc.DescribeGroupAccumulationResponse:
        lite = self._named.lite_topic(group, name)
        if not self._offsets.end(lite.queue, 0):
            raise ServiceError(
                Reason.TOPIC_NOT_FOUND, f"topic {shown(lite.parent)} has no lite topic {shown(name)}"
            )
        found = _accumulation(self._progress.of_lite_topic(group, lite, now_ms()))
        return rpc.DescribeGroupAccumulationResponse(
            status=OK, accumulation=found, lite_topic_accumulation={name: found}
        )

    async def time_spans(self, request: rpc.QueryTimeSpanRequest) -> rpc.QueryTimeSpanResponse:
        """Without topics: of those that the group subscribes to, or has something of."""
        group = self._named.group(request.group)
        response = rpc.QueryTimeSpanResponse(status=OK)
        for topic in self._named.topics(request.topics, self._topics_of(group)):
            for span in self._progress.time_spans(topic, group, now_ms()):
                response.queue_time_span_list.add(
                    message_queue=message_queue(topic.name, span.queue_id, self._broker),
                    min_timestamp=span.first_ms,
                    max_timestamp=span.last_ms,
                    consume_timestamp=span.consumed_ms,
                    delay_time_ms=span.delay_ms,
                )
        return response

    async def reset(self, request: rpc.ResetGroupOffsetRequest) -> rpc.ResetGroupOffsetResponse:
        """Each queue goes on with the first message stored at that time or later."""
        topic, group = self._named.topic(request.topic), self._named.group(request.group)
        at_ms = time_ms(request, "reset_timestamp")
        if at_ms is None:
            raise ServiceError(
                Reason.BAD_REQUEST, "reset_timestamp is missing; name the time at which the group goes on"
            )
        at_ms = min(at_ms, LATEST_MS)  # later ones are as this one: the end of every queue
        await self._changes.reset(group, topic.name, -1, at_ms, None)
        return rpc.ResetGroupOffsetResponse(status=OK)

    def _topics_of(self, group: str) -> Iterable[str]:
        return {*self._offsets.topics_of(group), *self._connections.subscriptions(group)}


def _accumulation(each: Accumulation) -> rpc.DescribeGroupAccumulationResponse.GroupAccumulation:
    found = rpc.DescribeGroupAccumulationResponse.GroupAccumulation(
        inflight_messages=each.in_flight,
        ready_messages=each.ready,
        accumulation=each.total,
        last_consume_timestamp=each.settled_ms,
    )
    found.deliver_delay_time.FromMilliseconds(each.delay_ms)
    return found
