"""Topics and groups as calls find them: checked, created on first use when that is on."""

from __future__ import annotations

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.metadata.catalog import Catalog, CatalogFullError, Group, Topic
from broker_gateway.metadata.names import DLQ_PREFIX, RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.shares import host_of
from broker_gateway.service.status import ServiceError
from broker_gateway.service.validation import group_of, shown, topic_of
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb


class Resources:
    """Looks topics and groups up for a call; raises ServiceError with the public status."""

    def __init__(self, config: GatewayConfig, catalog: Catalog) -> None:
        self.catalog = catalog
        """All topics and groups as they are now."""
        self._cluster = config.broker.broker_cluster_name
        self._broker = config.broker.broker_name
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._queues = config.broker.default_topic_queue_nums
        self._auto_topic = config.lake.lake_auto_create_topics
        self._auto_group = config.broker.auto_create_subscription_group
        self._retry_max = config.broker.retry_max_times
        self.catalog.auto_created.configure(
            config.lake.lake_max_auto_created_groups,
            config.lake.lake_max_auto_created_group_queues,
            config.lake.lake_max_share_per_address,
        )

    def topic(self, resource: pb.Resource) -> Topic:
        """The topic; created if it may be. ILLEGAL_TOPIC, TOPIC_NOT_FOUND, TOO_MANY_REQUESTS."""
        name = topic_of(resource, self._cluster, self._broker)
        topic = self.catalog.topic(name)
        if topic is not None:
            return topic
        if not self._auto_topic or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ServiceError(
                pb.TOPIC_NOT_FOUND,
                f"topic {shown(name)} does not exist; create it with `lakebroker topic create {name}`, or set "
                "lakeAutoCreateTopics=true to have topics made on first use",
            )
        return self._put_topic(Topic(name, self._queues, self._queues, created_ms=now_ms()))

    def find_topic(self, resource: pb.Resource) -> Topic | None:
        """The topic if there is one, never created. ILLEGAL_TOPIC."""
        return self.catalog.topic(topic_of(resource, self._cluster, self._broker))

    def known_topic(self, resource: pb.Resource) -> Topic:
        """The topic, never created. ILLEGAL_TOPIC, TOPIC_NOT_FOUND."""
        name = topic_of(resource, self._cluster, self._broker)
        topic = self.catalog.topic(name)
        if topic is None:
            raise ServiceError(pb.TOPIC_NOT_FOUND, f"topic {shown(name)} does not exist")
        return topic

    def check_topic(self, resource: pb.Resource) -> None:
        """ILLEGAL_TOPIC for a name that no topic may have."""
        topic_of(resource, self._cluster, self._broker)

    def group(self, resource: pb.Resource, peer: str) -> Group:
        """The group; created for `peer` (`host:port`) if it may be.

        ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, TOO_MANY_REQUESTS.
        """
        group = self.catalog.group(self.group_name(resource))
        if group is not None:
            return group
        made = Group(
            group_of(resource), self._retry_max, created_ms=now_ms(), first_used_by=host_of(peer) or "?"
        )
        try:
            return self.catalog.put_group(made)[0]
        except CatalogFullError as error:
            raise ServiceError(pb.TOO_MANY_REQUESTS, str(error)) from error

    def group_name(self, resource: pb.Resource) -> str:
        """The name of a group that exists or that a receive would create. ILLEGAL_CONSUMER_GROUP,
        CONSUMER_GROUP_NOT_FOUND."""
        name = group_of(resource)
        if self._auto_group or self.catalog.group(name) is not None:
            return name
        raise ServiceError(
            pb.CONSUMER_GROUP_NOT_FOUND,
            f"consumer group {shown(name)} does not exist; create it with `lakebroker group create {name}`",
        )

    def check_queues(self, group: Group, more: int) -> None:
        """TOO_MANY_REQUESTS when a group may not begin to receive from so many more queues."""
        refusal = self.catalog.auto_created.refusal_of_queues(group.name, more)
        if refusal is not None:
            raise ServiceError(pb.TOO_MANY_REQUESTS, refusal)

    def dead_letters(self, name: str) -> Topic:
        """The dead-letter topic `name`, made when it is new: one queue."""
        return self.catalog.topic(name) or self._put_topic(Topic(name, 1, 1, created_ms=now_ms()))

    def _put_topic(self, topic: Topic) -> Topic:
        try:
            return self.catalog.put_topic(topic)[0]
        except CatalogFullError as error:
            raise ServiceError(pb.TOO_MANY_REQUESTS, str(error)) from error
