"""The topics a broker registers, as the original's TopicConfigManager has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from broker_gateway.metadata.catalog import READ, WRITE, Topic
from broker_gateway.remoting.body.topic_config import TopicConfig

BOTH = READ | WRITE


def topic_config(topic: Topic, *, order: bool, system: bool = False) -> TopicConfig:
    """A topic of the catalog; one that accepts every message type, or several, is MIXED. The system's say nothing."""
    kinds = topic.accept_message_types
    return TopicConfig(
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.permission,
        order=order,
        attributes={} if system else {"message.type": kinds[0] if len(kinds) == 1 else "MIXED"},
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
