"""Who is connected: gRPC clients by their settings, remoting clients by their heartbeats."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_gateway.messaging.clients import ClientRegistry, ClientSession, ClientSettings, Subscription
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.runtime.shares import Shares, host_of
from store.lite_queues import LiteTopic

MAX_HELD = 32 << 20
"""Bytes of memory of the newest heartbeats of all connections, about. Addresses share them: see `Shares`."""
SUBSCRIPTION_BYTES = 128
"""Bytes of memory of one beside its texts; its JSON has more."""
_CONSUMER_BYTES = 1024
"""Bytes of memory of a client, or of a consumer, beside what it lists."""
USUAL_WORDS = {
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
"""Texts of consumers and subscriptions that take no memory of their own: whoever reads one gives this one."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connected client; `version` is of its protocol, None where that has none."""

    client_id: str
    address: str
    language: str
    version: int | None
    seen_ms: int = 0
    program: str = ""
    """Version of the client's program, where its protocol tells."""
    hostname: str = ""


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
        return _CONSUMER_BYTES + words + sum(map(_weight_of, self.subscriptions))


@dataclass(slots=True)
class ConsumerGroup:
    """Connected consumers of a group, and what they subscribe to; no clients: it is not online."""

    clients: list[Client] = field(default_factory=list)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    how: Consumer = Consumer()  # noqa: RUF009


class Member(NamedTuple):
    """A connected consumer of a group."""

    group: str
    client: Client
    how: Consumer


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
        return _CONSUMER_BYTES + names + sum(each.weight for each in self.consumers.values())


class Connections:
    """Remoting clients are known as long as their connection is open."""

    def __init__(self, clients: ClientRegistry, max_share_per_address: int = 100) -> None:
        """`max_share_per_address`: of `MAX_HELD`, in percent, beyond its first half."""
        self._clients = clients
        self._shares = Shares(MAX_HELD, max_share_per_address)
        self._heartbeats: dict[Hashable, tuple[Heartbeat, Client]] = {}
        self._of_group: dict[str, dict[Hashable, None]] = {}
        self._weights: dict[Hashable, int] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of memory of all heartbeats, about."""
        return self._held

    def heartbeat(self, connection: Hashable, heartbeat: Heartbeat, client: Client) -> None:
        """The newest heartbeat on a connection counts; one that is refused changes nothing. TOO_MANY_REQUESTS."""
        weight, host = heartbeat.weight, host_of(client.address)
        more = weight - self._weights.get(connection, 0)
        if self._held + more > MAX_HELD:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"heartbeats of {MAX_HELD} bytes are held; this client is not listed",
            )
        if self._shares.refuse(host, self._held, more):
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"heartbeats of {self._shares.of(host)} bytes are held of {host}, which is its share "
                "(lakeMaxSharePerAddress); this client is not listed",
            )
        self._keep(connection, heartbeat, client, weight)

    def unregister(self, connection: Hashable, producer: str | None, consumer: str | None) -> None:
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

    def closed(self, connection: Hashable) -> None:
        known = self._heartbeats.pop(connection, None)
        if known is None:
            return
        heartbeat, client = known
        weight = self._weights.pop(connection)
        self._held -= weight
        self._shares.count(host_of(client.address), -weight)
        for group in heartbeat.consumers:
            members = self._of_group[group]
            del members[connection]
            if not members:
                del self._of_group[group]

    def _keep(self, connection: Hashable, heartbeat: Heartbeat, client: Client, weight: int) -> None:
        self.closed(connection)
        self._heartbeats[connection] = heartbeat, client
        self._weights[connection] = weight
        self._held += weight
        self._shares.count(host_of(client.address), weight)
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

    def consumer(self, group: str, client_id: str) -> Hashable | None:
        """The connection of the remoting consumer of that group and id."""
        members = self._of_group.get(group, ())
        return next((each for each in members if self._heartbeats[each][1].client_id == client_id), None)

    def consumers(self, group: str) -> ConsumerGroup:
        """Of a group; its subscriptions are the newest of each topic."""
        found = ConsumerGroup()
        for member in self.members(group):
            found.clients.append(member.client)
            found.how = member.how
            found.subscriptions.update((each.topic, each) for each in member.how.subscriptions)
        return found

    def members(self, group: str, lite: LiteTopic | None = None) -> Iterator[Member]:
        """Connected consumers of a group, those over gRPC first; or only those that receive from a lite topic."""
        for session in self._clients.sessions():
            if session.settings is None or session.group != group:
                continue
            if lite is None or (session.lite is not None and session.lite.receives_from(lite)):
                yield _member(session, session.settings)
        if lite is not None:
            return
        for connection in self._of_group.get(group, ()):
            heartbeat, client = self._heartbeats[connection]
            yield Member(group, client, heartbeat.consumers[group])

    def groups(self) -> set[str]:
        """Those with a connected consumer."""
        online = {each.group for each in self._clients.sessions() if each.settings is not None and each.group}
        return online | self._of_group.keys()

    def clients(self) -> Iterator[tuple[Client, bool, bool]]:
        """Every connected client, whether it produces and whether it consumes. A client over gRPC has sent its settings,
        and a stream of it is open."""
        for session in self._clients.sessions():
            if session.settings is not None and session.commands is not None:
                yield _client(session), not session.group, bool(session.group)
        for heartbeat, client in self._heartbeats.values():
            yield client, bool(heartbeat.producers), bool(heartbeat.consumers)

    def producers(self, group: str) -> list[Client]:
        """Producers of a group; those over gRPC are in one named as each of their topics."""
        found = [client for heartbeat, client in self._heartbeats.values() if group in heartbeat.producers]
        return found + [client for name, client in self._publishers() if name == group]

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
        return self.consumers(group).subscriptions

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
    settings = session.settings
    version, hostname = ("", "") if settings is None else (settings.version, settings.hostname)
    return Client(session.client_id, session.peer, session.language, None, session.seen_ms, version, hostname)


def _member(session: ClientSession, settings: ClientSettings) -> Member:
    how = Consumer(
        "CONSUME_ACTIVELY" if settings.kind == "SIMPLE_CONSUMER" else "CONSUME_PASSIVELY",
        subscriptions=tuple(each._replace(version=session.seen_ms) for each in settings.subscriptions),
    )
    return Member(session.group, _client(session), how)


def _weight(text: str) -> int:
    return 0 if text in USUAL_WORDS else sys.getsizeof(text)


def _weight_of(subscription: Subscription) -> int:
    """Bytes of memory, about."""
    texts = (subscription.topic, subscription.expression, subscription.kind)
    return SUBSCRIPTION_BYTES + sum(map(_weight, texts))
