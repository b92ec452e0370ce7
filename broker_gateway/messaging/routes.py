"""Routes: which queues a topic has, and at which brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.metadata.catalog import MAX_QUEUES, READ, WRITE, Topic
from broker_gateway.metadata.peers import Peers

MAX_ROUTE_QUEUES = 32_768
"""Queues of an answer; brokers beyond are left out."""


class Endpoint(NamedTuple):
    """Where clients reach a broker."""

    host: str
    port: int


class BrokerQueues(NamedTuple):
    """A broker's queues of a topic: those below `read` can be read, those below `write` written."""

    broker: str
    endpoint: Endpoint
    read: int
    write: int


class Route(NamedTuple):
    """A topic's queues, and the types of message that it takes (none: all)."""

    queues: Sequence[BrokerQueues]
    message_types: Sequence[str]


class Routes:
    """Routes of this broker, its peers and the other brokers that name servers know."""

    def __init__(
        self, config: GatewayConfig, resources: Resources, peers: Peers, peer_routes: PeerRoutes
    ) -> None:
        self.own_name = config.broker.broker_name
        self._own_host = config.broker.broker_ip1
        self._own_address = _written(self._own_host, config.broker.listen_port)
        self._resources = resources
        self._peers = peers
        self._peer_routes = peer_routes
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._auto_create = config.lake.lake_auto_create_topics
        self._broker_permission = config.broker.broker_permission

    def when_known(self, topic: str, callback: Callable[[], None]) -> None:
        """Calls `callback` once it is known who else has the topic, or cannot be within a few seconds."""
        try:
            self._resources.check_topic(topic)
        except ServiceError:
            callback()  # whose answer says what is wrong
        else:
            self._peer_routes.when_known(topic, callback, elsewhere=self._resources.find_topic(topic) is None)

    def of(self, name: str, reached: Endpoint) -> Route:
        """Every broker's queues of a topic.

        A topic that only others have is not made here, unless by a broker with peers, which share their topics. This
        broker is at `reached`, the address by which the client came, since that one is known to reach it; its peers,
        and others of its own address, are at the same host.
        """
        topic, others = self._known(name, reached)
        if topic is None and (not others or (self._peers.all and self._auto_create)):
            topic = self._resources.topic(name)
        return self._made(name, topic, others, reached)

    def find(self, name: str, reached: Endpoint) -> Route:
        """The same of a topic that there is; nothing is made. TOPIC_NOT_FOUND."""
        topic, others = self._known(name, reached)
        if topic is None and not others:
            topic = self._resources.known_topic(name)
        return self._made(name, topic, others, reached)

    def remoting_address(self, broker: str) -> str | None:
        """Where a broker of a route answers remoting requests; None when that is not known."""
        if broker == self.own_name:
            return self._own_address
        for peer in self._peers.all:
            if peer.name == broker and peer.remoting_port:
                return _written(self._own_host, peer.remoting_port)
        return self._peer_routes.address_of(broker)

    def _known(self, name: str, reached: Endpoint) -> tuple[Topic | None, list[BrokerQueues]]:
        topic = self._resources.find_topic(name)
        others = list(self._others(name, reached.host))
        if topic is None:
            self._check_known(name)
        return topic, others

    def _made(self, name: str, topic: Topic | None, others: list[BrokerQueues], reached: Endpoint) -> Route:
        if topic is None:
            return Route(_bounded(others), self._peer_routes.message_types(name))
        read, write = self._counts(topic)
        known = {each.broker for each in others}
        peers = [
            BrokerQueues(peer.name, Endpoint(reached.host, peer.grpc_port), read, write)
            for peer in self._peers.all
            if peer.name not in known
        ]
        own = BrokerQueues(self.own_name, reached, read, write)
        return Route(_bounded([own, *peers, *others]), topic.accept_message_types)

    @property
    def alive(self) -> set[str]:
        """The lakebrokers that are known to run."""
        others = {each.name for each in self._peer_routes.members} | {each.name for each in self._peers.all}
        return {self.own_name, *others}

    def writable(self, topic: Topic) -> dict[str, int]:
        """How many writable queues of a topic of this broker each lakebroker has that runs and has the topic. PROXY_TIMEOUT
        while nobody has said which others there are."""
        self._check_known(topic.name)
        write = self._counts(topic)[1]
        counts = {each.broker: each.write for each in self._others(topic.name, "")}
        peers = {peer.name: write for peer in self._peers.all}
        return {**peers, **counts, self.own_name: write}

    def others(self, topic: str) -> list[str]:
        """The other lakebrokers that run and have a topic of this broker, as far as it is known."""
        known = {each.broker for each in self._others(topic, "")} | {peer.name for peer in self._peers.all}
        return sorted(known - {self.own_name})

    def _check_known(self, topic: str) -> None:
        """PROXY_TIMEOUT while nobody has said which other brokers have a topic."""
        if not self._peer_routes.knows(topic):
            raise ServiceError(
                Reason.PROXY_TIMEOUT,
                f"no name server has said in time which brokers have topic {shown(topic)}; try again",
            )

    def _others(self, topic: str, host: str) -> Iterator[BrokerQueues]:
        for member, data in self._peer_routes.queues(topic):
            at = host if member.host == self._own_host else member.host
            yield BrokerQueues(
                member.name,
                Endpoint(at, member.grpc_port),
                min(data.read_queue_nums, MAX_QUEUES) if data.perm & READ else 0,
                min(data.write_queue_nums, MAX_QUEUES) if data.perm & WRITE else 0,
            )

    def _counts(self, topic: Topic) -> tuple[int, int]:
        permission = topic.permission & self._broker_permission
        return (
            topic.read_queues if permission & READ else 0,
            topic.write_queues if permission & WRITE else 0,
        )


def _bounded(found: list[BrokerQueues]) -> list[BrokerQueues]:
    kept, count = [], 0
    for queues in found:
        count += max(queues.read, queues.write)
        if count > MAX_ROUTE_QUEUES:
            break
        kept.append(queues)
    return kept


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
