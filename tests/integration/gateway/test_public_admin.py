"""`apache.rocketmq.v2.Admin` over gRPC: each of its sixteen calls, and what each refuses."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as admin
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_testing.client import ADMIN, OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from tests.support.brokers.telemetry_client import TelemetryClient, answered, consumer_settings, not_consumed
from tests.support.waiting import wait_until

BROKER = "broker-a"
NEW_OPTIONS = {
    **OPTIONS,
    "brokerName": BROKER,
    "defaultTopicQueueNums": "2",
    "grpcProxyRelayRequestTimeoutInSeconds": "60",
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), **NEW_OPTIONS) as process:
        yield process


def resource(name: str) -> pb.Resource:
    return pb.Resource(name=name)


@pytest.fixture
def topic(gateway: Gateway, client: Client, name: str) -> str:
    """A topic of two queues with four messages; the group of its name has two of them in flight and settled one."""
    for number in range(4):
        sent = message(
            name, b"%d" % number, {"n": str(number)}, tag="even" if number % 2 == 0 else "odd", keys=[f"k{number}", "all"],
            message_id=f"{name}-{number}",
        )  # fmt: skip
        assert client.call("SendMessage", send_request(sent)).status.code == pb.OK
        time.sleep(0.002)  # no two are stored in the same millisecond
    messages = client.receive(name, name, invisible_ms=60_000, batch=1)[1]
    client.ack(name, name, *messages)
    flying = client.receive(name, name, invisible_ms=60_000, batch=1)[1]
    flying += client.receive(name, name, invisible_ms=60_000, batch=1)[1]
    assert (len(messages), len(flying)) == (1, 2)
    return name


def ok(answer: Any) -> Any:
    assert answer.status.code == pb.OK, answer.status.message
    return answer


def test_the_state_of_a_topic(client: Client, topic: str) -> None:
    found = ok(client.admin("DescribeTopicStatus", admin.DescribeTopicStatusRequest(topic=resource(topic))))
    assert found.topic_message_type == pb.MESSAGE_TYPE_UNSPECIFIED
    assert abs(found.create_timestamp.seconds - time.time()) < 600
    newest = int(found.tags["lastUpdateTimestamp"])
    assert abs(newest / 1000 - time.time()) < 600
    assert dict(found.tags) | {"lastUpdateTimestamp": ""} == {
        "broker": BROKER,
        "cluster": "DefaultCluster",
        "lastUpdateTimestamp": "",
        "messageTypes": "MIXED",
        "messages": "4",
        "order": "false",
        "perm": "6",
        "readQueueNums": "2",
        "writeQueueNums": "2",
    }


def test_how_far_a_group_is(client: Client, topic: str) -> None:
    request = admin.DescribeGroupAccumulationRequest(group=resource(topic))
    found = ok(client.admin("DescribeGroupAccumulation", request))
    (of_topic,) = found.topic_accumulation.items()
    assert of_topic == (topic, found.accumulation)
    whole = found.accumulation
    assert (whole.inflight_messages, whole.ready_messages, whole.accumulation) == (2, 1, 3)
    assert 0 < whole.deliver_delay_time.ToMilliseconds() < 600_000
    assert abs(whole.last_consume_timestamp / 1000 - time.time()) < 600
    request.topics.add(name=topic)
    request.topics.add(name=topic)
    assert ok(client.admin("DescribeGroupAccumulation", request)).accumulation.accumulation == 3
    request.lite_topic = "lite"
    answer = client.admin("DescribeGroupAccumulation", request)
    assert answer.status.code == pb.TOPIC_NOT_FOUND
    assert "is bound to no topic's lite topics (lite.bind.topic)" in answer.status.message


def test_time_spans(client: Client, topic: str) -> None:
    request = admin.QueryTimeSpanRequest(group=resource(topic))
    spans = ok(client.admin("QueryTimeSpan", request)).queue_time_span_list
    assert [(each.message_queue.topic.name, each.message_queue.id) for each in spans] == [
        (topic, 0),
        (topic, 1),
    ]
    assert {each.message_queue.broker.name for each in spans} == {BROKER}
    for each in spans:
        assert each.min_timestamp <= each.consume_timestamp <= each.max_timestamp
        assert each.delay_time_ms > 0


def at(ms: int) -> Timestamp:
    found = Timestamp()
    found.FromMilliseconds(ms)
    return found


def reset(client: Client, topic: str, group: str, ms: int) -> Any:
    request = admin.ResetGroupOffsetRequest(
        topic=resource(topic), group=resource(group), reset_timestamp=at(ms)
    )
    return client.admin("ResetGroupOffset", request)


def test_a_reset_lets_a_group_go_on_at_a_time_and_outlives_a_kill(
    gateway: Gateway, client: Client, topic: str
) -> None:
    spans = ok(client.admin("QueryTimeSpan", admin.QueryTimeSpanRequest(group=resource(topic))))
    first = min(each.min_timestamp for each in spans.queue_time_span_list)
    ok(reset(client, topic, topic, 4_000_000_000_000))
    assert client.receive(topic, topic, wait_ms=200)[1] == []
    ok(reset(client, topic, topic, first + 1))
    gateway.kill()
    gateway.start()
    later = Client(gateway.address)
    found: list[bytes] = []
    while messages := later.receive(topic, topic, invisible_ms=60_000)[1]:
        found += [each.body for each in messages]
    assert sorted(found) == [b"1", b"2", b"3"]
    later.close()


def query(client: Client, topic: str, **asked: Any) -> Any:
    return client.admin("QueryMessage", admin.ListMessageRequest(topic=resource(topic), **asked))


def bodies(answer: Any) -> list[str]:
    return [each.body.decode() for each in ok(answer).messages]


def test_messages_by_id_key_tag_queue_and_time(client: Client, topic: str) -> None:
    assert bodies(query(client, topic)) == ["3", "2", "1", "0"]
    (found,) = ok(query(client, topic, message_id=f"{topic}-2")).messages
    assert (found.body, dict(found.user_properties)) == (b"2", {"n": "2"})
    system = found.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == (f"{topic}-2", "even", ["k2", "all"])
    assert not system.HasField("receipt_handle")
    assert bodies(query(client, topic, message_key="k1")) == ["1"]
    assert bodies(query(client, topic, message_key="all")) == ["3", "2", "1", "0"]
    assert bodies(query(client, topic, subscription="even || x")) == ["2", "0"]
    assert bodies(query(client, topic, lite_topic="none")) == []
    of_queues = [bodies(query(client, topic, queue_id=each, broker_name=BROKER)) for each in (0, 1)]
    assert sorted(of_queues[0] + of_queues[1]) == ["0", "1", "2", "3"]
    times = [each.system_properties.store_timestamp for each in ok(query(client, topic)).messages]
    assert bodies(query(client, topic, begin_timestamp=times[2], end_timestamp=times[1])) == ["2", "1"]
    assert bodies(query(client, topic, begin_timestamp=at(4_000_000_000_000))) == []


def test_messages_page_by_page(client: Client, topic: str) -> None:
    assert bodies(query(client, topic, page_num=2, page_size=3)) == ["0"]
    assert bodies(query(client, topic, page_num=1, page_size=3)) == ["3", "2", "1"]
    assert bodies(query(client, topic, page_num=3, page_size=3)) == []
    assert bodies(query(client, topic, page_num=1, page_size=3, max_message_nums=2)) == ["3", "2"]
    assert bodies(query(client, topic, max_message_nums=3)) == ["3", "2", "1"]
    found: list[str] = []
    scroll = ""
    for _ in range(10):
        answer = query(client, topic, page_size=1, max_message_nums=3, scroll_id=scroll)
        found += bodies(answer)
        scroll = answer.scroll_id
        if not scroll:
            break
    assert found == ["3", "2", "1"]


def test_a_message_is_sent(client: Client, name: str) -> None:
    client.send(name, b"first")
    request = admin.AdminSendMessageRequest(
        topic=resource(name), tag="t", key="k", body=b"by hand", user_properties={"a": "b"}
    )
    sent = ok(client.admin("AdminSendMessage", request))
    assert sent.message_id
    (found,) = ok(query(client, name, message_id=sent.message_id)).messages
    assert (found.body, found.system_properties.tag, list(found.system_properties.keys)) == (
        b"by hand",
        "t",
        ["k"],
    )
    assert dict(found.user_properties) == {"a": "b"}
    assert found.system_properties.message_type == pb.NORMAL
    request.system_properties.message_id = "chosen"
    request.system_properties.message_group = "g"
    assert ok(client.admin("AdminSendMessage", request)).message_id == "chosen"
    (found,) = ok(query(client, name, message_id="chosen")).messages
    assert found.system_properties.message_type == pb.FIFO
    request.ext_info["x"] = "y"
    assert client.admin("AdminSendMessage", request).status.code == pb.BAD_REQUEST
    request.ext_info.clear()
    request.system_properties.tag = "other"
    assert "differ" in client.admin("AdminSendMessage", request).status.message
    request.ClearField("system_properties")
    request.ClearField("body")
    assert client.admin("AdminSendMessage", request).status.code == pb.MESSAGE_BODY_EMPTY
    request.topic.name = "TBW102"
    assert client.admin("AdminSendMessage", request).status.code == pb.ILLEGAL_TOPIC


def test_what_a_message_has_says_what_kind_it_is(client: Client, name: str) -> None:
    client.send(name, b"first")
    client.ack(name, name, *client.receive(name, name)[1])
    request = admin.AdminSendMessageRequest(topic=resource(name), body=b"later")
    request.system_properties.delivery_timestamp.FromMilliseconds(4_000_000_000_000)
    assert client.admin("AdminSendMessage", request).status.code == pb.ILLEGAL_DELIVERY_TIME
    due_ms = int(time.time() * 1000) + 1500
    request.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    sent = ok(client.admin("AdminSendMessage", request))
    (found,) = client.receive(name, name, wait_ms=20_000)[1]
    assert (found.body, found.system_properties.message_id) == (b"later", sent.message_id)
    assert found.system_properties.message_type == pb.DELAY
    request = admin.AdminSendMessageRequest(topic=resource(name), body=b"urgent")
    request.system_properties.priority = 1
    sent = ok(client.admin("AdminSendMessage", request))
    (found,) = ok(query(client, name, message_id=sent.message_id)).messages
    assert found.system_properties.message_type == pb.PRIORITY
    request.system_properties.message_type = pb.LITE
    assert client.admin("AdminSendMessage", request).status.code == pb.ILLEGAL_LITE_TOPIC


def test_a_stack_that_a_client_does_not_give_is_told(gateway: Gateway, client: Client, topic: str) -> None:
    with TelemetryClient(gateway.address, f"c-{topic}", consumer_settings(topic, topic)) as consumer:
        consumer.answers = lambda command: [answered(command, pb.UNSUPPORTED, text="")]
        asked = admin.PrintThreadStackTraceRequest(client_id=f"c-{topic}", group=resource(topic))
        refused = client.admin("PrintThreadStackTrace", asked).status
        assert (refused.code, refused.message) == (
            pb.INTERNAL_SERVER_ERROR,
            f"client 'c-{topic}' gave no stack trace",
        )
        consumer.stop()


def test_subscriptions_of_connected_and_other_groups(gateway: Gateway, client: Client, topic: str) -> None:
    group = f"g-{topic}"
    listed = admin.ListSubscriptionRequest(topic=resource(topic))
    (left,) = ok(client.admin("ListSubscription", listed)).subscription_info
    assert (left.group.name, left.topic.name, left.online) == (topic, topic, False)
    settings = consumer_settings(group, topic, expression="a || b")
    others = consumer_settings(group, topic, expression="c")
    with TelemetryClient(gateway.address, "first", settings) as first:
        found = ok(client.admin("ListSubscription", listed)).subscription_info
        (online,) = [each for each in found if each.group.name == group]
        assert (online.online, online.expression.expression, online.subscription_consistency) == (
            True, "a || b", True,
        )  # fmt: skip
        assert online.message_model == admin.CLUSTERING
        assert online.last_update_timestamp.seconds
        with TelemetryClient(gateway.address, "second", others) as second:
            of_group = admin.ListSubscriptionRequest(group=resource(group))
            (online,) = ok(client.admin("ListSubscription", of_group)).subscription_info
            assert not online.subscription_consistency
            described = admin.DescribeSubscriptionRequest(group=resource(group), topic=resource(topic))
            infos = ok(client.admin("DescribeSubscription", described)).client_subscription_info
            assert {
                (each.client_info.client_id, each.subscription_info.expression.expression) for each in infos
            } == {("first", "a || b"), ("second", "c")}
            assert infos[0].client_info.version == "5.0.7"
            assert infos[0].client_info.hostname == "host-1"
            assert infos[0].client_info.language == "JAVA"
            assert infos[0].client_info.egress_ip.startswith("127.0.0.1:")
            everywhere = ok(client.admin("ListSubscription", admin.ListSubscriptionRequest()))
            assert group in {each.group.name for each in everywhere.subscription_info}
            connections = admin.ListConsumerConnectionRequest(group=resource(group), topic=resource(topic))
            assert {each.client_id for each in ok(client.admin("ListConsumerConnection", connections)).client_info} == {
                "first", "second",
            }  # fmt: skip
            deletion = admin.DeleteSubscriptionRequest(topic=resource(topic), group=resource(group))
            refused = client.admin("DeleteSubscription", deletion)
            assert refused.status.code == pb.FORBIDDEN
            assert "connected consumers of topic" in refused.status.message
            second.stop()
            assert (
                ": 1, such as 'first'; stop them first"
                in client.admin("DeleteSubscription", deletion).status.message
            )
        first.stop()


def test_a_deleted_subscription_begins_anew(client: Client, topic: str) -> None:
    ok(reset(client, topic, topic, 4_000_000_000_000))
    assert client.receive(topic, topic, wait_ms=200)[1] == []
    deletion = admin.DeleteSubscriptionRequest(topic=resource(topic), group=resource(topic))
    ok(client.admin("DeleteSubscription", deletion))
    ok(client.admin("DeleteSubscription", deletion))
    listed = admin.ListSubscriptionRequest(group=resource(topic))
    assert list(ok(client.admin("ListSubscription", listed)).subscription_info) == []
    found: list[bytes] = []
    while messages := client.receive(topic, topic, invisible_ms=60_000)[1]:
        found += [each.body for each in messages]
    assert sorted(found) == [b"0", b"1", b"2", b"3"]
    deletion.expression.type, deletion.expression.expression = pb.TAG, "||"
    assert client.admin("DeleteSubscription", deletion).status.code == pb.ILLEGAL_FILTER_EXPRESSION


def answer_within(client: Client, method: str, request: Any, seconds: float) -> Any:
    """None where it came too late: the broker answers half a second before the call's end."""
    try:
        return client.admin(method, request, timeout=seconds)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return None


