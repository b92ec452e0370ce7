"""Which topics are registered, with which permissions, in which parts; and the requests that carry them."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from broker_gateway.cluster import requests
from broker_gateway.cluster.registered_topics import RegisteredTopics
from broker_gateway.cluster.requests import Identity
from broker_gateway.cluster.topics import limited, registered, split
from broker_gateway.config.gateway import load_config
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.system_topics import make_system_topics
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import Version

IDENTITY = Identity("c", "b", "10.0.0.1:10911", "10.0.0.1:10912")


def names(**options: str) -> dict[str, TopicConfig]:
    config, _ = load_config(None, {"brokerName": "b", "brokerClusterName": "c", **options}, {})
    catalog = Catalog()
    make_system_topics(config, catalog)
    return registered(catalog.topics(), {topic.name for topic in catalog.topics()}, (), 6)


def test_system_topics_follow_the_options() -> None:
    found = names(defaultTopicQueueNums="5")
    assert (found["TBW102"].perm, found["TBW102"].read_queue_nums) == (7, 5)
    assert (found["c"].perm, found["b"].perm) == (7, 7)
    assert found["rmq_sys_REVIVE_LOG_c"].write_queue_nums == 8
    assert "RMQ_SYS_TRACE_TOPIC" not in found
    assert not any(each.attributes for each in found.values())
    fewer = names(
        autoCreateTopicEnable="false",
        clusterTopicEnable="false",
        brokerTopicEnable="false",
        timerWheelEnable="false",
        traceTopicEnable="true",
        msgTraceTopicName="traces",
    )
    assert fewer.keys() == found.keys() - {"TBW102", "rmq_sys_wheel_timer"} | {"traces"}
    assert (fewer["c"].perm, fewer["b"].perm) == (1, 1)


@pytest.mark.parametrize(
    ("topic", "broker", "expected"),
    [(6, 6, 6), (7, 6, 7), (7, 7, 7), (7, 4, 4), (6, 2, 2), (4, 2, 0), (7, 5, 5), (2, 6, 2), (6, 0, 0)],
)
def test_permission_is_anded_once_the_broker_lacks_one(topic: int, broker: int, expected: int) -> None:
    assert limited(TopicConfig("t", 3, 4, topic), broker) == TopicConfig("t", 3, 4, expected)


def test_what_is_limited_carries_no_order() -> None:
    topic = TopicConfig("t", order=True, attributes={"message.type": "FIFO"})
    assert limited(topic, 6) is topic
    assert limited(topic, 4) == TopicConfig("t", perm=4)


def test_topics_of_the_catalog() -> None:
    topics = [
        Topic("plain", 3, 4),
        Topic("fifo", 1, 1, 4, ("FIFO",)),
        Topic("two", 1, 1, 6, ("FIFO", "DELAY")),
    ]
    table = registered([Topic("sys", 8, 8), *topics], {"sys"}, {"fifo"}, 6)
    assert table["sys"] == TopicConfig("sys", 8, 8, 6)
    assert list(table) == ["sys", "plain", "fifo", "two"]
    assert table["plain"] == TopicConfig("plain", 3, 4, 6, attributes={"message.type": "MIXED"})
    assert table["fifo"] == TopicConfig("fifo", 1, 1, 4, order=True, attributes={"message.type": "FIFO"})
    assert table["two"].attributes == {"message.type": "MIXED"}


@pytest.mark.parametrize(
    ("count", "size", "parts"), [(0, 2, [0]), (1, 2, [1]), (2, 2, [2]), (5, 2, [2, 2, 1]), (6, 800, [6])]
)
def test_split(count: int, size: int, parts: list[int]) -> None:
    table = {f"t{number}": TopicConfig(f"t{number}") for number in range(count)}
    found = list(split(table, size))
    assert [len(part) for part in found] == parts
    assert {name: each for part in found for name, each in part.items()} == table


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_says_how_to_check_and_read_its_body(compressed: bool) -> None:
    """A checksum with its highest bit set loses it, as a Java `int` without its sign."""
    checked = 0
    for number in range(20):
        body = RegisterBrokerBody(topic_config_table={"t": TopicConfig("t", number)}).encode(
            compress=compressed
        )
        fields = requests.register_broker(IDENTITY, body, compressed=compressed).ext_fields
        assert 0 <= int(fields["bodyCrc32"]) < 1 << 31
        assert (zlib.crc32(body) - int(fields["bodyCrc32"])) in (0, 1 << 31)
        checked += zlib.crc32(body) >> 31
    assert checked
    assert fields["compressed"] == str(compressed).lower()
    assert (fields["enableActingMaster"], "heartbeatTimeoutMillis" in fields) == ("false", False)
    timed = requests.register_broker(IDENTITY, b"", compressed=False, heartbeat_timeout_ms=10_000).ext_fields
    assert (timed["enableActingMaster"], timed["heartbeatTimeoutMillis"]) == ("true", "10000")


def test_a_book_is_written_anew_when_topics_change() -> None:
    async def test() -> None:
        config, _ = load_config(None, {"enableSplitRegistration": "true", "splitRegistrationSize": "7"}, {})
        catalog = Catalog()
        make_system_topics(config, catalog)
        registered_topics = RegisteredTopics(config, catalog, IDENTITY)
        first = await registered_topics.whole()
        assert await registered_topics.whole() is first
        catalog.put_topic(Topic("t", 2, 2))
        assert catalog.topics_version.counter == 1
        second = await registered_topics.whole()
        assert second is not first
        bodies = [RegisterBrokerBody.decode(each.body, Version.V5_5_0) for each in second]
        assert all(len(each.topic_config_table) <= 7 for each in bodies)
        assert {each.data_version.counter for each in bodies} == {1}
        assert not {name: each for body in bodies for name, each in body.topic_config_table.items()}[
            "t"
        ].order

        registered_topics.ordered(KVTable({"unknown": "b:1", "t": "b:2"}))
        assert catalog.topics_version.counter == 2
        registered_topics.ordered(KVTable({"t": "b:2"}))
        assert catalog.topics_version.counter == 2
        assert (
            RegisterBrokerBody.decode(registered_topics.some([Topic("t", 2, 2)]).body, Version.V5_5_0)
            .topic_config_table["t"]
            .order
        )

    asyncio.run(test())


@pytest.mark.parametrize("options", [{}, {"compressedRegister": "true"}])
def test_more_topics_than_fit_into_a_frame_go_in_parts(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setattr("broker_gateway.cluster.registered_topics.MOST_BODY", 3000)

    async def test() -> None:
        catalog = Catalog()
        for number in range(999):
            catalog.put_topic(Topic(f"topic-{number}-{zlib.crc32(b'%d' % number)}", 2, 2))
        parts = await RegisteredTopics(load_config(None, options, {})[0], catalog, IDENTITY).whole()
        assert len(parts) > 1
        assert all(len(each.body) <= 3000 for each in parts)
        tables = [RegisterBrokerBody.decode(each.body, Version.V5_5_0).topic_config_table for each in parts]
        assert all(len(each) > 1 for each in tables)
        assert sorted(name for each in tables for name in each) == sorted(
            each.name for each in catalog.topics()
        )

    asyncio.run(test())


def test_groups_are_found_by_their_retry_topics() -> None:
    async def test() -> None:
        catalog = Catalog()
        registered_topics = RegisteredTopics(load_config(None, {}, {})[0], catalog, IDENTITY)
        catalog.put_group(Group("g"))
        assert catalog.topics_version.counter == 1
        assert registered_topics.topic("%RETRY%g") == Topic("%RETRY%g", 1, 1)
        table = RegisterBrokerBody.decode(
            (await registered_topics.whole())[0].body, Version.V5_5_0
        ).topic_config_table
        assert table["%RETRY%g"].read_queue_nums == 1
        catalog.put_group(Group("g", 3))
        assert catalog.topics_version.counter == 1, "its retry topic is the same"
        catalog.delete_group("g", lambda group: None)
        assert catalog.topics_version.counter == 2
        assert registered_topics.topic("%RETRY%g") is None

    asyncio.run(test())


def test_a_deleted_topic_is_a_new_version() -> None:
    catalog = Catalog()
    catalog.put_topic(Topic("t", 1, 1))
    assert catalog.delete_topic("t") is not None
    assert catalog.topics_version.counter == 2
    assert catalog.delete_topic("t") is None
    assert catalog.topics_version.counter == 2


def test_a_permission_that_changes_is_a_new_version() -> None:
    async def test() -> None:
        catalog = Catalog()
        registered_topics = RegisteredTopics(load_config(None, {}, {})[0], catalog, IDENTITY)
        assert registered_topics.one(Topic("t", 1, 1)).perm == 6
        assert not registered_topics.permit(6)
        assert registered_topics.permit(4)
        assert registered_topics.one(Topic("t", 1, 1)).perm == 4
        assert catalog.topics_version.counter == 1

    asyncio.run(test())


def test_data_versions_count_up_with_real_changes_only() -> None:
    catalog = Catalog()
    catalog.versions["topics.json"] = DataVersion(3, 41, 1 << 50)
    catalog.put_topic(Topic("t", 2, 2))
    assert catalog.topics_version == DataVersion(3, 42, (1 << 50) + 1)
    catalog.put_topic(Topic("t", 1, 2))
    assert catalog.topics_version.counter == 42
    catalog.put_topic(Topic("t", 4, 4))
    assert catalog.topics_version.counter == 43
