"""Requests about consumer groups: their configuration, their offsets, who is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.administration.connections import (
    client_json,
    decode_heartbeat,
    encode_consumers,
    language_name,
    producer_json,
    subscription_json,
)
from broker_gateway.api.remoting.administration.groups import checked_group, group_of_config
from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.api.remoting.consume_stats import ConsumeStats, message_queue
from broker_gateway.api.remoting.pages import PageFields, Version
from broker_gateway.api.remoting.tables import MAX_BODY, Tables, Whole, joined
from broker_gateway.api.remoting.topic_requests import java_objects
from broker_gateway.messaging.connections import Client
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.group_configuration import configuration, forbidden
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.tables import TopicList
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.protocol.java_json import JsonObject, ObjectKeys
from broker_gateway.runtime.clock import now_ms
from broker_gateway.transport.remoting.connection import Connection, Processors

MAX_CONFIG = 64 << 10
MAX_HEARTBEAT = 1 << 20
"""Bytes of a body."""
MAX_TOPICS = 1000
"""In the `topicList` of a request."""

_PAGE = PageFields("groupSeq", "maxGroupNum")


class GroupRequests:
    """Answers as the original's AdminBrokerProcessor, ConsumerManageProcessor and ClientManageProcessor."""

    def __init__(self, administration: Administration, tables: Tables, walks: ConcurrencyLimit) -> None:
        self._admin = administration
        self._tables = tables
        self._walks = walks
        self._stats = ConsumeStats(administration)

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put)
        processors.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete)
        processors.register(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all)
        processors.register(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.one)
        processors.register(RequestCode.GET_CONSUME_STATS, self.stats)
        processors.register(RequestCode.GET_BROKER_CONSUME_STATS, self.all_stats)
        processors.register(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_offsets)
        processors.register(RequestCode.QUERY_CONSUMER_OFFSET, self.query_offset)
        processors.register(RequestCode.UPDATE_CONSUMER_OFFSET, self.update_offset)
        processors.register(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset)
        processors.register(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic)
        processors.register(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group)
        processors.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumers)
        processors.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producers)
        processors.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_ids)
        processors.register(RequestCode.HEART_BEAT, self.heartbeat)
        processors.register(RequestCode.UNREGISTER_CLIENT, self.unregister)
        processors.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.put_all)
        processors.register(RequestCode.CLONE_GROUP_OFFSET, self.clone_offsets)
        processors.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription)
        processors.register(RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers)
        processors.register(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status)

    async def put(self, _: Connection, request: Command) -> Command:
        config = _object(request, MAX_CONFIG, "the group's configuration")
        self._admin.groups.put(group_of_config(config, self._admin.groups.find))
        return request.reply()

    async def delete(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        self._admin.groups.delete(fields.text("groupName"), clean_offsets=fields.boolean("cleanOffset"))
        return request.reply()

    async def all(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        if _PAGE.asked(fields):
            whole = await self._page(connection, fields)
        else:
            whole = await self._tables.table(connection, "all groups", self._admin.group_version, self._whole)
        return request.reply(fields={"totalGroupNum": str(whole.total)}, body=whole.body)

    def one(self, _: Connection, request: Command) -> Command:
        group = self._admin.groups.known(Fields(request.ext_fields).text("group"))
        return request.reply(body=java_json.dumps(configuration(group)))

    async def stats(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group = fields.text("consumerGroup")
        topics = [each for each in (fields.optional_text("topicList") or "").split(";") if each.strip()]
        if len(topics) > MAX_TOPICS:
            raise RequestError(
                f"{len(topics)} topics: {MAX_TOPICS} are allowed", ResponseCode.INVALID_PARAMETER
            )
        async with self._walks:
            if not topics:
                one = fields.optional_text("topic")
                topics = [one] if one and one.strip() else self._admin.offsets.topics_of(group)
            return request.reply(body=await self._stats.of_group(group, topics))

    async def all_stats(self, connection: Connection, request: Command) -> Command:
        in_order = Fields(request.ext_fields).boolean("isOrder")
        kind = f"progress, in order {in_order}"
        make = partial(self._stats.of_all, in_order=in_order)
        return request.reply(body=await self._tables.table(connection, kind, _as_of_now, make))

    async def all_offsets(self, connection: Connection, request: Command) -> Command:
        return request.reply(
            body=await self._tables.table(connection, "offsets", _as_of_now, self._all_offsets)
        )

    def query_offset(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        fields.text("queueId")
        group, topic, queue_id = fields.text("consumerGroup"), fields.text("topic"), fields.small("queueId")
        offset = self._admin.offsets.known(group, topic, queue_id)
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
        self._admin.offset_changes.commit(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.small("queueId"),
            fields.long("commitOffset"),
        )
        return request.reply()

    async def reset_offset(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        topic = fields.text("topic")
        offsets = await self._admin.offset_changes.reset(
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

    async def consumers(self, _: Connection, request: Command) -> Command:
        async with self._walks:
            name = Fields(request.ext_fields).text("consumerGroup")
            group = self._admin.connections.consumers(name)
            if not group.clients:
                raise RequestError(
                    f"the consumer group[{name[:255]}] not online", ResponseCode.CONSUMER_NOT_ONLINE
                )
            return request.reply(body=await asyncio.to_thread(encode_consumers, group))

    def producers(self, _: Connection, request: Command) -> Command:
        group = Fields(request.ext_fields).text("producerGroup")
        found = self._admin.connections.producers(group)
        if not found:
            raise RequestError(f"the producer group[{group[:255]}] not exist")
        return request.reply(body=java_json.dumps({"connectionSet": [client_json(each) for each in found]}))

    def consumer_ids(self, _: Connection, request: Command) -> Command:
        group = Fields(request.ext_fields).text("consumerGroup")
        found = self._admin.connections.consumer_ids(group)
        if not found:
            raise RequestError(f"no consumer for this group, {group[:255]}")
        return request.reply(body=java_json.dumps({"consumerIdList": found}))

    def heartbeat(self, connection: Connection, request: Command) -> Command:
        heartbeat = decode_heartbeat(_object(request, MAX_HEARTBEAT, "the heartbeat"))
        language = language_name(request.language)
        client = Client(heartbeat.client_id, connection.peer, language, request.version, now_ms())
        self._admin.connections.heartbeat(connection, heartbeat, client)
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
        find = self._admin.groups.find
        await self._admin.groups.put_all(*[group_of_config(each, find) for each in configs])
        return request.reply()

    async def clone_offsets(self, _: Connection, request: Command) -> Command:
        """Not of topics that the source's connected consumers do not subscribe to, unless `offline`."""
        fields = Fields(request.ext_fields)
        source, target = fields.text("srcGroup"), checked_group(fields.text("destGroup"))
        one = fields.optional_text("topic")
        topics = [one] if one and one.strip() else self._admin.offsets.topics_of(source)
        wanted = {} if fields.boolean("offline") else self._admin.connections.subscriptions(source)
        self._admin.offset_changes.clone(
            source, target, [each for each in topics if not wanted or each in wanted]
        )
        return request.reply()

    def subscription(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group, topic = fields.text("group"), fields.text("topic")
        body: dict[str, Any] = {"group": group, "topic": topic}
        found = self._admin.connections.subscriptions(group).get(topic)
        if found is not None:
            body["subscriptionData"] = subscription_json(found)
        return request.reply(body=java_json.dumps(body))

    def all_producers(self, _: Connection, request: Command) -> Command:
        table = {
            group: [producer_json(each) for each in clients]
            for group, clients in self._admin.connections.all_producers().items()
        }
        return request.reply(body=java_json.dumps({"data": table}))

    def consumer_status(self, _: Connection, request: Command) -> Command:
        """Clients are not asked; the original has no answer of gRPC clients either."""
        fields = Fields(request.ext_fields)
        fields.text("topic")
        group = fields.text("group")
        if not self._admin.connections.consumers(group).clients:
            raise RequestError(f"No Any Consumer online in the consumer group: [{group[:255]}]")
        return request.reply(body=java_json.dumps({"consumerTable": {}, "messageQueueTable": {}}))

    async def _page(self, connection: Connection, fields: Fields) -> Whole:
        found = await self._tables.table(connection, "groups", self._admin.group_version, self._sorted)
        first, end = _PAGE.page(fields, found.version, len(found.entries))

        async def make() -> Whole:
            body = await asyncio.to_thread(_table, found.version, found.entries[first:end])
            return Whole(len(found.entries), body)

        asked = (found.version, first, end)
        return await self._tables.table(connection, "page of groups", lambda: asked, make)

    async def _sorted(self) -> Version[Group]:
        version = self._admin.group_version()
        groups = self._admin.groups.all()
        return Version(version, await asyncio.to_thread(sorted, groups, key=_name))

    async def _whole(self) -> Whole:
        groups, version = self._admin.groups.all(), self._admin.group_version()
        return Whole(len(groups), await asyncio.to_thread(lambda: _table(version, sorted(groups, key=_name))))

    async def _all_offsets(self) -> bytes:
        version = java_json.dumps(self._admin.group_version().to_json())
        offsets = await self._admin.offsets.all()
        return await asyncio.to_thread(_offset_table, version, offsets)


def _as_of_now() -> None:
    """The version of a table that has none: it is made for whoever asks."""


def _name(group: Group) -> str:
    return group.name


def _table(version: DataVersion, groups: Sequence[Group]) -> bytes:
    """A SubscriptionGroupWrapper. Raises RequestError."""
    rows = {each.name: row for each in groups if (row := forbidden(each))}
    return joined(
        b'{"dataVersion":%b,"forbiddenTable":%b,"subscriptionGroupTable":{'
        % (java_json.dumps(version.to_json()), java_json.dumps(rows)),
        (java_json.dumps(each.name) + b":" + java_json.dumps_plain(configuration(each)) for each in groups),
        b"}}",
        f"{len(groups)} groups take more than {MAX_BODY} bytes; ask for pages, with groupSeq and maxGroupNum",
    )


def _offset_table(version: bytes, offsets: Mapping[str, Mapping[int, int]]) -> bytes:
    return joined(
        b'{"dataVersion":%b,"offsetTable":{' % version,
        (java_json.dumps(name) + b":" + java_json.dumps(offsets[name]) for name in sorted(offsets)),
        b"}}",
        f"offsets of {len(offsets)} topics and groups take more than {MAX_BODY} bytes; ask for one group at a time",
    )


def _object(request: Command, most: int, what: str) -> JsonObject:
    """The JSON object in a request's body, of at most so many bytes. Raises BodyError."""
    if len(request.body) > most:
        raise BodyError(f"{what} has {len(request.body)} bytes: {most} are allowed")
    return JsonObject(java_json.loads(request.body), what)
