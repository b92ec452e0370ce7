"""Requests about lite topics: who subscribes to them, and how far groups are on them."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.api.remoting.tables import MAX_BODY
from broker_gateway.messaging.lite_reports import GroupOffset, Lag
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.transport.remoting.connection import Connection, Processors

STORE_TYPE = "default"
"""What the original calls a store without RocksDB."""
_MOST_NAMES = 1000
"""Lite topics of a client, where a request does not say how many."""


class LiteRequests:
    """Answers as the original's LiteManagerProcessor. `walks` bounds those that look at many queues."""

    def __init__(self, administration: Administration, walks: ConcurrencyLimit) -> None:
        self._lite = administration.lite
        self._walks = walks

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.GET_BROKER_LITE_INFO, self.broker)
        processors.register(RequestCode.GET_PARENT_TOPIC_INFO, self.parent)
        processors.register(RequestCode.GET_LITE_TOPIC_INFO, self.lite_topic)
        processors.register(RequestCode.GET_LITE_CLIENT_INFO, self.client)
        processors.register(RequestCode.GET_LITE_GROUP_INFO, self.group)
        processors.register(RequestCode.TRIGGER_LITE_DISPATCH, self.dispatch)

    async def broker(self, _: Connection, request: Command) -> Command:
        async with self._walks:
            found = await self._lite.broker()
        body = {
            "cqTableSize": found.topics,
            "currentLmqNum": found.lite_topics,
            "eventMapSize": found.active_clients,
            "groupMeta": found.groups,
            "liteSubscriptionCount": found.subscriptions,
            "maxLmqNum": self._lite.most_lite_topics,
            "offsetTableSize": found.offsets,
            "orderInfoCount": found.with_clients,
            "storeType": STORE_TYPE,
            "topicMeta": found.minutes,
        }
        return await _reply(request, body)

    def parent(self, _: Connection, request: Command) -> Command:
        name = Fields(request.ext_fields).text("topic")
        found = self._lite.parent(name)
        body: dict[str, Any] = {
            "liteTopicCount": found.lite_topics,
            "lmqNum": found.all_lite_topics,
            "topic": name,
            "ttl": found.minutes,
        }
        if found.groups:
            body["groups"] = found.groups
        return request.reply(body=java_json.dumps(body))

    async def lite_topic(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        parent, name = fields.text("parentTopic"), fields.name("liteTopic")
        found = await self._lite.lite_topic(parent, name)
        offsets = {
            "lastUpdateTimestamp": found.stored_ms,
            "maxOffset": found.max_offset,
            "minOffset": found.min_offset,
        }
        body = {
            "liteTopic": name,
            "parentTopic": parent,
            "shardingToBroker": found.here,
            "subscriber": [{"clientId": client_id, "group": group} for client_id, group in found.clients],
            "topicOffset": offsets,
        }
        return await _reply(request, body)

    async def client(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        parent, group, client_id = (fields.text(name) for name in ("parentTopic", "group", "clientId"))
        found = await self._lite.client(parent, group, client_id, fields.small("maxCount", _MOST_NAMES))
        body: dict[str, Any] = {
            "clientId": client_id,
            "group": group,
            "lastAccessTime": found.searched_ms,
            "lastConsumeTime": 0,
            "liteTopicCount": found.total,
            "parentTopic": parent,
        }
        if found.total >= 0:
            body["liteTopicSet"] = list(found.queues)
        return await _reply(request, body)

    async def group(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group, lite_topic = fields.text("group"), fields.optional_text("liteTopic")
        body: dict[str, Any] = {"earliestUnconsumedTimestamp": -1, "group": group}
        if lite_topic:
            body["parentTopic"], offset, there = self._lite.group_on(group, lite_topic)
            body |= {"liteTopic": lite_topic, "totalLagCount": 0 if there else -1}
            if offset is not None:
                body |= _offset_json(offset)
            return request.reply(body=java_json.dumps(body))
        async with self._walks:
            body["parentTopic"], lag = await self._lite.group(group, fields.small("topK"))
        if lite_topic is not None:
            body["liteTopic"] = lite_topic
        body |= {
            "lagCountTopK": [_lag_json(each) for each in lag.most],
            "lagTimestampTopK": [],
            "totalLagCount": lag.messages,
        }
        return await _reply(request, body)

    async def dispatch(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        async with self._walks:
            await self._lite.dispatch(fields.text("group"), fields.optional_text("clientId") or "")
        return request.reply()


async def _reply(request: Command, body: dict[str, Any]) -> Command:
    """With a body that may be large. RequestError when no frame has room for it."""
    encoded = await asyncio.to_thread(java_json.dumps, body)
    if len(encoded) > MAX_BODY:
        raise RequestError(f"the answer has {len(encoded)} bytes, more than {MAX_BODY}; ask for less")
    return request.reply(body=encoded)


def _lag_json(lag: Lag) -> dict[str, Any]:
    return {
        "earliestUnconsumedTimestamp": lag.since_ms,
        "lagCount": lag.messages,
        "liteTopic": lag.lite_topic,
    }


def _offset_json(offset: GroupOffset) -> dict[str, Any]:
    wrapper = {
        "brokerOffset": offset.max_offset,
        "consumerOffset": offset.consumer_offset,
        "lastTimestamp": offset.settled_ms,
        "pullOffset": 0,
    }
    return {
        "earliestUnconsumedTimestamp": offset.since_ms,
        "liteTopicOffsetWrapper": wrapper,
        "totalLagCount": offset.max_offset - offset.consumer_offset,
    }
