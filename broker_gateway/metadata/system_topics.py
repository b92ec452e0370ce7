"""Topics of RocketMQ's own parts, and of ours: their names, and those that every broker has from its start on.

Source: RocketMQ's `TopicValidator` (names) and `TopicConfigManager` (names, queues, permissions). Options decide how
they are made; one that is there, as the journal had it or somebody changed it, stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker_gateway.metadata.catalog import INHERIT, READ, WRITE, Catalog, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC

if TYPE_CHECKING:  # the console asks for names where there is no broker, and so no package for its options
    from broker_gateway.config.gateway import GatewayConfig

_CLUSTER_QUEUES = 16
_BENCHMARK_QUEUES = 1024
_SCHEDULE_QUEUES = 18

_SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)


def is_system_topic(topic: str, cluster: str, broker: str) -> bool:
    """Whether clients may neither send to nor receive from `topic`."""
    return (
        topic in _SYSTEM_TOPICS
        or topic.startswith("rmq_sys_")
        or topic in (cluster, broker, f"{cluster}_REPLY_TOPIC")
    )


def system_topic_names(config: GatewayConfig) -> list[str]:
    """What administrators are told of: the known names and the topics of this broker."""
    return sorted({*_SYSTEM_TOPICS, JOURNAL_TOPIC, *(topic.name for topic in system_topics(config))})


def system_topics(config: GatewayConfig) -> Iterable[Topic]:
    """The topics made at start, as the original has them."""
    broker, cluster = config.broker, config.broker.broker_cluster_name
    both = READ | WRITE
    yield _topic("SELF_TEST_TOPIC")
    if broker.auto_create_topic_enable:
        yield _topic("TBW102", broker.default_topic_queue_nums, INHERIT | both)
    yield _topic("BenchmarkTest", _BENCHMARK_QUEUES)
    yield _topic(cluster, _CLUSTER_QUEUES, INHERIT | (both if broker.cluster_topic_enable else 0))
    yield _topic(broker.broker_name, 1, INHERIT | (both if broker.broker_topic_enable else 0))
    yield _topic("OFFSET_MOVED_EVENT")
    yield _topic("SCHEDULE_TOPIC_XXXX", _SCHEDULE_QUEUES)
    if broker.trace_topic_enable:
        yield _topic(broker.msg_trace_topic_name)
    yield _topic(f"{cluster}_REPLY_TOPIC")
    yield _topic(f"rmq_sys_REVIVE_LOG_{cluster}", broker.revive_queue_num)
    yield _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker.broker_name}", 1, INHERIT)
    yield _topic("RMQ_SYS_TRANS_HALF_TOPIC")
    yield _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    yield _topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
    yield _topic("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC")
    if config.store.timer_wheel_enable:
        yield _topic("rmq_sys_wheel_timer")


def make_system_topics(config: GatewayConfig, catalog: Catalog) -> None:
    """Puts those that are missing into the catalog; they are not journaled by that."""
    for topic in system_topics(config):
        if catalog.topic(topic.name) is None:
            catalog.restore_topic(topic, topic.name)


def _topic(name: str, queues: int = 1, permission: int = READ | WRITE) -> Topic:
    return Topic(name, queues, queues, permission)
