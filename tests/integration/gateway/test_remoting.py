"""The remoting endpoint of a gateway process: ports, access, what survives SIGKILL, and what is refused."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.cluster.broker_config import PUBLIC
from broker_gateway.config.broker_options import default_ip
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway, ProcessError
from store.log.record import decode_record
from tests.support.brokers.gateways import drain
from tests.support.rocketmq.requests import ask, pull

SMALL = {**OPTIONS, "defaultTopicQueueNums": "1", "lakeJournalSnapshotBytes": "65536"}
TOPIC = {
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
}


def bounds(gateway: Gateway, topic: str) -> tuple[int, int]:
    """First offset and end of queue 0."""
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    found = [
        int(ask(gateway.remoting_address, code, topic=topic, queueId=0).ext_fields["offset"])
        for code in codes
    ]
    return found[0], found[1]


def test_both_ports_serve_and_records_carry_the_one(gateway: Gateway, client: Client, name: str) -> None:
    client.send(name, b"x")
    for port in (gateway.remoting_port, gateway.remoting_port - 2):
        assert ask(f"127.0.0.1:{port}", RequestCode.GET_TOPIC_STATS_INFO, topic=name).code == 0
    info = java_json.loads(ask(gateway.remoting_address, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert int(info["msgPutTotalTodayNow"]) >= 1
    assert [float(each) >= 0 for each in info["getTotalTps"].split(" ")] == [True] * 3
    assert info["putMessageDistributeTime"] == "null" or info["putMessageDistributeTime"].startswith(
        "[<=0ms]:"
    )
    found = [
        decode_record(answer.body)
        for queue in range(8)
        if (
            answer := ask(
                gateway.remoting_address,
                RequestCode.PULL_MESSAGE,
                topic=name,
                queueId=queue,
                queueOffset=0,
                maxMsgNums=1,
            )
        ).body
    ]
    assert [(bytes(each.body), each.store_host.port) for each in found] == [(b"x", gateway.remoting_port)]
    config = ask(gateway.remoting_address, RequestCode.GET_BROKER_CONFIG).body.decode()
    assert f"\nlistenPort={gateway.remoting_port}\n" in config


@pytest.mark.parametrize("below", [0, 2])
def test_a_port_that_is_taken_is_named(tmp_path: Path, below: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1] + below
        gateway = Gateway(tmp_path, listenPort=str(port))
        with pytest.raises(ProcessError, match=f"listenPort {port} of 127.0.0.1.*choose another listenPort"):
            gateway.start()
    assert not (tmp_path / "store").exists(), "nothing was touched before"


def test_a_port_without_room_for_the_fast_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="listenPort=2: it leaves no room for the fast port"):
        Gateway(tmp_path, listenPort="2").start()


def test_administration_is_taken_from_this_machine_only(tmp_path: Path) -> None:
    outside = default_ip()
    if outside.startswith("127."):
        pytest.skip("this machine has no address but the loopback's")
    with Gateway(tmp_path, bindAddress="0.0.0.0") as gateway:
        for code in (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.QUERY_MESSAGE,
            RequestCode.PULL_MESSAGE,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.QUERY_CONSUME_QUEUE,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.GET_BROKER_HA_STATUS,
        ):
            answer = ask(f"{outside}:{gateway.remoting_port}", code, topic="t", **TOPIC)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark is not None
            assert "lakeRemoteAdmin=true" in answer.remark
            assert code.name in answer.remark
        assert (
            ask(f"{outside}:{gateway.remoting_port}", RequestCode.GET_MAX_OFFSET, topic="t", queueId=0).code
            == 0
        )
        told = (
            ask(f"{outside}:{gateway.remoting_port}", RequestCode.GET_BROKER_CONFIG)
            .body.decode()
            .splitlines()
        )
        assert [line.partition("=")[0] for line in told] == list(PUBLIC)
        assert {f"listenPort={gateway.remoting_port}", f"grpcServerPort={gateway.grpc_port}"} <= set(told)
        assert (
            ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", **TOPIC).code == 0
        )
    with Gateway(tmp_path, bindAddress="0.0.0.0", lakeRemoteAdmin="true") as gateway:
        assert (
            ask(f"{outside}:{gateway.remoting_port}", RequestCode.GET_TOPIC_STATS_INFO, topic="t").code == 0
        )
        told = (
            ask(f"{outside}:{gateway.remoting_port}", RequestCode.GET_BROKER_CONFIG)
            .body.decode()
            .splitlines()
        )
        assert f"storePathRootDir={tmp_path / 'store'}" in told


def test_a_reset_drops_what_is_in_flight_and_survives_sigkill(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        client.send("t", *[str(n).encode() for n in range(20)])
        flying = client.receive("t", "g", invisible_ms=60_000)[1]
        assert len(flying) == 20
        assert client.receive("t", "g")[1] == []
        for fields in ({"offset": 5, "queueId": 0}, {"queueId": -1}):
            answer = ask(
                gateway.remoting_address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                topic="t", group="g", timestamp=0 if fields["queueId"] < 0 else -1, isForce="true", **fields,
            )  # fmt: skip
            assert answer.code == 0, answer.remark
        answer = ask(
            gateway.remoting_address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="t", group="g", timestamp=0, isForce="true", offset=15, queueId=0,
        )  # fmt: skip
        assert java_json.loads(re.sub(rb"\{\{.*?\}:", b'{"queue":', answer.body)) == {
            "offsetTable": {"queue": 15}
        }
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        assert client.ack("t", "g", flying[0]).status.code == pb.INVALID_RECEIPT_HANDLE
        again = client.receive("t", "g", invisible_ms=60_000)[1]
        assert [m.body for m in again] == [str(n).encode() for n in range(15, 20)]
        assert client.receive("t", "g")[1] == []
        told = {"topic": "t", "consumerGroup": "g", "queueId": 0}
        assert (
            ask(gateway.remoting_address, RequestCode.QUERY_CONSUMER_OFFSET, **told).ext_fields["offset"]
            == "15"
        )
        client.channel.close()


def test_a_committed_offset_moves_nothing_else(tmp_path: Path) -> None:
    """The original's pop goes on behind what it handed out, or where a client committed, whichever is further."""
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        client.send("t", *[str(n).encode() for n in range(20)])
        flying = client.receive("t", "g", batch=5, invisible_ms=60_000)[1]
        told = {"topic": "t", "consumerGroup": "g", "queueId": 0}
        for offset in (2, 17, 15):
            assert (
                ask(
                    gateway.remoting_address, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=offset, **told
                ).code
                == 0
            )
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        assert (
            ask(gateway.remoting_address, RequestCode.QUERY_CONSUMER_OFFSET, **told).ext_fields["offset"]
            == "15"
        )
        assert client.ack("t", "g", *flying).status.code == pb.OK
        again = client.receive("t", "g", invisible_ms=60_000)[1]
        assert [m.body for m in again] == [str(n).encode() for n in range(15, 20)]
        assert "UPDATE_CONSUMER_OFFSET" not in gateway.log.read_text()
        client.channel.close()


