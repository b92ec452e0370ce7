"""The topics a broker registers: those of its catalog and the system's, as the original's TopicConfigManager has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from broker_gateway.config import GatewayConfig
from broker_gateway.metadata.catalog import READ, WRITE, Topic
from broker_gateway.remoting.body.topic_config import TopicConfig

PERM_INHERIT = 1
BOTH = READ | WRITE
SCHEDULE_QUEUES = 18
BENCHMARK_QUEUES = 1024
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def system_topics(config: GatewayConfig) -> list[TopicConfig]:
    """What every broker has beside its users' topics."""
    broker = config.broker
    cluster, name, queues = broker.broker_cluster_name, broker.broker_name, broker.default_topic_queue_nums
    found = [_topic("SELF_TEST_TOPIC")]
    if broker.auto_create_topic_enable:
        found.append(_topic("TBW102", queues, PERM_INHERIT | BOTH))
    found += [
        _topic("BenchmarkTest", BENCHMARK_QUEUES),
        _topic(cluster, 16, PERM_INHERIT | (BOTH if broker.cluster_topic_enable else 0)),
        _topic(name, 1, PERM_INHERIT | (BOTH if broker.broker_topic_enable else 0)),
        _topic("OFFSET_MOVED_EVENT"),
        _topic("SCHEDULE_TOPIC_XXXX", SCHEDULE_QUEUES),
    ]
    if broker.trace_topic_enable:
        found.append(_topic(broker.msg_trace_topic_name))
    found += [
        _topic(f"{cluster}_REPLY_TOPIC"),
        _topic(f"{REVIVE_PREFIX}{cluster}", broker.revive_queue_num),
        _topic(f"{MEMBER_GROUP_PREFIX}{name}", 1, PERM_INHERIT),
        _topic("RMQ_SYS_TRANS_HALF_TOPIC"),
        _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        _topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
        _topic("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
    ]
    if config.store.timer_wheel_enable:
        found.append(_topic("rmq_sys_wheel_timer"))
    return found


def topic_config(topic: Topic, *, order: bool) -> TopicConfig:
    """A topic of the catalog; one that accepts every message type, or several, is MIXED."""
    kinds = topic.accept_message_types
    return TopicConfig(
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.permission,
        order=order,
        attributes={"message.type": kinds[0] if len(kinds) == 1 else "MIXED"},
    )


def registered(
    system: Iterable[TopicConfig], topics: Iterable[Topic], order: Collection[str], permission: int
) -> dict[str, TopicConfig]:
    """Every topic by its name, with the permission that the broker's leaves of it."""
    table = {each.topic_name: each for each in system}
    for topic in topics:
        table[topic.name] = topic_config(topic, order=topic.name in order)
    return {name: limited(each, permission) for name, each in table.items()}


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


def _topic(name: str, queues: int = 1, permission: int = BOTH) -> TopicConfig:
    return TopicConfig(name, queues, queues, permission)