def test_a_client_is_asked_for_its_stack_and_to_consume_a_message(
    gateway: Gateway, client: Client, topic: str
) -> None:
    group = f"g-{topic}"
    settings = consumer_settings(group, topic)
    with (
        TelemetryClient(gateway.address, f"c-{topic}", settings) as consumer,
        TelemetryClient(gateway.address, f"silent-{topic}", settings) as silent,
    ):
        consumer.answers = lambda command: [answered(command, text="at Main.main")]
        asked = admin.PrintThreadStackTraceRequest(client_id=f"c-{topic}", group=resource(group))
        assert ok(client.admin("PrintThreadStackTrace", asked)).thread_stack_trace == "at Main.main"
        consumer.answers = not_consumed
        verify = admin.VerifyMessageRequest(
            client_id=f"c-{topic}", group=resource(group), topic=resource(topic), message_id=f"{topic}-1"
        )
        answer = client.admin("VerifyMessage", verify)
        assert (answer.status.code, answer.status.message) == (pb.FAILED_TO_CONSUME_MESSAGE, "saw 1")
        verify.message_id = "absent"
        assert client.admin("VerifyMessage", verify).status.code == pb.MESSAGE_NOT_FOUND
        verify.message_id = ""
        assert client.admin("VerifyMessage", verify).status.code == pb.ILLEGAL_MESSAGE_ID
        asked.client_id = f"silent-{topic}"
        refused = wait_until(lambda: answer_within(client, "PrintThreadStackTrace", asked, 0.5))
        assert refused.status.code == pb.PROXY_TIMEOUT
        asked.client_id = "absent"
        assert client.admin("PrintThreadStackTrace", asked).status.code == pb.NOT_FOUND
        asked.client_id = ""
        assert client.admin("PrintThreadStackTrace", asked).status.code == pb.BAD_REQUEST
        asked.client_id, asked.group.name = f"c-{topic}", topic
        assert client.admin("PrintThreadStackTrace", asked).status.code == pb.NOT_FOUND, (
            "it is of another group"
        )
        consumer.stop()
        silent.stop()


