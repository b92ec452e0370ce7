"""`lakebroker.admin.v1.AdminService`: topics and groups by hand, and erasures."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

from broker_gateway.api.grpc.admin.described import DescribedBroker
from broker_gateway.api.grpc.admin.peer_calls import PeerCalls
from broker_gateway.api.grpc.admin.requests import MAX_QUEUES_ANSWERED
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import check_group, shown
from broker_gateway.messaging.erasing import Asked
from broker_gateway.messaging.factory import Messaging
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata import group_configuration, topic_configuration
from broker_gateway.metadata.catalog import Catalog, CatalogFullError, Group, Topic
from broker_gateway.metadata.kept_fields import MOST_BYTES, ConfigurationError
from broker_gateway.metadata.message_types import MESSAGE_TYPES
from broker_gateway.metadata.names import DLQ_PREFIX, RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.errors import reason
from broker_gateway.runtime.scheduled_tasks import ScheduledTasks
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

RETRY_MAX_TIMES_LIMIT = 1000
_SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
_EVERY_TYPE = "MIXED"
_MOST_ANSWERED = 2 << 20
"""Bytes of an answer about erased records, behind which texts are left out: clients take 4 MiB unless they say otherwise."""
_PEER_ERASES_S = 3600.0
_ERASE_STATUS = {
    Reason.BAD_REQUEST: "INVALID_ARGUMENT",
    Reason.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    Reason.INTERNAL_SERVER_ERROR: "UNAVAILABLE",
}


class AdminService:
    """Creates, changes, deletes and lists topics and groups, erases messages; errors are gRPC statuses."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        parts: Messaging,
        peers: PeerCalls,
        tasks: ScheduledTasks,
        described: DescribedBroker,
    ) -> None:
        self._topics = parts.topics
        self._groups = parts.groups
        self._peers = peers
        self._catalog = catalog
        self._tasks = tasks
        self._described = described
        self._offsets = parts.offsets
        self._erasing = parts.erasing
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._queues = config.broker.default_topic_queue_nums
        self._retry_max = config.broker.retry_max_times

    async def PutTopic(self, request: pb.PutTopicRequest, context: CallContext) -> pb.PutTopicResponse:
        asked = request.topic
        name = asked.name
        with _translated():
            self._topics.check_name(name)
        known = self._catalog.topic(name)
        if known is None and request.update_only:
            raise RpcError("NOT_FOUND", f"topic {shown(name)} does not exist")
        topic = _changed_topic(known or Topic(name, self._queues, self._queues, created_ms=now_ms()), asked)
        queues = known.queues if known is not None else 0
        if asked.queues and asked.queues < queues:
            raise RpcError(
                "INVALID_ARGUMENT",
                f"{name} has {queues} queues; queues cannot be removed, so {asked.queues} cannot be set",
            )
        with _translated():
            topic, created = self._topics.put(topic, shrink=False)
        await self._peers.tell(f"/{_SERVICE}/PutTopic", request, context)
        changed = known is not None and topic != known
        return pb.PutTopicResponse(topic=_topic(topic), created=created, changed=changed)

    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, context: CallContext
    ) -> pb.DeleteTopicResponse:
        known = self._catalog.topic(request.name) is not None
        with _translated():
            self._topics.delete(request.name)
        told = await self._peers.tell(
            f"/{_SERVICE}/DeleteTopic", request, context, pb.DeleteTopicResponse.FromString
        )
        return pb.DeleteTopicResponse(deleted=known or any(each.deleted for _, each in told))

    async def ListTopics(self, request: pb.ListTopicsRequest, context: CallContext) -> pb.ListTopicsResponse:
        topics = sorted(self._catalog.topics(), key=lambda topic: topic.name)
        return pb.ListTopicsResponse(
            topics=[
                _topic(topic) for topic in topics if request.include_system or not self._is_system(topic.name)
            ]
        )

    async def PutGroup(self, request: pb.PutGroupRequest, context: CallContext) -> pb.PutGroupResponse:
        asked = request.group
        name = asked.name
        with _translated():
            check_group(name)
        known = self._catalog.group(name)
        if known is None and request.update_only:
            raise RpcError("NOT_FOUND", f"consumer group {shown(name)} does not exist")
        group = known or Group(name, self._retry_max, created_ms=now_ms())
        retries = asked.retry_max_times if asked.HasField("retry_max_times") else group.retry_max_times
        if asked.HasField("retry_max_times") and not 0 <= retries <= RETRY_MAX_TIMES_LIMIT:
            raise RpcError(
                "INVALID_ARGUMENT", f"retry_max_times {retries} is outside of 0 to {RETRY_MAX_TIMES_LIMIT}"
            )
        group = replace(
            group,
            retry_max_times=retries,
            fifo=asked.fifo if asked.HasField("fifo") else group.fifo,
            first_used_by="",
            others=_others(known, group, asked.configuration),
        )
        with _translated():
            group, created = self._groups.put(group)
        await self._peers.tell(f"/{_SERVICE}/PutGroup", request, context)
        changed = known is not None and group != known
        return pb.PutGroupResponse(group=_group(group), created=created, changed=changed)

    async def DeleteGroup(
        self, request: pb.DeleteGroupRequest, context: CallContext
    ) -> pb.DeleteGroupResponse:
        known = self._catalog.group(request.name) is not None
        with _translated():
            check_group(request.name)
            self._groups.delete(request.name, clean_offsets=not request.keep_offsets)
        told = await self._peers.tell(
            f"/{_SERVICE}/DeleteGroup", request, context, pb.DeleteGroupResponse.FromString
        )
        return pb.DeleteGroupResponse(deleted=known or any(each.deleted for _, each in told))

    async def ListGroups(self, request: pb.ListGroupsRequest, context: CallContext) -> pb.ListGroupsResponse:
        groups = sorted(self._catalog.groups(), key=lambda group: group.name)
        return pb.ListGroupsResponse(groups=[_group(group) for group in groups])

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: CallContext
    ) -> pb.ListOffsetsResponse:
        group = request.group
        with _translated():
            check_group(group)
        if self._catalog.group(group) is None:
            raise RpcError("NOT_FOUND", f"consumer group {shown(group)} does not exist")
        names = sorted(set(request.topics or self._offsets.topics_of(group)))
        topics = [topic for topic in map(self._catalog.topic, names) if topic is not None]
        missing = set(request.topics) - {topic.name for topic in topics}
        if missing:
            raise RpcError("NOT_FOUND", f"topic {shown(min(missing))} does not exist")
        if (queues := sum(topic.queues for topic in topics)) > MAX_QUEUES_ANSWERED:
            raise RpcError(
                "RESOURCE_EXHAUSTED",
                f"{len(topics)} topics of {queues} queues in an answer, at most {MAX_QUEUES_ANSWERED} queues; name fewer topics",
            )
        response = pb.ListOffsetsResponse()
        for topic in topics:
            for queue_id in range(topic.queues):
                begin, end = self._offsets.bounds(topic.name, queue_id)
                known, progress = (
                    self._offsets.known(group, topic.name, queue_id),
                    self._offsets.progress(group, topic.name, queue_id),
                )
                response.queues.add(
                    topic=topic.name,
                    queue=queue_id,
                    begin=begin,
                    end=end,
                    committed=known,
                    position=progress.pull_offset,
                    settled_ms=progress.last_ms,
                )
            await asyncio.sleep(0)
        return response

    async def ListTasks(self, request: pb.ListTasksRequest, context: CallContext) -> pb.ListTasksResponse:
        return pb.ListTasksResponse(
            tasks=[
                pb.Task(
                    name=task.name,
                    period_ms=round(task.period_s() * 1000),
                    runs=task.runs,
                    failures=task.failures,
                    last_run_ms=task.last_ms,
                    took_us=round(task.took_s * 1e6),
                    last_error=task.last_error,
                    last_error_ms=task.last_error_ms,
                )
                for task in self._tasks.all()
            ]
        )

    async def DescribeBroker(
        self, request: pb.DescribeBrokerRequest, context: CallContext
    ) -> pb.DescribeBrokerResponse:
        try:
            return self._described.now()
        except OSError as error:
            raise RpcError("UNAVAILABLE", f"the disk cannot be looked at: {reason(error)}") from error

    async def Erase(self, request: pb.EraseRequest, context: CallContext) -> pb.EraseResponse:
        named = [(each.broker, each.log_id, list(each.physical_offset)) for each in request.records]
        start = self._start(request) if request.go_on else 0
        asked = Asked(
            request.topic,
            list(request.keys),
            list(request.message_ids),
            named,
            start,
            list(request.traced_ids),
        )
        try:
            done = await self._erasing.erase(asked, dry_run=request.dry_run)
        except ServiceError as error:
            raise RpcError(_ERASE_STATUS[error.reason], error.message) from error
        store = self._erasing.store
        answer = pb.EraseResponse(
            broker=store.broker,
            log_id=store.log_id,
            min_offset=store.min_offset,
            max_offset=store.max_offset,
            new_records=done.new_records,
            stopped_at=done.stopped_at,
        )
        size = 0
        for each in done.found:
            record = pb.ErasedRecord(
                physical_offset=each.physical_offset,
                size=each.size,
                topic=each.topic,
                message_id=each.message_id,
                keys=each.keys,
                stored_ms=each.stored_ms,
                segment_start=each.physical_offset - each.physical_offset % store.segment_size,
                kept_until_ms=done.kept_until_ms(each.physical_offset),
            )
            size += record.ByteSize()
            if size > _MOST_ANSWERED:
                for name in ("topic", "message_id", "keys"):
                    record.ClearField(name)
            answer.records.append(record)
        told = await self._peers.tell(
            f"/{_SERVICE}/Erase", request, context, pb.EraseResponse.FromString, _PEER_ERASES_S
        )
        answer.others.extend(other for _, other in told)
        return answer

    def _start(self, request: pb.EraseRequest) -> int | None:
        """Where an earlier call stopped in this broker's log; None: it did not."""
        store = self._erasing.store
        for each in request.go_on:
            if each.broker == store.broker and store.identity.owns(each.log_id):
                return int(each.physical_offset)
        return None

    def _is_system(self, topic: str) -> bool:
        return topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or self._topics.is_system(topic)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What the broker refuses, as a gRPC status: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, or UNAVAILABLE for what the log
    did not take."""
    try:
        yield
    except CatalogFullError as error:
        raise RpcError("RESOURCE_EXHAUSTED", str(error)) from error
    except ServiceError as error:
        unwritten = error.reason is Reason.INTERNAL_SERVER_ERROR
        raise RpcError("UNAVAILABLE" if unwritten else "INVALID_ARGUMENT", error.message) from error


def _changed_topic(topic: Topic, asked: pb.Topic) -> Topic:
    """The topic with what is named in a request. Raises RpcError."""
    if asked.queues:
        topic = replace(topic, read_queues=asked.queues, write_queues=asked.queues)
    kinds = tuple(dict.fromkeys(asked.accept_message_types))
    if kinds == (_EVERY_TYPE,):
        return topic_configuration.with_message_types(topic, ())
    for kind in kinds:
        if kind not in MESSAGE_TYPES:
            raise RpcError(
                "INVALID_ARGUMENT",
                f"message type {shown(kind)} is unknown; use {', '.join(MESSAGE_TYPES)}, or {_EVERY_TYPE} alone for every type",
            )
    return topic_configuration.with_message_types(topic, kinds) if kinds else topic


def _others(known: Group | None, group: Group, asked: str) -> str:
    """`Group.others` with the fields that a request names. Raises RpcError."""
    if not asked:
        return group.others
    if len(asked) > MOST_BYTES:
        raise RpcError(
            "INVALID_ARGUMENT", f"the configuration has {len(asked)} characters: {MOST_BYTES} are allowed"
        )
    try:
        members = json.loads(asked)
    except (ValueError, RecursionError) as error:
        raise RpcError(
            "INVALID_ARGUMENT", f"the configuration {shown(asked)} is no JSON: {error or 'too deeply nested'}"
        ) from error
    if not isinstance(members, dict):
        raise RpcError("INVALID_ARGUMENT", f"the configuration {shown(asked)} is no JSON object")
    try:
        return group_configuration.changed_in_part(group.name, known, members)
    except ConfigurationError as error:
        raise RpcError("INVALID_ARGUMENT", str(error)) from error


def _topic(topic: Topic) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        queues=topic.queues,
        accept_message_types=topic.accept_message_types,
        created_ms=topic.created_ms,
        configuration=topic_configuration.with_message_types(topic, ()).others,
    )


def _group(group: Group) -> pb.Group:
    return pb.Group(
        name=group.name,
        retry_max_times=group.retry_max_times,
        fifo=group.fifo,
        created_ms=group.created_ms,
        configuration=group_configuration.further(group),
    )
