"""The topics a broker registers, as the original's TopicConfigManager has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from broker_gateway.metadata import topic_configuration
from broker_gateway.metadata.catalog import READ, WRITE, Catalog, Group, Topic
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.protocol.body.topic_config import TopicConfig

BOTH = READ | WRITE


def retry_topic_of(group: str) -> Topic:
    """What tools look up to find a group's brokers; nothing is put there, a message is delivered again in place."""
    return Topic(RETRY_PREFIX + group, 1, 1)


def shown_topic(catalog: Catalog, name: str) -> Topic | None:
    """A topic, or the retry topic of a group."""
    topic = catalog.topic(name)
    if topic is None and name.startswith(RETRY_PREFIX):
        group = name.removeprefix(RETRY_PREFIX)
        return retry_topic_of(group) if catalog.group(group) is not None else None
    return topic


def shown_topics(catalog: Catalog) -> list[Topic]:
    """The topics that the broker shows, and registers with name servers: retry topics of groups too."""
    return with_retry_topics(catalog.topics(), catalog.groups())


def with_retry_topics(topics: Iterable[Topic], groups: Iterable[Group]) -> list[Topic]:
    """Topics, and the retry topics of groups."""
    retry = {topic.name: topic for topic in (retry_topic_of(group.name) for group in groups)}
    return list((retry | {topic.name: topic for topic in topics}).values())


def topic_config(topic: Topic, *, order: bool = False, system: bool = False) -> TopicConfig:
    """A topic of the catalog; one that accepts every message type, or several, is MIXED. The system's say nothing."""
    return TopicConfig(
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.permission,
        topic_configuration.filter_type(topic),
        topic_configuration.system_flag(topic),
        order or topic.order,
        {} if system else topic_configuration.attributes(topic),
    )


def registered(
    topics: Iterable[Topic], system: Collection[str], order: Collection[str], permission: int
) -> dict[str, TopicConfig]:
    """Every topic by its name, with the permission that the broker's leaves of it; `system` are names of the system's."""
    return {
        topic.name: limited(
            topic_config(topic, order=topic.name in order, system=topic.name in system), permission
        )
        for topic in topics
    }


def limited(topic: TopicConfig, permission: int) -> TopicConfig:
    """As the original: the broker's permission counts once it lacks reading or writing; what is limited then carries
    neither attributes nor order."""
    if permission & BOTH == BOTH:
        return topic
    return TopicConfig(
        topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm & permission
    )


def split(table: dict[str, TopicConfig], size: int) -> Iterator[dict[str, TopicConfig]]:
    """Parts of at most `size` topics. The first has two or more where there are two: a name server refuses a broker that
    begins with one."""
    names = list(table)
    for start in range(0, max(len(names), 1), size):
        yield {name: table[name] for name in names[start : start + size]}