def test_what_a_consumer_has(gateway: Gateway, topic: str) -> None:
    group = f"g-{topic}"
    settings = consumer_settings(group, topic, expression="even")
    with (
        TelemetryClient(gateway.address, f"c-{topic}", settings) as consumer,
        contextlib.closing(Client(gateway.address, f"c-{topic}")) as client,
    ):
        (held,) = client.receive(topic, group, batch=1, invisible_ms=60_000)[1]
        asked = admin.GetConsumerRunningInfoRequest(group=resource(group), client_id=f"c-{topic}")
        info = ok(client.admin("GetConsumerRunningInfo", asked)).consumer_running_info
        assert info.properties["PROP_CLIENT_VERSION"] == "5.0.7"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.subscriptions[topic].expression == "even"
        (item,) = info.message_queue_table
        assert item.message_queue.id == held.system_properties.queue_id
        at_offset = held.system_properties.queue_offset
        has = item.process_queue_info
        assert (has.cached_msg_min_offset, has.cached_msg_max_offset, has.cached_msg_count) == (
            at_offset, at_offset, 1,
        )  # fmt: skip
        assert abs(has.last_pull_timestamp / 1000 - time.time()) < 600
        assert list(info.consume_status_table) == [topic]
        asked.client_id = "absent"
        assert client.admin("GetConsumerRunningInfo", asked).status.code == pb.NOT_FOUND
        consumer.stop()