def test_a_deleted_topic_stays_deleted_and_goes_on_higher_when_made_again(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        client.send("t", *[b"old"] * 10)
        client.receive("t", "g", batch=4)
        assert ask(gateway.remoting_address, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t").code == 0
        assert (
            ask(gateway.remoting_address, RequestCode.GET_TOPIC_STATS_INFO, topic="t").code
            == ResponseCode.TOPIC_NOT_EXIST
        )
        gateway.kill()
        gateway.start()
        assert (
            ask(gateway.remoting_address, RequestCode.GET_TOPIC_CONFIG, topic="t").code
            == ResponseCode.TOPIC_NOT_EXIST
        )
        told = {"topic": "t", "consumerGroup": "g", "queueId": 0}
        assert (
            ask(gateway.remoting_address, RequestCode.QUERY_CONSUMER_OFFSET, **told).code
            == ResponseCode.QUERY_NOT_FOUND
        )
        assert (
            ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", **TOPIC).code == 0
        )
        assert bounds(gateway, "t") == (10, 10)
        client = Client(gateway.address)
        client.send("t", b"new")
        client.send("filler", *[bytes(20_000)] * 10)  # a snapshot is due
        for _ in range(2):
            assert bounds(gateway, "t") == (10, 11)
            assert pull(gateway.remoting_address, "t", 3).code == ResponseCode.PULL_OFFSET_MOVED
            assert decode_record(pull(gateway.remoting_address, "t", 10).body).queue_offset == 10
            gateway.kill()
            gateway.start()
        client = Client(gateway.address)
        assert [m.body for m in drain(client, "t", "g")] == [b"new"]
        client.channel.close()


def test_a_deleted_group_begins_anew_if_its_offsets_went_too(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        client.send("t", b"0", b"1")
        for group in ("kept", "cleaned"):
            found = drain(client, "t", group)
            assert len(found) == 2
            assert client.ack("t", group, *found).status.code == pb.OK
        for group, clean in (("kept", "false"), ("cleaned", "true")):
            answer = ask(
                gateway.remoting_address,
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                groupName=group,
                cleanOffset=clean,
            )
            assert answer.code == 0
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        for group, offset in (("kept", "2"), ("cleaned", None)):
            answer = ask(gateway.remoting_address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            where = {"topic": "t", "consumerGroup": group, "queueId": 0}
            told = ask(
                gateway.remoting_address,
                RequestCode.QUERY_CONSUMER_OFFSET,
                **where,
                setZeroIfNotFound="false",
            )
            assert told.ext_fields.get("offset") == offset
            told = ask(gateway.remoting_address, RequestCode.QUERY_CONSUMER_OFFSET, **where)
            assert told.ext_fields["offset"] == (offset or "0"), "where it begins"
        assert len(drain(client, "t", "cleaned")) == 2
        assert drain(client, "t", "kept") == []
        client.channel.close()


def test_a_broker_without_groups_shows_the_systems(tmp_path: Path) -> None:
    """An empty table would be an error to the dashboard. They are nobody's: no topic, no deletion, no journal."""
    with Gateway(tmp_path, **SMALL) as gateway:
        for _ in range(2):
            answer = ask(gateway.remoting_address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            groups = java_json.loads(answer.body)["subscriptionGroupTable"]
            assert set(groups) == set(SYSTEM_GROUPS)
            assert answer.ext_fields["totalGroupNum"] == "8"
            one = ask(
                gateway.remoting_address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="TOOLS_CONSUMER"
            )
            assert java_json.loads(one.body) == groups["TOOLS_CONSUMER"]
            assert groups["TOOLS_CONSUMER"]["retryMaxTimes"] == 16
            stats = java_json.loads(
                ask(gateway.remoting_address, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false").body
            )
            assert {name for each in stats["consumeStatsList"] for name in each} == set(SYSTEM_GROUPS)
            topics = java_json.loads(ask(gateway.remoting_address, RequestCode.GET_ALL_TOPIC_CONFIG).body)[
                "topicConfigTable"
            ]
            assert not [each for each in topics if each.startswith("%RETRY%")]
            answer = ask(
                gateway.remoting_address,
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                groupName="TOOLS_CONSUMER",
                cleanOffset="true",
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            client = Client(gateway.address)
            client.send("t", b"x")
            assert client.receive("t", "TOOLS_CONSUMER")[0] == pb.ILLEGAL_CONSUMER_GROUP
            client.channel.close()
            gateway.kill()
            gateway.start()


def test_what_the_original_keeps_is_kept(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        given = {**TOPIC, "topic": "t", "order": "true", "attributes": "+message.type=UNSPECIFIED"}
        for perm in (0, 1, 7):
            assert (
                ask(
                    gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **{**given, "perm": perm}
                ).code
                == 0
            )
        for name, retries in (("never", -1), ("often", 5000)):
            body = java_json.dumps({"groupName": name, "retryMaxTimes": retries})
            assert (
                ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
            )
        for _ in range(2):
            found = java_json.loads(
                ask(gateway.remoting_address, RequestCode.GET_TOPIC_CONFIG, topic="t").body
            )
            assert (found["order"], found["perm"]) == (True, 7)
            assert found["attributes"] == {"message.type": "UNSPECIFIED"}
            for name, retries in (("never", -1), ("often", 5000)):
                answer = ask(gateway.remoting_address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=name)
                assert java_json.loads(answer.body)["retryMaxTimes"] == retries
            client = Client(gateway.address)
            assert client.send("t", b"x").status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            client.channel.close()
            gateway.kill()
            gateway.start()


EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1, "max": 9, "multiplier": 3}}
EVERY_FIELD: dict[str, Any] = {
    "brokerId": 7, "consumeBroadcastEnable": False, "consumeEnable": True, "consumeFromMinEnable": False,
    "consumeMessageOrderly": True, "consumeTimeoutMinute": 3, "groupName": "every", "groupRetryPolicy": EXPONENTIAL,
    "groupSysFlag": 2, "notifyConsumerIdsChangedEnable": False, "ofANewerBroker": {"on": True}, "retryMaxTimes": 5,
    "retryQueueNums": 4, "subscriptionDataSet": [{"topic": "t"}], "whichBrokerWhenConsumeSlowly": 2,
}  # fmt: skip


def test_every_field_is_kept_and_shown_and_survives_sigkill(tmp_path: Path) -> None:
    """Also those of a newer broker. What is refused changes nothing."""
    topic: dict[str, Any] = {"perm": 6, "readQueueNums": 1, "topicName": "t", "writeQueueNums": 2, "order": False,
             "topicFilterType": "MULTI_TAG", "topicSysFlag": 3, "ofANewerBroker": [1]}  # fmt: skip
    kinds = {"message.type": "DELAY", "cleanup.policy": "COMPACTION", "reserve.time": "5"}
    with Gateway(tmp_path, **SMALL) as gateway:
        for code, name, each, attributes in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", topic, kinds),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", EVERY_FIELD, {"priority.factor": "9"}),
        ):  # fmt: skip
            changes = {f"+{attribute}": value for attribute, value in attributes.items()}
            body = java_json.dumps({name: [{**each, "attributes": changes}]})
            assert ask(gateway.remoting_address, code, body).code == 0
        for refused, why in (
            ({**EVERY_FIELD, "brokerId": "x"}, "brokerId of group every is 'x'"),
            ({**EVERY_FIELD, "attributes": {"+x": "1"}}, "attribute 'x' is unsupported"),
            ({**EVERY_FIELD, "groupRetryPolicy": {"customizedRetryPolicy": {"next": [-1]}}}, "next[0] of customizedRetryPolicy is -1"),
            ({**EVERY_FIELD, "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": "NaN"}}}, "multiplier of exponentialRetryPolicy is 'NaN'"),
            ({**EVERY_FIELD, "ofANewerBroker": "x" * 20_000}, "16384 are allowed"),
        ):  # fmt: skip
            answer = ask(
                gateway.remoting_address,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                java_json.dumps(refused),
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert why in (answer.remark or "")
        nan = java_json.dumps(EVERY_FIELD).replace(b'"max":9', b'"max":NaN')
        answer = ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, nan)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "NaN is no JSON number" in (answer.remark or "")
        for killed in (False, True):
            if killed:
                gateway.kill()
                gateway.start()
            answer = ask(gateway.remoting_address, RequestCode.GET_TOPIC_CONFIG, topic="t")
            assert java_json.loads(answer.body) == {**topic, "attributes": kinds}
            table = java_json.loads(ask(gateway.remoting_address, RequestCode.GET_ALL_TOPIC_CONFIG).body)[
                "topicConfigTable"
            ]
            assert table["t"] == {**topic, "attributes": kinds}
            answer = ask(gateway.remoting_address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="every")
            group = {**EVERY_FIELD, "attributes": {"priority.factor": "9"}}
            assert java_json.loads(answer.body) == group
            answer = ask(gateway.remoting_address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert java_json.loads(answer.body)["subscriptionGroupTable"]["every"] == group


def test_mixed_topics_are_made_where_the_option_allows_it(tmp_path: Path) -> None:
    mixed = {**TOPIC, "topic": "t", "attributes": "+message.type=MIXED"}
    with Gateway(tmp_path, **SMALL, enableMixedMessageType="true") as gateway:
        assert ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **mixed).code == 0
    with Gateway(tmp_path, **SMALL) as gateway:
        assert ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **mixed).code == 29
        assert (
            ask(
                gateway.remoting_address, RequestCode.UPDATE_BROKER_CONFIG, b"enableMixedMessageType=true"
            ).code
            == 0
        )
        assert ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **mixed).code == 0


