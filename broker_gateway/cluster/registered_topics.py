"""What is registered: the broker's topics as bodies, encoded once for all name servers.

Bodies are made on a thread, since 100,000 topics take longer than the event loop may stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from broker_gateway.cluster.requests import Identity, register_broker, remoting_version
from broker_gateway.cluster.topics import (
    limited,
    registered,
    shown_topic,
    shown_topics,
    split,
    topic_config,
)
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.metadata.catalog import Catalog, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.system_topics import system_topics
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import MAX_FRAME

log = structlog.get_logger(__name__)

MOST_BODY = MAX_FRAME - (1 << 20)
"""Bytes of a registration's body, with room for the header."""
_LEAST_TOPICS = 2  # a name server refuses a broker that begins with one


class RegisteredTopics:
    """The requests that register the catalog's topics under an identity."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, identity: Identity) -> None:
        self.identity = identity
        self._catalog = catalog
        self._system = frozenset(topic.name for topic in system_topics(config))
        self._options = config.registration
        self._permission = config.broker.broker_permission
        self._order: frozenset[str] = frozenset()
        self._whole: tuple[DataVersion, list[Command]] | None = None
        self._making = asyncio.Lock()

    @property
    def version(self) -> DataVersion:
        return self._catalog.topics_version

    async def whole(self) -> list[Command]:
        """Requests with every topic: one, or several where registrations are split."""
        async with self._making:
            version = self.version
            if self._whole is None or self._whole[0] != version:
                topics = shown_topics(self._catalog)
                self._whole = version, await asyncio.to_thread(self._encode, version, topics)
            return self._whole[1]

    def some(self, topics: Iterable[Topic]) -> Command:
        """A request with these topics, beside those that were registered before."""
        return self._request(
            self.version, {name: each for topic in topics for name, each in [self._limited(topic)]}
        )

    def one(self, topic: Topic) -> TopicConfig:
        return self._limited(topic)[1]

    def topic(self, name: str) -> Topic | None:
        return shown_topic(self._catalog, name)

    def ordered(self, table: KVTable) -> None:
        """Topics that a name server lists as ordered become so; as in the original, none ever stops being one."""
        new = {name for name in table.table if self._catalog.topic(name) is not None} - self._order
        if new:
            log.info("topics are ordered from now on", topics=sorted(new)[:20], count=len(new))
            self._order |= new
            self._catalog.count_topics_version()

    def permit(self, permission: int) -> bool:
        """Takes the broker's permission while it runs; whether it is another one."""
        if permission == self._permission:
            return False
        self._permission = permission
        self._catalog.count_topics_version()
        return True

    def _limited(self, topic: Topic) -> tuple[str, TopicConfig]:
        name = topic.name
        whole = topic_config(topic, order=name in self._order, system=name in self._system)
        return name, limited(whole, self._permission)

    def _encode(self, version: DataVersion, topics: list[Topic]) -> list[Command]:
        options = self._options
        table = registered(topics, self._system, self._order, self._permission)
        size = options.split_registration_size if options.enable_split_registration else len(table)
        return [request for part in split(table, size) for request in self._fitting(version, part)]

    def _fitting(self, version: DataVersion, table: dict[str, TopicConfig]) -> list[Command]:
        """A request with these topics, or several where one would not fit into a frame."""
        request = self._request(version, table)
        if len(request.body) <= MOST_BODY or len(table) < 2 * _LEAST_TOPICS:
            return [request]
        log.info("too many topics for one registration; they go in parts", topics=len(table))
        halves = split(table, (len(table) + 1) // 2)
        return [each for half in halves for each in self._fitting(version, half)]

    def _request(self, version: DataVersion, table: dict[str, TopicConfig]) -> Command:
        options = self._options
        body = RegisterBrokerBody(remoting_version(version), table).encode(
            compress=options.compressed_register
        )
        return register_broker(
            self.identity,
            body,
            compressed=options.compressed_register,
            heartbeat_timeout_ms=options.broker_not_active_timeout_millis
            if options.enable_slave_acting_master
            else None,
        )
