"""Topics as RocketMQ's programs see them, and as they ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from broker_gateway.cluster.topics import shown_topic, topic_config, with_retry_topics
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.topics import Topics
from broker_gateway.metadata import topic_configuration
from broker_gateway.metadata.catalog import Catalog, Topic
from broker_gateway.metadata.kept_fields import ConfigurationError
from broker_gateway.metadata.system_topics import system_topics
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.clock import now_ms


@contextlib.contextmanager
def refused_configuration() -> Iterator[None]:
    """A configuration that makes no sense is INVALID_PARAMETER."""
    try:
        yield
    except ConfigurationError as error:
        raise RequestError(str(error), ResponseCode.INVALID_PARAMETER) from error


class TopicAdministration:
    """A retry topic of each group is shown, too; nothing of it exists."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, topics: Topics) -> None:
        self._system = frozenset(topic.name for topic in system_topics(config))
        self._catalog = catalog
        self._topics = topics
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._mixed = config.broker.enable_mixed_message_type

    def known(self, name: str) -> Topic:
        """A topic, or the retry topic of a group. TOPIC_NOT_EXIST."""
        topic = shown_topic(self._catalog, name)
        if topic is None:
            raise RequestError(f"topic[{name}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        return topic

    def all(self) -> Callable[[], list[Topic]]:
        """Every topic as of now, and the retry topic of every group, in the order of their names; for a thread to call."""
        topics, groups = list(self._catalog.topics()), list(self._catalog.groups())
        return lambda: sorted(with_retry_topics(topics, groups), key=lambda topic: topic.name)

    def config(self, topic: Topic) -> TopicConfig:
        """The topic as RocketMQ's programs see it."""
        config = topic_config(topic, system=topic.name in self._system)
        further = topic_configuration.further(topic)
        return replace(config, further=further) if further else config

    async def put(self, *asked: TopicConfig) -> None:
        """Creates or changes topics; `attributes` are changes of them. Nothing is changed when one of them is refused.

        Raises RequestError, and what `Topics.put` does.
        """
        await self._topics.put_all(*[self._topic(each) for each in asked])

    def delete(self, name: str) -> None:
        """As `Topics.delete`."""
        self._topics.delete(name)

    def _topic(self, asked: TopicConfig) -> Topic:
        check_ascii("topic", asked.topic_name)
        topic = Topic(
            asked.topic_name,
            asked.read_queue_nums,
            asked.write_queue_nums,
            asked.perm,
            created_ms=now_ms(),
            order=asked.order,
        )
        fields = {
            **asked.further,
            topic_configuration.FILTER_TYPE: asked.topic_filter_type,
            topic_configuration.SYSTEM_FLAG: asked.topic_sys_flag,
        }
        known = self._catalog.topic(topic.name)
        with refused_configuration():
            return topic_configuration.changed(topic, known, asked.attributes, fields, mixed=self._mixed)


def check_ascii(what: str, name: str) -> None:
    """INVALID_PARAMETER for a name that is not ASCII; not all of those can be UTF-8 (lone surrogates)."""
    if not name.isascii():
        raise RequestError(
            f"{what} {shown(name)} may hold only letters, digits and any of % | - _",
            ResponseCode.INVALID_PARAMETER,
        )