def test_routes(gateway: Gateway, client: Client, topic: str) -> None:
    request = admin.GetTopicRouteRequest(topic=resource(topic), client_address="10.0.0.1:5")
    route = json.loads(ok(client.admin("GetTopicRoute", request)).topic_route_data)
    assert route["queueDatas"][0] | {"topicSysFlag": 0} == {
        "brokerName": BROKER, "perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicSysFlag": 0,
    }  # fmt: skip
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{gateway.grpc_port}"}
    request.protocol_type = "REMOTING"
    route = json.loads(ok(client.admin("GetTopicRoute", request)).topic_route_data)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{gateway.remoting_port}"}
    request.topic.name = "nobody-made-it"
    assert client.admin("GetTopicRoute", request).status.code == pb.TOPIC_NOT_FOUND
    request.topic.name = topic
    for change, text in (
        ({"protocol_type": "smtp"}, "protocol_type 'smtp' is unknown"),
        ({"network_type": 7}, "network_type 7 is unknown"),
        ({"client_address": "nowhere"}, "client_address: address 'nowhere'"),
    ):
        wrong = admin.GetTopicRouteRequest(topic=resource(topic), **change)
        answer = client.admin("GetTopicRoute", wrong)
        assert answer.status.code == pb.BAD_REQUEST
        assert text in answer.status.message