def test_a_pull_filters_by_tag(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        for tag in ("a", "b", "a", "c"):
            client.send("t", tag.encode(), tag=tag)
        client.channel.close()

        def pulled(wanted: str, most: int = 32, offset: int = 0) -> tuple[int, str, list[bytes]]:
            answer = ask(
                gateway.remoting_address, RequestCode.PULL_MESSAGE, topic="t", queueId=0, queueOffset=offset, maxMsgNums=most,
                sysFlag=4, subscription=wanted, expressionType="TAG",
            )  # fmt: skip
            found, position = [], 0
            while position < len(answer.body):
                record = decode_record(answer.body, position)
                found.append(bytes(record.body))
                position += record.size
            return answer.code, answer.ext_fields["nextBeginOffset"], found

        assert pulled("*") == pulled("") == (0, "4", [b"a", b"b", b"a", b"c"])
        assert pulled("a") == (0, "4", [b"a", b"a"])
        assert pulled("a || c", most=2) == (0, "3", [b"a", b"a"])
        assert pulled("a||c", most=2, offset=3) == (0, "4", [b"c"])
        assert pulled("nobody") == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4", [])


def test_a_pull_that_would_wait_is_refused_before_it_comes_again_and_again(tmp_path: Path) -> None:
    with Gateway(tmp_path, **SMALL) as gateway:
        client = Client(gateway.address)
        client.send("t", b"one")
        client.channel.close()
        for offset in (0, 1):  # with something there, and with nothing
            answer = ask(
                gateway.remoting_address, RequestCode.PULL_MESSAGE, topic="t", queueId=0, queueOffset=offset, maxMsgNums=32,
                sysFlag=2 | 4, subscription="*", expressionType="TAG", suspendTimeoutMillis=15_000,
            )  # fmt: skip
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "suspend flag" in (answer.remark or "")


def test_a_changed_option_counts_at_once_and_stays_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nbrokerPermission = 6\nfileReservedTime=12\n")
    with Gateway(tmp_path / "g", config_file=file, **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert client.send("first", b"x").status.code == pb.OK
        answer = ask(
            gateway.remoting_address, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4\ndeleteWhen=05\n"
        )
        assert answer.code == 0, answer.remark
        assert client.send("second", b"x").status.code == pb.FORBIDDEN
        kept = "# ours\nbrokerPermission=4\nfileReservedTime=12\ndeleteWhen=05\n"
        assert file.read_text() == kept
        answer = ask(
            gateway.remoting_address, RequestCode.UPDATE_BROKER_CONFIG, b"deleteWhen=06\nretryMaxTimes=many\n"
        )
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert file.read_text() == kept, "all or none"
        client.channel.close()
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        assert client.send("second", b"x").status.code == pb.FORBIDDEN
        client.channel.close()


def test_messages_by_key_are_the_newest_in_the_time_range(
    gateway: Gateway, client: Client, name: str
) -> None:
    for number in range(6):
        client.send(name, str(number).encode(), keys=["all", f"one-{number}"])
    client.send(f"{name}-other", b"x", keys=["all"])

    def query(key: str, most: int = 32, begin: int = 0, end: int = 1 << 62, topic: str = name) -> list[Any]:
        answer = ask(
            gateway.remoting_address, RequestCode.QUERY_MESSAGE,
            topic=topic, key=key, maxNum=most, beginTimestamp=begin, endTimestamp=end,
        )  # fmt: skip
        assert answer.code == (0 if answer.body else ResponseCode.QUERY_NOT_FOUND)
        found, position = [], 0
        while position < len(answer.body):
            found.append(decode_record(answer.body, position))
            position += found[-1].size
        return found

    def bodies(found: list[Any]) -> list[bytes]:
        return [bytes(each.body) for each in found]

    everything = query("all")
    assert bodies(everything) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert bodies(query("all", 2)) == [b"4", b"5"]
    assert bodies(query("one-3")) == [b"3"]
    assert query("one") == query("all", 0) == query("nothing") == []
    times = [each.store_timestamp for each in everything]
    expected = [bytes(each.body) for each in everything if each.store_timestamp >= times[3]]
    assert bodies(query("all", begin=times[3])) == expected
    assert query("all", end=times[0] - 1) == query("all", begin=times[-1] + 1) == []
    unique = everything[2].properties_map()["UNIQ_KEY"]
    assert bodies(query(unique)) == [b"2"]
    offset = everything[2].physical_offset
    assert (
        bytes(
            decode_record(
                ask(gateway.remoting_address, RequestCode.VIEW_MESSAGE_BY_ID, offset=offset).body
            ).body
        )
        == b"2"
    )


def test_messages_are_not_found_by_key_without_their_index(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("messageIndexEnable=false\n")
    with Gateway(tmp_path / "g", config_file=file, **SMALL) as gateway:
        client = Client(gateway.address)
        sent = client.send("t", b"x", keys=["k"]).entries[0]
        client.channel.close()
        asked = {"topic": "t", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 62}
        searches: list[dict[str, Any]] = [{"key": "k"}, {"key": sent.message_id, "_UNIQUE_KEY_QUERY": "true"}]
        for search in searches:
            answer = ask(gateway.remoting_address, RequestCode.QUERY_MESSAGE, **asked, **search)
            assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
            assert "messageIndexEnable=false" in (answer.remark or "")
            assert answer.ext_fields["indexLastUpdateTimestamp"] == "0"
        assert (
            ask(gateway.remoting_address, RequestCode.UPDATE_BROKER_CONFIG, b"messageIndexEnable=true").code
            == 0
        )
        for search in searches:
            answer = ask(gateway.remoting_address, RequestCode.QUERY_MESSAGE, **asked, **search)
            assert bytes(decode_record(answer.body).body) == b"x"


WRONG: list[tuple[int, dict[str, Any], int, str]] = [
    (999_999, {}, 3, "request type 999999 not supported"),
    (RequestCode.POP_MESSAGE, {}, 3, "not supported"),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1}, 1, "can not find message by the offset, 1"),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "x"}, 1, "offset 'x' is no integer"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "a b"}, 29, "'a b'"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "TBW102"}, 29, "TBW102"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "\ud800"}, 29, "may hold only letters"),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": -1}, 29, "topicSeq=-1"),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"maxGroupNum": 0}, 29, "maxGroupNum=0"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "readQueueNums": 0}, 29, "readQueueNums 0"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "writeQueueNums": 9999}, 29, "1 to 1024"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "perm": 8}, 29, "perm 8"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "perm": -1}, 29, "perm -1"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "topicFilterType": "ALL"}, 29, "topicFilterType of topic t is 'ALL'"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "-reserve.time"}, 29, "cannot be removed from what is new"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "+reserve.time=-2"}, 29, "a number of -1 to"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "reserve.time=1"}, 29, "write +name=value"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "+retention=1"}, 29, "'retention' is unsupported"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "+message.type=MIXED"}, 29, "enableMixed"),
    (RequestCode.PULL_MESSAGE, {"topic": "SELF_TEST_TOPIC", "queueId": 99, "queueOffset": 0, "maxMsgNums": 1}, 29, "queueId[99] is illegal"),
    (RequestCode.PULL_MESSAGE, {"topic": "SELF_TEST_TOPIC", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "subscription": "||"}, 23, "subscription failed"),
    (RequestCode.PULL_MESSAGE, {"topic": "SELF_TEST_TOPIC", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "expressionType": "SQL92", "subscription": "a > 1"}, 1, "enablePropertyFilter=true"),
    (RequestCode.PULL_MESSAGE, {"topic": "SELF_TEST_TOPIC", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "expressionType": "SQL92", "subscription": "a >"}, 23, "ends where more is expected"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "+message.type=BAD"}, 29, "'BAD'"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": "+queue.type=BatchCQ"}, 29, "queue.type"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, 1, "the custom field <readQueueNums> is null"),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": " "}, 29, "blank"),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "rmq_sys_lakebroker_journal"}, 29, "system topic"),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, 1, "cannot be read"),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "no", "group": "g", "timestamp": 0}, 17, "no does not exist"),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "t", "consumerGroup": "no", "queueId": 0, "commitOffset": 1}, 26, "Group no"),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "t", "queueId": 0, "timestamp": 0, "boundaryType": "x"}, 29, "'X'"),
    (RequestCode.QUERY_MESSAGE, {"topic": "t", "key": "k"}, 1, "maxNum"),
    (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "SELF_TEST_TOPIC", "queueId": 0, "index": 0, "count": 10_001}, 29, "10001"),
    (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "a b"}, 29, "'a b'"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, 1, "cannot be read"),
    (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "t", "group": "no"}, 1, "[no]"),
    (RequestCode.PULL_MESSAGE, {"topic": "no", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}, 17, "no"),
    (RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "x", "statsKey": "y"}, 1, "The stats <x> <y> not exist"),
    (RequestCode.HEART_BEAT, {}, 1, "cannot be read"),
]  # fmt: skip


def test_what_the_document_says_is_not_served_is_not(gateway: Gateway) -> None:
    text = (Path(__file__).parents[3] / "docs" / "differences.md").read_text()
    table = text.partition("| codes | what | why |")[2].partition("\n\n")[0]
    codes = [int(code) for row in table.splitlines()[2:] for code in row.split("|")[1].split()]
    assert len(codes) > 40
    for code in codes:
        answer = ask(gateway.remoting_address, code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.parametrize(("code", "fields", "answered", "why"), WRONG)
def test_wrong_input_is_named(
    gateway: Gateway, code: int, fields: dict[str, Any], answered: int, why: str
) -> None:
    answer = ask(gateway.remoting_address, code, **fields)
    assert answer.code == answered, answer.remark
    assert answer.remark is not None
    assert why in answer.remark
    assert "Traceback" not in gateway.log.read_text()
