"""Topics and groups as calls find them: checked, created on first use when that is on."""

from __future__ import annotations

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import check_group, check_topic, shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Catalog, CatalogFullError, Group, Topic
from broker_gateway.metadata.names import DLQ_PREFIX, RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.shares import host_of


class Resources:
    """Looks topics and groups up for a call; raises ServiceError with the reason."""

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

    def topic(self, name: str) -> Topic:
        """The topic; created if it may be. ILLEGAL_TOPIC, TOPIC_NOT_FOUND, TOO_MANY_REQUESTS."""
        self.check_topic(name)
        topic = self.catalog.topic(name)
        if topic is not None:
            return topic
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ServiceError(
                Reason.TOPIC_NOT_FOUND,
                f"topic {shown(name)} does not exist; it comes with the first message of its group that needs it",
            )
        if not self._auto_topic:
            raise ServiceError(
                Reason.TOPIC_NOT_FOUND,
                f"topic {shown(name)} does not exist; create it with `lakebroker topic create {name}`, or set "
                "lakeAutoCreateTopics=true to have topics made on first use",
            )
        return self._put_topic(Topic(name, self._queues, self._queues, created_ms=now_ms()))

    def find_topic(self, name: str) -> Topic | None:
        """The topic if there is one, never created. ILLEGAL_TOPIC."""
        self.check_topic(name)
        return self.catalog.topic(name)

    def known_topic(self, name: str) -> Topic:
        """The topic, never created. ILLEGAL_TOPIC, TOPIC_NOT_FOUND."""
        self.check_topic(name)
        topic = self.catalog.topic(name)
        if topic is None:
            raise ServiceError(
                Reason.TOPIC_NOT_FOUND,
                f"topic {shown(name)} does not exist; `lakebroker topic list` names those that do",
            )
        return topic

    def check_topic(self, name: str) -> None:
        """ILLEGAL_TOPIC for a name that no topic may have."""
        check_topic(name, self._cluster, self._broker)

    def group(self, name: str, peer: str) -> Group:
        """The group; created for `peer` (`host:port`) if it may be.

        ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, TOO_MANY_REQUESTS.
        """
        self.check_group(name)
        group = self.catalog.group(name)
        if group is not None:
            return group
        made = Group(name, self._retry_max, created_ms=now_ms(), first_used_by=host_of(peer) or "?")
        try:
            return self.catalog.put_group(made)[0]
        except CatalogFullError as error:
            raise ServiceError(Reason.TOO_MANY_REQUESTS, str(error)) from error

    def check_group(self, name: str) -> None:
        """ILLEGAL_CONSUMER_GROUP for a name that no group may have, CONSUMER_GROUP_NOT_FOUND for that of a group that
        neither exists nor would be created by a receive."""
        check_group(name)
        if self._auto_group or self.catalog.group(name) is not None:
            return
        raise ServiceError(
            Reason.CONSUMER_GROUP_NOT_FOUND,
            f"consumer group {shown(name)} does not exist; create it with `lakebroker group create {name}`",
        )

    def check_queues(self, group: Group, more: int) -> None:
        """TOO_MANY_REQUESTS when a group may not begin to receive from so many more queues."""
        refusal = self.catalog.auto_created.refusal_of_queues(group.name, more)
        if refusal is not None:
            raise ServiceError(Reason.TOO_MANY_REQUESTS, refusal)

    def dead_letters(self, name: str) -> Topic:
        """The dead-letter topic `name`, made when it is new: one queue."""
        return self.catalog.topic(name) or self._put_topic(Topic(name, 1, 1, created_ms=now_ms()))

    def _put_topic(self, topic: Topic) -> Topic:
        try:
            return self.catalog.put_topic(topic)[0]
        except CatalogFullError as error:
            raise ServiceError(Reason.TOO_MANY_REQUESTS, str(error)) from error