def test_the_broker_tells_of_itself(gateway: Gateway, client: Client, topic: str) -> None:
    before = ok(client.admin("GetProxyRuntimeStats", admin.GetProxyRuntimeStatsRequest()))
    settings = consumer_settings(f"g-{topic}", topic)
    with TelemetryClient(gateway.address, f"c-{topic}", settings) as consumer:
        found = ok(client.admin("GetProxyRuntimeStats", admin.GetProxyRuntimeStatsRequest()))
        assert found.proxy_name == BROKER
        assert found.version
        assert found.in_tps >= 0
        assert (found.consumers, found.connections) == (before.consumers + 1, before.connections + 1)
        assert found.producers == before.producers
        consumer.stop()


def test_the_log_level_is_changed(gateway: Gateway, client: Client) -> None:
    levels = admin.ChangeLogLevelRequest.Level
    for level, option in ((levels.TRACE, "debug"), (levels.ERROR, "error"), (levels.INFO, "info")):
        remark = client.admin("ChangeLogLevel", admin.ChangeLogLevelRequest(level=level)).remark
        assert f"{BROKER}: lakeLogLevel is {option}, it was " in remark
        assert "until the broker stops" in remark
    with pytest.raises(grpc.RpcError) as refused:
        client.admin("ChangeLogLevel", admin.ChangeLogLevelRequest(level=9))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "log level 9 is unknown; use TRACE, DEBUG" in (refused.value.details() or "")


