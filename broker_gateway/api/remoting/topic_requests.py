"""Requests about topics and the offsets of their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.administration.connections import subscription_json
from broker_gateway.api.remoting.administration.queue_entries import time_span_json
from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.api.remoting.consume_stats import SLICE, message_queue
from broker_gateway.api.remoting.pages import PageFields, Version
from broker_gateway.api.remoting.tables import MAX_BODY, Tables, Whole, joined
from broker_gateway.messaging.offsets import QueueStatus
from broker_gateway.metadata import topic_configuration
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.tables import TopicList
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.protocol.java_json import JsonObject, ObjectKeys
from broker_gateway.runtime.clock import now_ms
from broker_gateway.transport.remoting.connection import Connection, Processors
from store.index.time_search import BoundaryType

MAX_ATTRIBUTES = 100
MAX_LIST = 10_000
MAX_LIST_BODY = 4 << 20
"""Entries, and bytes, of a list of topics or groups."""

_PAGE = PageFields("topicSeq", "maxTopicNum")


def attributes_of(text: str) -> dict[str, str]:
    """Changes of attributes, `+name=value,-name`. Raises RequestError."""
    found = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_ATTRIBUTES:
        raise RequestError(
            f"{len(parts)} attributes: {MAX_ATTRIBUTES} are allowed", ResponseCode.INVALID_PARAMETER
        )
    for part in parts:
        name, _, value = part.partition("=")
        name = name.strip()
        if name in found:
            raise RequestError(
                f"attribute {name[:80]!r} is given twice; name it once", ResponseCode.INVALID_PARAMETER
            )
        found[name] = value.strip()
    return found


def java_objects(request: Command, name: str, what: str) -> list[JsonObject]:
    """The objects of a list in a request's body. Raises BodyError."""
    if len(request.body) > MAX_LIST_BODY:
        raise BodyError(f"{what} has {len(request.body)} bytes: {MAX_LIST_BODY} are allowed")
    found = JsonObject(java_json.loads(request.body), what).array(name)
    if len(found) > MAX_LIST:
        raise BodyError(f"{what} has {len(found)} entries: {MAX_LIST} are allowed; send it in parts")
    return [JsonObject(each, f"an entry of {what}") for each in found]


