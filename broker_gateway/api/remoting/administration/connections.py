"""Connected clients as RocketMQ's programs see them: heartbeats read, connections written as JSON."""

from __future__ import annotations

from typing import Any

from broker_gateway.messaging.clients import ClientSession, Subscription
from broker_gateway.messaging.connections import (
    SUBSCRIPTION_BYTES,
    USUAL_WORDS,
    Client,
    Consumer,
    ConsumerGroup,
    Heartbeat,
)
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.topic_config import checked_name
from broker_gateway.protocol.codes import LanguageCode, Version
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.frame import MAX_FRAME
from broker_gateway.protocol.java_json import JsonObject
from store.log.record import tags_code

MAX_GROUPS = 1000
"""Producer and consumer groups in a heartbeat."""
MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions in a heartbeat."""


def client_json(client: Client) -> dict[str, Any]:
    """As Java's Connection."""
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": _version(client),
    }


def producer_json(client: Client) -> dict[str, Any]:
    """As Java's ProducerInfo."""
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": client.seen_ms,
        "remoteIP": f"/{client.address}",
        "version": _version(client),
    }


def subscription_json(subscription: Subscription) -> dict[str, Any]:
    """As Java's SubscriptionData."""
    topic, expression, kind, version = subscription
    named = expression.split("||") if kind == "TAG" and expression != "*" else []
    tags = [each for each in dict.fromkeys(part.strip() for part in named) if each]
    return {
        "classFilterMode": False,
        "codeSet": [tags_code(each) for each in tags],
        "expressionType": kind,
        "subString": expression,
        "subVersion": version,
        "tagsSet": tags,
        "topic": topic,
    }


def running_info(session: ClientSession, in_order: bool, stack_trace: str | None) -> dict[str, Any]:
    """Java's ConsumerRunningInfo of a gRPC client: what the broker knows of it, and its stack trace where it gave one."""
    settings = session.settings
    active = settings is not None and settings.kind == "SIMPLE_CONSUMER"
    subscriptions = [] if settings is None else settings.subscriptions
    info: dict[str, Any] = {
        "mqPopTable": {},
        "mqTable": {},
        "properties": {
            "PROP_CLIENT_VERSION": Version.V5_5_0.name,
            "PROP_CONSUMEORDERLY": str(in_order).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(session.began_ms),
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY" if active else "CONSUME_PASSIVELY",
        },
        "statusTable": {},
        "subscriptionSet": [subscription_json(each) for each in sorted(subscriptions)],
        "userConsumerInfo": {},
    }
    return info if stack_trace is None else {"jstack": stack_trace, **info}


def encode_consumers(group: ConsumerGroup) -> bytes:
    """Java's ConsumerConnection. RequestError when no frame has room for it."""
    if len(group.subscriptions) * SUBSCRIPTION_BYTES > MAX_FRAME:
        raise RequestError(
            f"the group has {len(group.subscriptions)} subscriptions, more than an answer has room for"
        )
    return java_json.dumps(
        {
            "connectionSet": [client_json(each) for each in group.clients],
            "consumeFromWhere": group.how.consume_from_where,
            "consumeType": group.how.consume_type,
            "messageModel": group.how.message_model,
            "subscriptionTable": {
                topic: subscription_json(each) for topic, each in group.subscriptions.items()
            },
        }
    )


def decode_heartbeat(value: JsonObject) -> Heartbeat:
    """Raises BodyError."""
    producers, consumers = value.array("producerDataSet"), value.array("consumerDataSet")
    if len(producers) + len(consumers) > MAX_GROUPS:
        raise BodyError(f"{len(producers) + len(consumers)} groups in a heartbeat: {MAX_GROUPS} are allowed")
    how: dict[str, Consumer] = {}
    count = 0
    for each in consumers:
        data = JsonObject(each, "consumer data")
        group = checked_name(data.text("groupName"), "group")
        subscribed = data.array("subscriptionDataSet")
        count += len(subscribed)
        if count > MAX_SUBSCRIPTIONS:
            raise BodyError(f"more than {MAX_SUBSCRIPTIONS} subscriptions in a heartbeat")
        found = (_subscription(JsonObject(entry, "a subscription")) for entry in subscribed)
        how[group] = Consumer(
            _word(data, "consumeType", "CONSUME_PASSIVELY"),
            _word(data, "messageModel", "CLUSTERING"),
            _word(data, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
            tuple({each.topic: each for each in found}.values()),
        )
    return Heartbeat(
        checked_name(value.text("clientID"), "client"),
        tuple(
            dict.fromkeys(
                checked_name(JsonObject(each, "producer data").text("groupName"), "group")
                for each in producers
            )
        ),
        how,
    )


def language_name(language: int) -> str:
    """A LanguageCode's name; OTHER for a number nobody knows."""
    return LanguageCode(language).name if language in LanguageCode._value2member_map_ else "OTHER"


def _version(client: Client) -> int:
    """Clients over gRPC have none: the newest that tools know."""
    return int(Version.V5_5_0) if client.version is None else client.version


def _subscription(data: JsonObject) -> Subscription:
    """Raises BodyError."""
    topic = checked_name(data.text("topic"), "topic")
    expression = data.text("subString", "*")
    if len(expression) > 4096:
        raise BodyError(f"subString of {topic} has {len(expression)} characters: 4096 are allowed")
    kind = _word(data, "expressionType", "TAG") or "TAG"
    return Subscription(topic, USUAL_WORDS.get(expression, expression), kind, data.integer("subVersion", 0))


def _word(data: JsonObject, name: str, default: str) -> str:
    value = data.text(name, default)
    if value in USUAL_WORDS:
        return USUAL_WORDS[value]
    if len(value) > 64 or not value.isprintable():
        raise BodyError(f"{name} {value[:64]!r}: 64 printable characters are allowed")
    return value