def requests(topic: str, group: str) -> dict[str, Any]:
    """A request of each call that names a topic, a group or a deployment, and would be served."""
    where = {"topic": resource(topic), "group": resource(group)}
    found = {
        "DescribeTopicStatus": admin.DescribeTopicStatusRequest(topic=resource(topic)),
        "ListSubscription": admin.ListSubscriptionRequest(**where),
        "DescribeSubscription": admin.DescribeSubscriptionRequest(**where),
        "DeleteSubscription": admin.DeleteSubscriptionRequest(**where),
        "DescribeGroupAccumulation": admin.DescribeGroupAccumulationRequest(
            group=resource(group), topics=[resource(topic)]
        ),
        "ListConsumerConnection": admin.ListConsumerConnectionRequest(**where),
        "ResetGroupOffset": admin.ResetGroupOffsetRequest(**where, reset_timestamp=at(1)),
        "QueryMessage": admin.ListMessageRequest(topic=resource(topic)),
        "PrintThreadStackTrace": admin.PrintThreadStackTraceRequest(client_id="c", group=resource(group)),
        "VerifyMessage": admin.VerifyMessageRequest(client_id="c", message_id="m", **where),
        "AdminSendMessage": admin.AdminSendMessageRequest(topic=resource(topic), body=b"x"),
        "GetConsumerRunningInfo": admin.GetConsumerRunningInfoRequest(group=resource(group), client_id="c"),
        "GetTopicRoute": admin.GetTopicRouteRequest(topic=resource(topic)),
        "QueryTimeSpan": admin.QueryTimeSpanRequest(group=resource(group), topics=[resource(topic)]),
    }
    assert found.keys() | {"ChangeLogLevel", "GetProxyRuntimeStats"} == {each.name for each in ADMIN.methods}
    return found


