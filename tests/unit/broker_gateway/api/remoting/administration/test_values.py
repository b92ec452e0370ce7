"""Pure parts of administration: attributes, groups, heartbeats, statistics, words for sizes and times."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from broker_gateway.api.remoting.administration.connections import decode_heartbeat, subscription_json
from broker_gateway.api.remoting.administration.groups import group_of_config
from broker_gateway.api.remoting.administration.runtime import format_runtime, readable_bytes
from broker_gateway.api.remoting.topic_requests import attributes_of
from broker_gateway.cluster.topics import shown_topics, topic_config
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.group_configuration import configuration
from broker_gateway.observability.metrics import Metrics
from broker_gateway.observability.statistics import Figure, Statistics, UnknownStatisticsError
from broker_gateway.protocol import java_json
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.java_json import JsonObject, ObjectKeys
from broker_gateway.transport.remoting.address import written_address


def test_objects_as_keys() -> None:
    value = {"t": ObjectKeys([({"queueId": 0, "topic": "a"}, 1), ({"queueId": 1, "topic": "a"}, {"x": 2.0})])}
    expected = b'{"t":{{"queueId":0,"topic":"a"}:1,{"queueId":1,"topic":"a"}:{"x":2.0}}}'
    assert java_json.dumps(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", {}), ("+a=b", {"+a": "b"}), (" +a=b=c , -d ", {"+a": "b=c", "-d": ""})],
)
def test_attributes(text: str, expected: dict[str, str]) -> None:
    assert attributes_of(text) == expected


def test_too_many_attributes_are_refused() -> None:
    with pytest.raises(RequestError, match="101 attributes: 100 are allowed"):
        attributes_of(",".join(f"+a{number}=1" for number in range(101)))
    with pytest.raises(RequestError, match=r"'\+a' is given twice"):
        attributes_of("+a=1, +a=2")


FIFO = Topic("t", 1, 1, accept_message_types=("FIFO",))


def test_topics_as_tools_see_them() -> None:
    assert topic_config(FIFO).attributes == {"message.type": "FIFO"}
    assert topic_config(Topic("t", 2, 3, 4)).to_json()["attributes"] == {"message.type": "MIXED"}
    unspecified = Topic("t", 1, 1, 7, ("MESSAGE_TYPE_UNSPECIFIED",), order=True)
    assert topic_config(unspecified).attributes == {"message.type": "UNSPECIFIED"}
    assert (topic_config(unspecified).order, topic_config(unspecified).perm) == (True, 7)
    catalog = Catalog()
    catalog.put_topic(FIFO)
    catalog.put_group(Group("g"))
    assert sorted(each.name for each in shown_topics(catalog)) == ["%RETRY%g", "t"]


def test_topics_may_shrink_only_when_asked() -> None:
    catalog = Catalog()
    catalog.put_topic(Topic("t", 8, 8))
    assert catalog.put_topic(Topic("t", 2, 2))[0].read_queues == 8
    assert catalog.put_topic(Topic("t", 2, 3), shrink=True)[0] == Topic("t", 2, 3)


def test_a_refused_deletion_deletes_nothing() -> None:
    catalog = Catalog()
    catalog.put_topic(FIFO)
    catalog.put_group(Group("g"))

    def refuse(_: Any) -> None:
        raise OSError("full")

    catalog.listen(topic_deleted=refuse)
    with pytest.raises(OSError, match="full"):
        catalog.delete_topic("t")
    with pytest.raises(OSError, match="full"):
        catalog.delete_group("g", refuse)
    assert catalog.topic("t") == FIFO
    assert catalog.group("g") == Group("g")
    assert catalog.delete_topic("other") is None


def unknown(_: str) -> None:
    """No group is known."""


def test_groups_as_tools_see_them_and_back() -> None:
    group = Group("g", 3, fifo=True, consume_enabled=False)
    found = group_of_config(JsonObject(configuration(group), "x"), unknown)
    assert replace(found, created_ms=0) == group
    assert group_of_config(JsonObject({"groupName": "g"}, "x"), unknown).consume_enabled
    for retries, attempts in ((-1, 0), (5000, 5001), ((1 << 31) - 1, (1 << 31) - 1)):
        found = group_of_config(JsonObject({"groupName": "g", "retryMaxTimes": retries}, "x"), unknown)
        assert (found.retry_max_times, found.max_attempts) == (retries, attempts)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "empty"),
        ({"groupName": "a b"}, "'a b'"),
        ({"groupName": "\ud800"}, "'\\\\ud800' may hold only letters"),
        ({"groupName": "TOOLS_CONSUMER"}, "system"),
        ({"groupName": "g", "retryMaxTimes": 1 << 31}, "retryMaxTimes 2147483648"),
        ({"groupName": "g", "retryMaxTimes": (-1 << 31) - 1}, "retryMaxTimes -2147483649"),
        ({"groupName": "g", "brokerId": "0"}, "brokerId of group g is '0'"),
        ({"groupName": "g", "groupRetryPolicy": {"type": "X"}}, "group g: type of groupRetryPolicy is 'X'"),
    ],
)
def test_groups_that_make_no_sense_are_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises((RequestError, ServiceError), match=why):
        group_of_config(JsonObject(config, "x"), unknown)


def test_heartbeats() -> None:
    subscription = {"topic": "t", "subString": "a || b", "expressionType": "TAG", "subVersion": 7}
    consumer = {"groupName": "g", "consumeType": "CONSUME_ACTIVELY", "subscriptionDataSet": [subscription]}
    value = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}
    found = decode_heartbeat(JsonObject(value, "x"))
    assert found.producers == ("p",)
    assert found.consumers["g"].consume_type == "CONSUME_ACTIVELY"
    assert [subscription_json(each)["tagsSet"] for each in found.consumers["g"].subscriptions] == [["a", "b"]]
    (subscription,) = [subscription_json(each) for each in found.consumers["g"].subscriptions]
    assert subscription["codeSet"] == [97, 98]
    assert subscription["subVersion"] == 7


def test_a_subscription_by_sql_has_no_tags() -> None:
    subscription = {"topic": "t", "subString": "a > 1 || b = 2", "expressionType": "SQL92"}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription]}
    found = decode_heartbeat(JsonObject({"clientID": "c", "consumerDataSet": [consumer]}, "x"))
    shown = subscription_json(found.consumers["g"].subscriptions[0])
    assert shown["tagsSet"] == shown["codeSet"] == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1", "10.0.0.1:10911"), ("::1", "[::1]:10911"), ("[::1]", "[::1]:10911"), ("b", "b:10911")],
)
def test_an_address_of_version_6_stands_in_brackets(host: str, expected: str) -> None:
    assert written_address(host, 10911) == expected


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "clientID"),
        ({"clientID": "x" * 300}, "client name"),
        ({"clientID": "c", "producerDataSet": [{"groupName": "p"}] * 1001}, "1001 groups"),
        ({"clientID": "c", "producerDataSet": [1]}, "not a JSON object"),
        (
            {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{}] * 10_001}]},
            "10000 subscriptions",
        ),
        ({"clientID": "c", "consumerDataSet": [{"groupName": "g", "consumeType": "x" * 65}]}, "consumeType"),
    ],
)
def test_heartbeats_that_make_no_sense_are_refused(value: dict[str, Any], why: str) -> None:
    with pytest.raises(BodyError, match=why):
        decode_heartbeat(JsonObject(value, "x"))


def test_statistics_of_a_minute() -> None:
    metrics = Metrics()
    statistics = Statistics(metrics, "c", 0)
    for second in range(0, 70, 10):
        metrics.sent("t", 1, 5, 10, 0.0)
        metrics.received("t", "g", 2, 4)
        statistics.sample(second * 1000 + 10_000)
    minute, hour, day = statistics.figures("TOPIC_PUT_NUMS", "t")
    assert minute == Figure(30, 0.5, 1.0)
    assert hour == day == Figure()
    assert statistics.figures("GROUP_GET_NUMS", "t@g")[0].total == 12
    assert statistics.figures("BROKER_PUT_NUMS", "c")[0].total == 30
    assert statistics.rate("messages_out", ("t", "g")) == 0.2
    assert statistics.totals()["messages_in"] == 35
    for name, key in (
        ("TOPIC_PUT_NUMS", "x"),
        ("NOTHING", "t"),
        ("BROKER_PUT_NUMS", "x"),
        ("GROUP_GET_NUMS", "t"),
    ):
        with pytest.raises(UnknownStatisticsError, match=f"The stats <{name}> <{key}> not exist"):
            statistics.figures(name, key)


def test_statistics_of_what_came_later() -> None:
    metrics = Metrics()
    metrics.sent("first", 1, 5, 10, 0.0)
    statistics = Statistics(metrics, "c", 0)
    metrics.sent("later", 1, 7, 10, 0.0)
    assert statistics.rate("messages_in", ("later",)) == 0.0, "not sampled yet"
    statistics.sample(10_000)
    assert statistics.figures("TOPIC_PUT_NUMS", "later")[0].total == 7
    assert statistics.figures("TOPIC_PUT_NUMS", "first")[0].total == 0
    assert statistics.rate("messages_in", ("never",)) == 0.0


def test_statistics_of_a_day_take_little_memory() -> None:
    """7 copies of a minute, 7 of an hour, 25 of a day: 8 bytes a number, nothing for what stands still."""
    topics = 200
    metrics = Metrics()

    def send() -> None:
        for number in range(topics):
            metrics.sent(f"t{number}", 1, 1000, 10_000, 0.0)

    send()
    for number in range(topics):
        metrics.received(f"t{number}", "g", 1, 1)
    statistics = Statistics(metrics, "c", 0)
    tracemalloc.start()
    for second in range(600, 100_000, 600):
        send()
        statistics.sample(second * 1000)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 39 * 2 * topics * 12 + 250 * topics
    assert statistics.figures("TOPIC_PUT_NUMS", "t1")[2].total == 24 * 6 * 1000


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (252 << 30, "252.0 GiB")],
)
def test_sizes_in_words(count: int, expected: str) -> None:
    assert readable_bytes(count) == expected


def test_times_in_words() -> None:
    assert format_runtime(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
