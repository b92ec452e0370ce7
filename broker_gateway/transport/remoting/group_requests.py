"""Requests about consumer groups: their configuration, their offsets, who is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from broker_gateway.remoting import java_json
from broker_gateway.remoting.body.tables import TopicList
from broker_gateway.remoting.codes import RequestCode, ResponseCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.connection import Connection
from broker_gateway.remoting.errors import BodyError, RequestError
from broker_gateway.remoting.fields import Fields
from broker_gateway.remoting.java_json import JsonObject, ObjectKeys
from broker_gateway.service.administration.administration import Administration
from broker_gateway.service.administration.connections import Heartbeat, language_name
from broker_gateway.service.administration.groups import checked_group, group_config, group_of_config
from broker_gateway.service.administration.offsets import Progress
from broker_gateway.transport.remoting.guard import Guard
from broker_gateway.transport.remoting.topic_requests import java_objects, message_queue

MAX_CONFIG = 64 << 10
MAX_HEARTBEAT = 1 << 20
"""Bytes of a body."""
MAX_TOPICS = 1000
"""In the `topicList` of a request."""


class GroupRequests:
    """Answers as the original's AdminBrokerProcessor, ConsumerManageProcessor and ClientManageProcessor."""

    def __init__(self, administration: Administration) -> None:
        self._admin = administration

    def bind(self, guard: Guard) -> None:
        guard.closed(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put, changes=True)
        guard.closed(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete, changes=True)
        guard.closed(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all)
        guard.open(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.one)
        guard.closed(RequestCode.GET_CONSUME_STATS, self.stats)
        guard.closed(RequestCode.GET_BROKER_CONSUME_STATS, self.all_stats)
        guard.closed(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_offsets)
        guard.open(RequestCode.QUERY_CONSUMER_OFFSET, self.query_offset)
        guard.closed(RequestCode.UPDATE_CONSUMER_OFFSET, self.update_offset, changes=True)
        guard.closed(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset, changes=True)
        guard.closed(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic)
        guard.closed(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group)
        guard.closed(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumers)
        guard.closed(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producers)
        guard.open(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_ids)
        guard.open(RequestCode.HEART_BEAT, self.heartbeat)
        guard.open(RequestCode.UNREGISTER_CLIENT, self.unregister)
        guard.closed(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.put_all, changes=True)
        guard.closed(RequestCode.CLONE_GROUP_OFFSET, self.clone_offsets, changes=True)
        guard.closed(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription)
        guard.closed(RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers)
        guard.closed(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status)

    async def put(self, _: Connection, request: Command) -> Command:
        config = _object(request, MAX_CONFIG, "the group's configuration")
        await self._admin.groups.put(group_of_config(config))
        return request.reply()

    async def delete(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        await self._admin.groups.delete(fields.text("groupName"), clean_offsets=fields.boolean("cleanOffset"))
        return request.reply()

    async def all(self, _: Connection, request: Command) -> Command:
        groups, version = self._admin.groups.all(), self._admin.group_version().to_json()

        def body() -> bytes:
            table = {each.name: group_config(each) for each in groups}
            shown = {"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table}
            return java_json.dumps(shown)

        return request.reply(fields={"totalGroupNum": str(len(groups))}, body=await asyncio.to_thread(body))

    def one(self, _: Connection, request: Command) -> Command:
        group = self._admin.groups.known(Fields(request.ext_fields).text("group"))
        return request.reply(body=java_json.dumps(group_config(group)))

    def stats(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group = fields.text("consumerGroup")
        topics = [each for each in (fields.optional_text("topicList") or "").split(";") if each.strip()]
        if len(topics) > MAX_TOPICS:
            raise RequestError(
                f"{len(topics)} topics: {MAX_TOPICS} are allowed", ResponseCode.INVALID_PARAMETER
            )
        if not topics:
            one = fields.optional_text("topic")
            topics = [one] if one and one.strip() else self._admin.offsets.topics_of(group)
        return request.reply(body=java_json.dumps(self._stats(group, topics)))

    async def all_stats(self, _: Connection, request: Command) -> Command:
        """Others are served between two groups."""
        in_order = Fields(request.ext_fields).boolean("isOrder")
        known = {} if in_order else self._admin.offsets.topics_by_group()
        found, behind, flying = [], 0, 0
        for group in self._admin.groups.all():
            topics = sorted(known.get(group.name, ()))
            found.append({group.name: [self._stats(group.name, [topic]) for topic in topics]})
            for each in self._admin.offsets.progress(group.name, topics):
                behind += each.behind
                flying += each.in_flight
            await asyncio.sleep(0)
        body = {
            "brokerAddr": self._admin.address,
            "consumeStatsList": found,
            "totalDiff": behind,
            "totalInflightDiff": flying,
        }
        return request.reply(body=await asyncio.to_thread(java_json.dumps, body))

    async def all_offsets(self, _: Connection, request: Command) -> Command:
        body = {
            "dataVersion": self._admin.group_version().to_json(),
            "offsetTable": self._admin.offsets.all(),
        }
        return request.reply(body=await asyncio.to_thread(java_json.dumps, body))

    def query_offset(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        fields.text("queueId")
        group, topic, queue_id = fields.text("consumerGroup"), fields.text("topic"), fields.small("queueId")
        offset = self._admin.offsets.committed(group, topic, queue_id)
        if offset is None and not fields.boolean("setZeroIfNotFound", True):
            raise RequestError(
                "Not found, do not set to zero, maybe this group boot first", ResponseCode.QUERY_NOT_FOUND
            )
        if offset is None and self._admin.offsets.begins_at_zero(topic, queue_id):
            offset = 0
        if offset is None:
            raise RequestError(
                "Not found, maybe this group consumer boot first", ResponseCode.QUERY_NOT_FOUND
            )
        return request.reply(fields={"offset": str(offset)})

    async def update_offset(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        fields.text("queueId")
        await self._admin.offsets.commit(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.small("queueId"),
            fields.long("commitOffset"),
        )
        return request.reply()

    async def reset_offset(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        topic = fields.text("topic")
        offsets = await self._admin.offsets.reset(
            fields.text("group"),
            topic,
            fields.small("queueId", -1),
            fields.long("timestamp"),
            fields.optional_long("offset"),
        )
        table = [(message_queue(self._admin.broker, topic, each), offsets[each]) for each in offsets]
        return request.reply(body=java_json.dumps({"offsetTable": ObjectKeys(table)}))

    def groups_of_topic(self, _: Connection, request: Command) -> Command:
        topic = Fields(request.ext_fields).text("topic")
        found = {*self._admin.offsets.groups_of(topic), *self._admin.connections.subscribers(topic)}
        return request.reply(body=java_json.dumps({"groupList": sorted(found)}))

    def topics_of_group(self, _: Connection, request: Command) -> Command:
        topics = self._admin.offsets.topics_of(Fields(request.ext_fields).text("group"))
        return request.reply(body=TopicList(topics, self._admin.address).encode())

    def consumers(self, _: Connection, request: Command) -> Command:
        group = self._admin.connections.consumers(Fields(request.ext_fields).text("consumerGroup"))
        return request.reply(body=java_json.dumps(group.to_json()))

    def producers(self, _: Connection, request: Command) -> Command:
        found = self._admin.connections.producers(Fields(request.ext_fields).text("producerGroup"))
        return request.reply(body=java_json.dumps({"connectionSet": [each.to_json() for each in found]}))

    def consumer_ids(self, _: Connection, request: Command) -> Command:
        group = Fields(request.ext_fields).text("consumerGroup")
        try:
            found = self._admin.connections.consumers(group)
        except RequestError as error:
            raise RequestError(f"no consumer for this group, {group[:255]}") from error
        ids = [each.client_id for each in found.clients]
        return request.reply(body=java_json.dumps({"consumerIdList": ids}))

    def heartbeat(self, connection: Connection, request: Command) -> Command:
        heartbeat = Heartbeat.decode(_object(request, MAX_HEARTBEAT, "the heartbeat"))
        self._admin.connections.heartbeat(
            connection, heartbeat, len(request.body), language_name(request.language), request.version
        )
        return request.reply()

    def unregister(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        fields.text("clientID")
        self._admin.connections.unregister(
            connection, fields.optional_text("producerGroup"), fields.optional_text("consumerGroup")
        )
        return request.reply()

    async def put_all(self, _: Connection, request: Command) -> Command:
        configs = java_objects(request, "groupConfigList", "the list of groups")
        await self._admin.groups.put(*[group_of_config(each) for each in configs])
        return request.reply()

    async def clone_offsets(self, _: Connection, request: Command) -> Command:
        """Not of topics that the source's connected consumers do not subscribe to, unless `offline`."""
        fields = Fields(request.ext_fields)
        source, target = fields.text("srcGroup"), checked_group(fields.text("destGroup"))
        one = fields.optional_text("topic")
        topics = [one] if one and one.strip() else self._admin.offsets.topics_of(source)
        wanted = {} if fields.boolean("offline") else self._admin.connections.subscriptions(source)
        await self._admin.offsets.clone(
            source, target, [each for each in topics if not wanted or each in wanted]
        )
        return request.reply()

    def subscription(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group, topic = fields.text("group"), fields.text("topic")
        body: dict[str, Any] = {"group": group, "topic": topic}
        found = self._admin.connections.subscriptions(group).get(topic)
        if found is not None:
            body["subscriptionData"] = found
        return request.reply(body=java_json.dumps(body))

    def all_producers(self, _: Connection, request: Command) -> Command:
        table = {
            group: [each.to_producer_json() for each in clients]
            for group, clients in self._admin.connections.all_producers().items()
        }
        return request.reply(body=java_json.dumps({"data": table}))

    def consumer_status(self, _: Connection, request: Command) -> Command:
        """Clients are not asked; the original has no answer of gRPC clients either."""
        fields = Fields(request.ext_fields)
        fields.text("topic")
        group = fields.text("group")
        try:
            self._admin.connections.consumers(group)
        except RequestError as error:
            raise RequestError(f"No Any Consumer online in the consumer group: [{group[:255]}]") from error
        return request.reply(body=java_json.dumps({"consumerTable": {}, "messageQueueTable": {}}))

    def _stats(self, group: str, topics: Sequence[str]) -> dict[str, Any]:
        """A group's progress as Java's ConsumeStats."""
        progress = self._admin.offsets.progress(group, topics)
        rate = sum(self._admin.statistics.rate("messages_out", (topic, group)) for topic in topics)
        queues = [
            (message_queue(self._admin.broker, each.topic, each.queue_id), _wrapper(each))
            for each in progress
        ]
        return {"consumeTps": float(rate), "offsetTable": ObjectKeys(queues)}


def _object(request: Command, most: int, what: str) -> JsonObject:
    """The JSON object in a request's body, of at most so many bytes. Raises BodyError."""
    if len(request.body) > most:
        raise BodyError(f"{what} has {len(request.body)} bytes: {most} are allowed")
    return JsonObject(java_json.loads(request.body), what)


def _wrapper(progress: Progress) -> dict[str, int]:
    return {
        "brokerOffset": progress.broker_offset,
        "consumerOffset": progress.consumer_offset,
        "lastTimestamp": progress.last_ms,
        "pullOffset": progress.pull_offset,
    }