class TopicRequests:
    """Answers as the original's AdminBrokerProcessor."""

    def __init__(self, administration: Administration, tables: Tables, walks: ConcurrencyLimit) -> None:
        self._admin = administration
        self._tables = tables
        self._walks = walks

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self.put)
        processors.register(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete)
        processors.register(RequestCode.GET_ALL_TOPIC_CONFIG, self.all)
        processors.register(RequestCode.GET_TOPIC_STATS_INFO, self.status)
        processors.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system)
        processors.register(RequestCode.GET_TOPIC_CONFIG, self.one)
        processors.register(RequestCode.GET_MAX_OFFSET, self.max_offset)
        processors.register(RequestCode.GET_MIN_OFFSET, self.min_offset)
        processors.register(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest)
        processors.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search)
        processors.register(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.put_all)
        processors.register(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_unused)
        processors.register(RequestCode.QUERY_CONSUME_QUEUE, self.entries)
        processors.register(RequestCode.QUERY_CONSUME_TIME_SPAN, self.time_spans)

    async def put(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        for name in ("readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order"):
            fields.text(name)
        await self._admin.topics.put(
            TopicConfig(
                fields.text("topic"),
                fields.small("readQueueNums"),
                fields.small("writeQueueNums"),
                fields.small("perm"),
                fields.text("topicFilterType"),
                fields.small("topicSysFlag"),
                fields.boolean("order"),
                attributes_of(fields.optional_text("attributes") or ""),
            )
        )
        return request.reply()

    async def delete(self, _: Connection, request: Command) -> Command:
        self._admin.topics.delete(Fields(request.ext_fields).text("topic"))
        return request.reply()

    async def all(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        if _PAGE.asked(fields):
            whole = await self._page(connection, fields)
        else:
            whole = await self._tables.table(connection, "all topics", self._admin.topic_version, self._whole)
        return request.reply(fields={"totalTopicNum": str(whole.total)}, body=whole.body)

    def one(self, _: Connection, request: Command) -> Command:
        name = Fields(request.ext_fields).text("topic")
        try:
            topic = self._admin.topics.known(name)
        except RequestError as error:
            raise RequestError(f"No topic in this broker. topic: {name[:255]}", error.code) from error
        return request.reply(body=java_json.dumps(self._admin.topics.config(topic).to_json()))

    def system(self, _: Connection, request: Command) -> Command:
        return request.reply(body=TopicList(self._admin.system_topics).encode())

    async def status(self, _: Connection, request: Command) -> Command:
        name = Fields(request.ext_fields).text("topic")
        async with self._walks:
            topic = self._admin.topics.known(name)
            queues = []
            for queue_id in range(topic.queues):
                if queue_id % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                queues.append(self._admin.offsets.status(name, queue_id))
            table = [
                (message_queue(self._admin.broker, name, each.queue_id), _offsets(each)) for each in queues
            ]
            rate = self._admin.statistics.rate("messages_in", (name,))
            shown = {"offsetTable": ObjectKeys(table), "topicPutTps": float(rate)}
            if len(table) <= SLICE:
                return request.reply(body=java_json.dumps(shown))
            return request.reply(body=await asyncio.to_thread(java_json.dumps, shown))

    def max_offset(self, _: Connection, request: Command) -> Command:
        return request.reply(fields={"offset": str(self._bounds(request)[1])})

    async def min_offset(self, _: Connection, request: Command) -> Command:
        return request.reply(fields={"offset": str(await self._admin.offsets.oldest(*_queue(request)))})

    def earliest(self, _: Connection, request: Command) -> Command:
        return request.reply(fields={"timestamp": str(self._admin.offsets.earliest_ms(*_queue(request)))})

    async def search(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        word = (fields.optional_text("boundaryType") or "LOWER").upper()
        if word not in BoundaryType.__members__:
            raise RequestError(
                f"boundaryType {word[:80]!r} is unknown; use LOWER or UPPER", ResponseCode.INVALID_PARAMETER
            )
        offset = await self._admin.offsets.at(*_queue(request), fields.long("timestamp"), BoundaryType[word])
        return request.reply(fields={"offset": str(offset)})

    async def put_all(self, _: Connection, request: Command) -> Command:
        configs = java_objects(request, "topicConfigList", "the list of topics")
        await self._admin.topics.put(
            *(
                replace(TopicConfig.from_json(each), further=topic_configuration.unknown(each.members))
                for each in configs
            )
        )
        return request.reply()

    def clean_unused(self, _: Connection, request: Command) -> Command:
        """There are no consume queue files; what no topic needs goes from the index with its segments."""
        return request.reply()

    def entries(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        name, queue_id = _queue(request)
        try:
            topic = self._admin.topics.known(name)
        except RequestError as error:
            raise RequestError(f"{queue_id}@{name[:255]} is not exist!") from error
        start, group = fields.long("index"), fields.optional_text("consumerGroup")
        found = self._admin.queues.entries(topic, queue_id, start, fields.small("count"))
        if found is None:
            return request.reply(remark=f"Index {start} of {queue_id}@{name} is not exist!")
        low, high = self._bounds(request)
        body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low, "queueData": found}
        if group is not None:
            wanted = self._admin.connections.subscriptions(group).get(name)
            if wanted is None:
                body["filterData"] = f"{group[:255]}@{name} is not online!"
            else:
                body |= {"filterData": "null", "subscriptionData": subscription_json(wanted)}
        return request.reply(body=java_json.dumps(body))

    def time_spans(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        topic, group = self._admin.topics.known(fields.text("topic")), fields.text("group")
        spans = [
            time_span_json(each, message_queue(self._admin.broker, topic.name, each.queue_id))
            for each in self._admin.progress.time_spans(topic, group, now_ms())
        ]
        return request.reply(body=java_json.dumps({"consumeTimeSpanSet": spans}))

    async def _page(self, connection: Connection, fields: Fields) -> Whole:
        found = await self._tables.table(connection, "topics", self._admin.topic_version, self._sorted)
        first, end = _PAGE.page(fields, found.version, len(found.entries))

        async def make() -> Whole:
            body = await asyncio.to_thread(self._table, found.version, found.entries[first:end])
            return Whole(len(found.entries), body)

        asked = (found.version, first, end)
        return await self._tables.table(connection, "page of topics", lambda: asked, make)

    async def _sorted(self) -> Version[Topic]:
        version = self._admin.topic_version()
        topics = self._admin.topics.all()
        return Version(version, await asyncio.to_thread(topics))

    async def _whole(self) -> Whole:
        version, topics = self._admin.topic_version(), self._admin.topics.all()

        def make() -> Whole:
            found = topics()
            return Whole(len(found), self._table(version, found))

        return await asyncio.to_thread(make)

    def _table(self, version: DataVersion, topics: Sequence[Topic]) -> bytes:
        """A TopicConfigAndMappingSerializeWrapper. Raises RequestError."""
        config = self._admin.topics.config
        return joined(
            b'{"dataVersion":%b,"mappingDataVersion":%b,"topicConfigTable":{'
            % (java_json.dumps(version.to_json()), java_json.dumps(DataVersion().to_json())),
            (
                java_json.dumps(each.name) + b":" + java_json.dumps_plain(config(each).to_json())
                for each in topics
            ),
            b'},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}',
            f"{len(topics)} topics take more than {MAX_BODY} bytes; ask for pages, with topicSeq and maxTopicNum",
        )

    def _bounds(self, request: Command) -> tuple[int, int]:
        return self._admin.offsets.bounds(*_queue(request))


def _offsets(status: QueueStatus) -> dict[str, int]:
    return {
        "lastUpdateTimestamp": status.last_update_ms,
        "maxOffset": status.max_offset,
        "minOffset": status.min_offset,
    }


def _queue(request: Command) -> tuple[str, int]:
    fields = Fields(request.ext_fields)
    fields.text("queueId")
    return fields.text("topic"), fields.small("queueId")