def test_names_that_are_wrong_are_refused_by_each_call(client: Client, topic: str) -> None:
    wrong_topics = {
        "absent-topic": pb.TOPIC_NOT_FOUND,
        "TBW102": pb.ILLEGAL_TOPIC,
        "a b": pb.ILLEGAL_TOPIC,
        "": pb.ILLEGAL_TOPIC,
    }
    wrong_groups = {
        "absent-group": pb.CONSUMER_GROUP_NOT_FOUND,
        "a b": pb.ILLEGAL_CONSUMER_GROUP,
        "": pb.ILLEGAL_CONSUMER_GROUP,
        "g" * 300: pb.ILLEGAL_CONSUMER_GROUP,
    }
    for method, request in requests(topic, topic).items():
        fields = request.DESCRIPTOR.fields_by_name
        if "topic" in fields or "topics" in fields:
            for name, code in wrong_topics.items():
                if method in ("PrintThreadStackTrace", "VerifyMessage"):
                    continue  # the client is looked for first
                if method == "AdminSendMessage" and name == "absent-topic":
                    continue  # it may be made by the first message, as in SendMessage
                request = requests(name, topic)[method]
                answer = client.admin(method, request)
                assert answer.status.code == code, f"{method} of topic {name!r}: {answer.status}"
                assert answer.status.message
        if "group" in fields:
            for name, code in wrong_groups.items():
                answer = client.admin(method, requests(topic, name)[method])
                assert answer.status.code == code, f"{method} of group {name!r}: {answer.status}"
                assert answer.status.message
        request = requests(topic, topic)[method]
        request.deployment_name = "elsewhere"
        answer = client.admin(method, request)
        assert answer.status.code == pb.BAD_REQUEST, method
        assert "deployment_name 'elsewhere' is not this broker's cluster" in answer.status.message
        request = requests(topic, topic)[method]
        request.deployment_name = "DefaultCluster"
        assert client.admin(method, request).status.code not in (pb.BAD_REQUEST, pb.NOT_IMPLEMENTED)


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        ({"max_message_nums": -1}, pb.BAD_REQUEST, "max_message_nums -1 is negative"),
        ({"page_size": 0}, pb.BAD_REQUEST, "page_size 0 is outside of 1 to 1000"),
        ({"page_size": 1001}, pb.BAD_REQUEST, "page_size 1001 is outside"),
        ({"page_num": 0}, pb.BAD_REQUEST, "page_num 0 is no page"),
        ({"page_num": -3}, pb.BAD_REQUEST, "page_num -3 is no page"),
        ({"page_num": 11, "page_size": 100}, pb.BAD_REQUEST, "behind the first 1000"),
        ({"page_num": 1, "scroll_id": "x"}, pb.BAD_REQUEST, "both given"),
        ({"scroll_id": "x"}, pb.BAD_REQUEST, "scroll_id 'x' is none of an answer"),
        ({"scroll_id": "WzEsMCwiIiwwLGZhbHNlLG51bGxd"}, pb.BAD_REQUEST, "begin again"),
        ({"scroll_id": "W1tbW1tb" * 400}, pb.BAD_REQUEST, "is none of an answer"),
        ({"begin_timestamp": at(2), "end_timestamp": at(1)}, pb.BAD_REQUEST, "is behind end_timestamp"),
        ({"begin_timestamp": Timestamp(seconds=-1)}, pb.BAD_REQUEST, "begin_timestamp is before 1970"),
        ({"end_timestamp": Timestamp(nanos=-1)}, pb.BAD_REQUEST, "-1 ns behind the second"),
        ({"broker_name": "elsewhere"}, pb.BAD_REQUEST, "is another broker, this one is broker-a"),
        ({"queue_id": 2}, pb.BAD_REQUEST, "has no queue 2"),
        ({"queue_id": -1}, pb.BAD_REQUEST, "has no queue -1"),
        ({"message_id": ""}, pb.ILLEGAL_MESSAGE_ID, "message_id is empty"),
        ({"message_id": "m" * 256}, pb.ILLEGAL_MESSAGE_ID, "256 characters"),
        ({"message_id": "m\n"}, pb.ILLEGAL_MESSAGE_ID, "control characters"),
        ({"message_id": "absent"}, pb.MESSAGE_NOT_FOUND, "no message with id 'absent'"),
        ({"message_id": "00" * 16}, pb.MESSAGE_NOT_FOUND, "no message with id"),
        ({"message_key": ""}, pb.ILLEGAL_MESSAGE_KEY, "message_key is empty"),
        ({"message_key": "a b"}, pb.ILLEGAL_MESSAGE_KEY, "is no key of a message"),
        ({"message_key": "k" * 40_000}, pb.ILLEGAL_MESSAGE_KEY, "is no key of a message"),
        ({"message_key": "absent"}, pb.MESSAGE_NOT_FOUND, "no message with key 'absent'"),
        ({"subscription": "||"}, pb.ILLEGAL_FILTER_EXPRESSION, "names no tag"),
        ({"lite_topic": ""}, pb.ILLEGAL_LITE_TOPIC, "lite_topic is empty"),
    ],
)
def test_queries_that_are_wrong(
    client: Client, topic: str, asked: dict[str, Any], code: int, text: str
) -> None:
    answer = query(client, topic, **asked)
    assert answer.status.code == code, answer.status
    assert text in answer.status.message


def test_resets_that_are_wrong(client: Client, topic: str) -> None:
    request = admin.ResetGroupOffsetRequest(topic=resource(topic), group=resource(topic))
    assert "reset_timestamp is missing" in client.admin("ResetGroupOffset", request).status.message
    request.reset_timestamp.seconds = -5
    assert "before 1970" in client.admin("ResetGroupOffset", request).status.message
    request.reset_timestamp.seconds = 1 << 61
    ok(client.admin("ResetGroupOffset", request))
    request = admin.DescribeGroupAccumulationRequest(group=resource(topic), topics=[resource(topic)] * 1001)
    answer = client.admin("DescribeGroupAccumulation", request)
    assert answer.status.code == pb.BAD_REQUEST
    assert "1001 topics in a request" in answer.status.message


def test_everything_is_refused_without_the_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("closed")
    token = folder / "token"
    token.write_text("0123456789abcdef0123")
    token.chmod(0o600)
    with Gateway(folder / "gateway", **NEW_OPTIONS, lakeTokenFile=str(token)) as gateway:
        client = Client(gateway.address)
        client.send("t", b"x")
        for method, request in requests("t", "t").items():
            with pytest.raises(grpc.RpcError) as refused:
                client.admin(method, request)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED, method
        client.metadata += (("authorization", "Bearer 0123456789abcdef0123"),)
        ok(client.admin("DescribeTopicStatus", requests("t", "t")["DescribeTopicStatus"]))
        client.close()
