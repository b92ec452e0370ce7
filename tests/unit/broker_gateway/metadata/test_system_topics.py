"""Topics that every broker has."""

from __future__ import annotations

from broker_gateway.config.gateway import load_config
from broker_gateway.metadata.catalog import Catalog, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.metadata.system_topics import (
    is_system_topic,
    make_system_topics,
    system_topic_names,
    system_topics,
)
from structured_streaming.system_topics import is_of_brokers


def test_they_are_the_originals() -> None:
    made = {topic.name: topic for topic in system_topics(load_config(None, {}, {})[0])}
    assert {name: (topic.write_queues, topic.permission) for name, topic in made.items()} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert all(is_system_topic(name, "DefaultCluster", "broker-a") for name in made)
    told = system_topic_names(load_config(None, {}, {})[0])
    assert {*made, JOURNAL_TOPIC, "CHECKPOINT_TOPIC"} < set(told)
    assert all(is_system_topic(name, "DefaultCluster", "broker-a") for name in told)


def test_the_lakes_views_leave_them_out() -> None:
    """But for the two that are called as the cluster and the broker are, which a lake of many brokers does not know."""
    told = system_topic_names(load_config(None, {}, {})[0])
    assert [name for name in told if not is_of_brokers(name)] == ["DefaultCluster", "broker-a"]


def test_options_decide_on_some() -> None:
    given = {
        "autoCreateTopicEnable": "false",
        "clusterTopicEnable": "false",
        "brokerTopicEnable": "false",
        "traceTopicEnable": "true",
        "timerWheelEnable": "false",
        "reviveQueueNum": "2",
    }
    made = {topic.name: topic for topic in system_topics(load_config(None, given, {})[0])}
    assert "TBW102" not in made
    assert "rmq_sys_wheel_timer" not in made
    assert made["RMQ_SYS_TRACE_TOPIC"].write_queues == 1
    assert (made["DefaultCluster"].permission, made["broker-a"].permission) == (1, 1)
    assert made["rmq_sys_REVIVE_LOG_DefaultCluster"].read_queues == 2


def test_they_are_made_without_a_word_to_the_journal() -> None:
    catalog, told = Catalog(), list[Topic]()
    catalog.listen(topic_changed=told.append)
    make_system_topics(load_config(None, {}, {})[0], catalog)
    assert told == []
    assert catalog.topic("TBW102") is not None


def test_what_was_changed_by_hand_stays() -> None:
    catalog = Catalog()
    changed = Topic("TBW102", 2, 2)
    catalog.restore_topic(changed, "TBW102")
    make_system_topics(load_config(None, {}, {})[0], catalog)
    assert catalog.topic("TBW102") == changed
