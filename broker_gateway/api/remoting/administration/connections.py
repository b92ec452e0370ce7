"""Who is connected: gRPC clients by their settings, remoting clients by their heartbeats."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker_gateway.messaging.clients import ClientRegistry, ClientSession
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.topic_config import checked_name
from broker_gateway.protocol.codes import LanguageCode, ResponseCode, Version
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.frame import MAX_FRAME
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.runtime.clock import now_ms
from broker_gateway.transport.remoting.connection import Connection
from store.log.record import tags_code

MAX_GROUPS = 1000
"""Producer and consumer groups in a heartbeat."""
MAX_HELD = 32 << 20
"""Bytes of memory of the newest heartbeats of all connections, about."""
MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions in a heartbeat."""
_SUBSCRIPTION = 128
"""Bytes of memory of one beside its texts; its JSON has more."""
_CONSUMER = 1024
"""Bytes of memory of a client, or of a consumer, beside what it lists."""


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


class Subscription(NamedTuple):
    """A topic, and which of its messages: an expression of a kind (TAG, SQL92). `version` is when it was told, in ms."""

    topic: str
    expression: str
    kind: str
    version: int = 0

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        return _SUBSCRIPTION + sum(map(_weight, (self.topic, self.expression, self.kind)))

    def to_json(self) -> dict[str, Any]:
        """As Java's SubscriptionData."""
        named = self.expression.split("||") if self.kind == "TAG" and self.expression != "*" else []
        tags = [each for each in dict.fromkeys(part.strip() for part in named) if each]
        return {
            "classFilterMode": False,
            "codeSet": [tags_code(each) for each in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }

    @classmethod
    def decode(cls, data: JsonObject) -> Subscription:
        """Raises BodyError."""
        topic = checked_name(data.text("topic"), "topic")
        expression = data.text("subString", "*")
        if len(expression) > 4096:
            raise BodyError(f"subString of {topic} has {len(expression)} characters: 4096 are allowed")
        kind = _word(data, "expressionType", "TAG") or "TAG"
        return cls(topic, _WORDS.get(expression, expression), kind, data.integer("subVersion", 0))


class Consumer(NamedTuple):
    """How a client consumes as one of a group, and what."""

    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        words = _weight(self.consume_type) + _weight(self.message_model) + _weight(self.consume_from_where)
        return _CONSUMER + words + sum(each.weight for each in self.subscriptions)


@dataclass(slots=True)
class ConsumerGroup:
    """Connected consumers of a group, and what they subscribe to."""

    clients: list[Client] = field(default_factory=list)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    how: Consumer = Consumer()  # noqa: RUF009

    def encode(self) -> bytes:
        """Java's ConsumerConnection. RequestError when no frame has room for it."""
        if len(self.subscriptions) * _SUBSCRIPTION > MAX_FRAME:
            raise RequestError(
                f"the group has {len(self.subscriptions)} subscriptions, more than an answer has room for"
            )
        return java_json.dumps(
            {
                "connectionSet": [each.to_json() for each in self.clients],
                "consumeFromWhere": self.how.consume_from_where,
                "consumeType": self.how.consume_type,
                "messageModel": self.how.message_model,
                "subscriptionTable": {topic: each.to_json() for topic, each in self.subscriptions.items()},
            }
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a remoting client says of itself: its groups, and for each of a consumer how it consumes."""

    client_id: str
    producers: tuple[str, ...]
    consumers: Mapping[str, Consumer]

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        names = sum(_weight(each) for each in (*self.producers, *self.consumers))
        return _CONSUMER + names + sum(each.weight for each in self.consumers.values())

    @classmethod
    def decode(cls, value: JsonObject) -> Heartbeat:
        """Raises BodyError."""
        producers, consumers = value.array("producerDataSet"), value.array("consumerDataSet")
        if len(producers) + len(consumers) > MAX_GROUPS:
            raise BodyError(
                f"{len(producers) + len(consumers)} groups in a heartbeat: {MAX_GROUPS} are allowed"
            )
        how: dict[str, Consumer] = {}
        count = 0
        for each in consumers:
            data = JsonObject(each, "consumer data")
            group = checked_name(data.text("groupName"), "group")
            subscribed = data.array("subscriptionDataSet")
            count += len(subscribed)
            if count > MAX_SUBSCRIPTIONS:
                raise BodyError(f"more than {MAX_SUBSCRIPTIONS} subscriptions in a heartbeat")
            found = (Subscription.decode(JsonObject(entry, "a subscription")) for entry in subscribed)
            how[group] = Consumer(
                _word(data, "consumeType", "CONSUME_PASSIVELY"),
                _word(data, "messageModel", "CLUSTERING"),
                _word(data, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
                tuple({each.topic: each for each in found}.values()),
            )
        return cls(
            checked_name(value.text("clientID"), "client"),
            tuple(
                checked_name(JsonObject(each, "producer data").text("groupName"), "group")
                for each in producers
            ),
            how,
        )


class Connections:
    """Remoting clients are known as long as their connection is open."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._heartbeats: dict[Connection, tuple[Heartbeat, Client]] = {}
        self._of_group: dict[str, dict[Connection, None]] = {}
        self._weights: dict[Connection, int] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of memory of all heartbeats, about."""
        return self._held

    def heartbeat(self, connection: Connection, heartbeat: Heartbeat, language: str, version: int) -> None:
        """The newest heartbeat on a connection counts. SYSTEM_BUSY."""
        weight = heartbeat.weight
        if self._held - self._weights.get(connection, 0) + weight > MAX_HELD:
            raise RequestError(
                f"heartbeats of {MAX_HELD} bytes are held; this client is not listed",
                ResponseCode.SYSTEM_BUSY,
            )
        client = Client(heartbeat.client_id, connection.peer, language, version, now_ms())
        self._keep(connection, heartbeat, client, weight)

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
        )
        if left.producers or left.consumers:
            self._keep(connection, left, client, left.weight)
        else:
            self.closed(connection)

    def closed(self, connection: Connection) -> None:
        known = self._heartbeats.pop(connection, None)
        self._held -= self._weights.pop(connection, 0)
        for group in known[0].consumers if known is not None else ():
            members = self._of_group[group]
            del members[connection]
            if not members:
                del self._of_group[group]

    def _keep(self, connection: Connection, heartbeat: Heartbeat, client: Client, weight: int) -> None:
        self.closed(connection)
        self._heartbeats[connection] = heartbeat, client
        self._weights[connection] = weight
        self._held += weight
        for group in heartbeat.consumers:
            self._of_group.setdefault(group, {})[connection] = None

    def consumer_ids(self, group: str) -> list[str]:
        """Ids of the connected consumers of a group."""
        found = [
            session.client_id
            for session in self._clients.sessions()
            if session.settings is not None and session.group == group
        ]
        return list(dict.fromkeys(found)) + [
            self._heartbeats[each][1].client_id for each in self._of_group.get(group, ())
        ]

    def consumers(self, group: str) -> ConsumerGroup:
        """CONSUMER_NOT_ONLINE when nobody of the group is connected."""
        found = ConsumerGroup()
        for session in self._clients.sessions():
            settings = session.settings if session.group == group else None
            if settings is None:
                continue
            found.clients.append(_client(session))
            if settings.kind == "SIMPLE_CONSUMER":
                found.how = found.how._replace(consume_type="CONSUME_ACTIVELY")
            for topic, expression, kind in settings.subscriptions:
                found.subscriptions[topic] = Subscription(topic, expression, kind, session.seen_ms)
        for connection in self._of_group.get(group, ()):
            heartbeat, client = self._heartbeats[connection]
            found.clients.append(client)
            found.how = heartbeat.consumers[group]
            found.subscriptions.update((each.topic, each) for each in found.how.subscriptions)
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
            settings = session.settings
            if settings is not None and any(each.topic == topic for each in settings.subscriptions):
                yield session.group
        for heartbeat, _ in self._heartbeats.values():
            for group, consumer in heartbeat.consumers.items():
                if any(each.topic == topic for each in consumer.subscriptions):
                    yield group

    def subscriptions(self, group: str) -> Mapping[str, Subscription]:
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
            settings = session.settings
            if settings is not None:
                for topic in settings.published:
                    yield topic, _client(session)


def _client(session: ClientSession) -> Client:
    return Client(session.client_id, session.peer, session.language, int(Version.V5_5_0), session.seen_ms)


def _weight(text: str) -> int:
    return 0 if text in _WORDS else sys.getsizeof(text)


def _word(data: JsonObject, name: str, default: str) -> str:
    value = data.text(name, default)
    if value in _WORDS:
        return _WORDS[value]
    if len(value) > 64 or not value.isprintable():
        raise BodyError(f"{name} {value[:64]!r}: 64 printable characters are allowed")
    return value


_WORDS = {
    word: word
    for word in (
        "*",
        "CLUSTERING",
        "CONSUME_ACTIVELY",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
        "CONSUME_PASSIVELY",
        "SQL92",
        "TAG",
    )
}
"""The usual ones, which take no memory of their own."""


def language_name(language: int) -> str:
    """A LanguageCode's name; OTHER for a number nobody knows."""
    return LanguageCode(language).name if language in LanguageCode._value2member_map_ else "OTHER"
