"""Who is connected: gRPC clients by their settings, remoting clients by their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_gateway.clients import ClientRegistry, ClientSession
from broker_gateway.clock import now_ms
from broker_gateway.remoting.body.topic_config import checked_name
from broker_gateway.remoting.codes import LanguageCode, ResponseCode, Version
from broker_gateway.remoting.connection import Connection
from broker_gateway.remoting.errors import BodyError, RequestError
from broker_gateway.remoting.java_json import JsonObject
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.record import tags_code

MAX_GROUPS = 1000
"""Producer and consumer groups in a heartbeat."""
MAX_HELD = 32 << 20
"""Bytes of the newest heartbeats of all connections."""
MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions in a heartbeat."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connected client."""

    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int = 0

    def to_producer_json(self) -> dict[str, Any]:
        """As Java's ProducerInfo."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.seen_ms,
            "remoteIP": f"/{self.address}",
            "version": self.version,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerGroup:
    """Connected consumers of a group, and what they subscribe to."""

    clients: list[Client] = field(default_factory=list)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"

    def to_json(self) -> dict[str, Any]:
        return {
            "connectionSet": [each.to_json() for each in self.clients],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": self.subscriptions,
        }


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a remoting client says of itself: its groups, and for each of a consumer how it consumes."""

    client_id: str
    producers: tuple[str, ...]
    consumers: Mapping[str, Mapping[str, str]]
    subscriptions: Mapping[str, Mapping[str, dict[str, Any]]]

    @classmethod
    def decode(cls, value: JsonObject) -> Heartbeat:
        """Raises BodyError."""
        producers, consumers = value.array("producerDataSet"), value.array("consumerDataSet")
        if len(producers) + len(consumers) > MAX_GROUPS:
            raise BodyError(
                f"{len(producers) + len(consumers)} groups in a heartbeat: {MAX_GROUPS} are allowed"
            )
        how: dict[str, dict[str, str]] = {}
        what: dict[str, dict[str, dict[str, Any]]] = {}
        count = 0
        for each in consumers:
            data = JsonObject(each, "consumer data")
            group = checked_name(data.text("groupName"), "group")
            how[group] = {
                "consumeType": _word(data, "consumeType", "CONSUME_PASSIVELY"),
                "messageModel": _word(data, "messageModel", "CLUSTERING"),
                "consumeFromWhere": _word(data, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
            }
            subscribed = data.array("subscriptionDataSet")
            count += len(subscribed)
            if count > MAX_SUBSCRIPTIONS:
                raise BodyError(f"more than {MAX_SUBSCRIPTIONS} subscriptions in a heartbeat")
            what[group] = dict(_subscription(JsonObject(entry, "a subscription")) for entry in subscribed)
        return cls(
            checked_name(value.text("clientID"), "client"),
            tuple(
                checked_name(JsonObject(each, "producer data").text("groupName"), "group")
                for each in producers
            ),
            how,
            what,
        )


class Connections:
    """Remoting clients are known as long as their connection is open."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._heartbeats: dict[Connection, tuple[Heartbeat, Client]] = {}
        self._sizes: dict[Connection, int] = {}
        self._held = 0

    def heartbeat(
        self, connection: Connection, heartbeat: Heartbeat, size: int, language: str, version: int
    ) -> None:
        """The newest heartbeat on a connection counts; `size` is that of its text, in bytes. SYSTEM_BUSY."""
        held = self._held - self._sizes.get(connection, 0) + size
        if held > MAX_HELD:
            raise RequestError(
                f"heartbeats of {MAX_HELD} bytes are held; this client is not listed",
                ResponseCode.SYSTEM_BUSY,
            )
        self._held, self._sizes[connection] = held, size
        client = Client(heartbeat.client_id, connection.peer, language, version, now_ms())
        self._heartbeats[connection] = heartbeat, client

    def unregister(self, connection: Connection, producer: str | None, consumer: str | None) -> None:
        """Takes groups of a connection's client out."""
        known = self._heartbeats.get(connection)
        if known is None:
            return
        heartbeat, client = known
        left = Heartbeat(
            heartbeat.client_id,
            tuple(each for each in heartbeat.producers if each != producer),
            {group: how for group, how in heartbeat.consumers.items() if group != consumer},
            heartbeat.subscriptions,
        )
        if left.producers or left.consumers:
            self._heartbeats[connection] = left, client
        else:
            self.closed(connection)

    def closed(self, connection: Connection) -> None:
        self._heartbeats.pop(connection, None)
        self._held -= self._sizes.pop(connection, 0)

    def consumers(self, group: str) -> ConsumerGroup:
        """CONSUMER_NOT_ONLINE when nobody of the group is connected."""
        found = ConsumerGroup()
        for session in self._clients.sessions():
            settings = session.settings
            if settings is None or session.group != group:
                continue
            found.clients.append(_client(session))
            if settings.client_type == pb.SIMPLE_CONSUMER:
                found.consume_type = "CONSUME_ACTIVELY"
            for entry in settings.subscription.subscriptions:
                expression = entry.expression.expression or "*"
                kind = "SQL92" if entry.expression.type == pb.FilterType.SQL else "TAG"
                found.subscriptions[entry.topic.name] = _subscription_json(
                    entry.topic.name, expression, kind, session.seen_ms
                )
        for heartbeat, client in self._heartbeats.values():
            how = heartbeat.consumers.get(group)
            if how is None:
                continue
            found.clients.append(client)
            found.subscriptions |= heartbeat.subscriptions.get(group, {})
            found.consume_type, found.message_model = how["consumeType"], how["messageModel"]
            found.consume_from_where = how["consumeFromWhere"]
        if not found.clients:
            raise RequestError(
                f"the consumer group[{group[:255]}] not online", ResponseCode.CONSUMER_NOT_ONLINE
            )
        return found

    def producers(self, group: str) -> list[Client]:
        """Producers of a group; those over gRPC are in one named as each of their topics. SYSTEM_ERROR without any."""
        found = [client for heartbeat, client in self._heartbeats.values() if group in heartbeat.producers]
        found += [client for name, client in self._publishers() if name == group]
        if not found:
            raise RequestError(f"the producer group[{group[:255]}] not exist")
        return found

    def subscribers(self, topic: str) -> Iterable[str]:
        """Groups of connected consumers that subscribe to a topic."""
        for session in self._clients.sessions():
            if session.settings is not None and any(
                entry.topic.name == topic for entry in session.settings.subscription.subscriptions
            ):
                yield session.group
        for heartbeat, _ in self._heartbeats.values():
            yield from (group for group, topics in heartbeat.subscriptions.items() if topic in topics)

    def subscriptions(self, group: str) -> dict[str, dict[str, Any]]:
        """What a group's connected consumers subscribe to, by topic."""
        try:
            return self.consumers(group).subscriptions
        except RequestError:
            return {}

    def all_producers(self) -> dict[str, list[Client]]:
        """Connected producers by group, as in `producers`."""
        found: dict[str, list[Client]] = {}
        for heartbeat, client in self._heartbeats.values():
            for group in heartbeat.producers:
                found.setdefault(group, []).append(client)
        for group, client in self._publishers():
            found.setdefault(group, []).append(client)
        return found

    def _publishers(self) -> Iterable[tuple[str, Client]]:
        """Topics that gRPC producers said they send to."""
        for session in self._clients.sessions():
            if session.settings is not None:
                for topic in session.settings.publishing.topics:
                    yield topic.name, _client(session)


def _client(session: ClientSession) -> Client:
    return Client(session.client_id, session.peer, session.language, int(Version.V5_5_0), session.seen_ms)


def _subscription(data: JsonObject) -> tuple[str, dict[str, Any]]:
    topic = checked_name(data.text("topic"), "topic")
    expression = data.text("subString", "*")
    if len(expression) > 4096:
        raise BodyError(f"subString of {topic} has {len(expression)} characters: 4096 are allowed")
    kind = _word(data, "expressionType", "TAG") or "TAG"
    return topic, _subscription_json(topic, expression, kind, data.integer("subVersion", 0))


def _subscription_json(topic: str, expression: str, kind: str, version: int) -> dict[str, Any]:
    """As Java's SubscriptionData; `version` is when it was told, in ms."""
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


def _word(data: JsonObject, name: str, default: str) -> str:
    value = data.text(name, default)
    if len(value) > 64 or not value.isprintable():
        raise BodyError(f"{name} {value[:64]!r}: 64 printable characters are allowed")
    return value


def language_name(language: int) -> str:
    """A LanguageCode's name; OTHER for a number nobody knows."""
    return LanguageCode(language).name if language in LanguageCode._value2member_map_ else "OTHER"
