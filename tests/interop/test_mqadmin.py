"""RocketMQ's own `mqadmin` 5.5.0 on our broker and on a real one, each behind a name server: what it prints is compared.

Not compared, because it cannot be the same:

| what | why |
|---|---|
| addresses and ports | each has its own; they are replaced by a word |
| times, rates, sizes and offsets in the log, disk usage, run time | two programs, two disks |
| message ids, and ids and physical offsets in index keys | made by the sender, of host and port |
| values of the properties `BORN_TIMESTAMP` and `UNIQ_KEY` | the sender's |
| system topics and groups in lists | those of the original's parts that are not here |
| options that only one of the two has | each has its own; those of both are compared, but paths and ports |
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import grpc
import pytest

from broker_gateway.config.catalogue import ROWS, TABLE
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import PATIENT, Gateway, NameServer
from lakebroker_testing.official_client import OfficialClient
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.rocketmq import requests
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.receiving import receive_all
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.timeout(900)
MESSAGES = 10
_SENDERS = {"BORN_TIMESTAMP", "UNIQ_KEY"}


class Side:
    """One broker behind its name server, an `mqadmin` for it, and an official client."""

    def __init__(
        self, admin: MqAdmin, official: OfficialClient, name_server: str, broker: str, grpc: str
    ) -> None:
        self.admin = admin
        self._official = official
        self.name_server = name_server
        self.broker = broker
        self.grpc = grpc
        self.ids: list[str] = []
        self.sent_ms: list[int] = []

    def run(self, *arguments: str) -> str:
        """What a command prints; `BROKER` among its arguments is the broker's address, and so in the answer."""
        asked = (each.replace("BROKER", self.broker) for each in arguments)
        printed = self.admin.run(self.name_server, *asked)
        return printed.replace(self.broker, "BROKER").replace(self.name_server, "NAMESRV")

    @contextlib.contextmanager
    def client(self) -> Iterator[OfficialClient]:
        """The official client; its producers and consumers stop at the end."""
        try:
            yield self._official
        finally:
            self._official.call("stop")


class Both:
    """A real broker and ours."""

    def __init__(self, real: Side, ours: Side, gateway: Gateway) -> None:
        self.real = real
        self.ours = ours
        self.gateway = gateway
        self.options = "", ""
        """What `getBrokerConfig` printed on each before both became patient."""

    def run(self, *arguments: str) -> tuple[str, str]:
        """What a command prints on the real one, and on ours."""
        return self.real.run(*arguments), self.ours.run(*arguments)

    def same(self, *arguments: str) -> str:
        """`run`, where both must print the same and something."""
        real, ours = self.run(*arguments)
        assert real.strip()
        assert ours == real
        return ours

    def wait_for(self, *arguments: str, until: Callable[[str], bool]) -> tuple[str, str]:
        """`run` until both answers fit."""
        found = "", ""

        def both_fit() -> bool:
            nonlocal found
            found = self.run(*arguments)
            return all(map(until, found))

        wait_until(both_fit, lambda: f"what fits of {found}")
        return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, mqadmin: MqAdmin) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("mqadmin")
    options = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
    with (
        RocketMQ(folder / "peer", {}, heap="640m", patient=False, **options) as peer,  # options are compared
        NameServer(folder / "namesrv") as name_server,
        Gateway(
            folder / "ours",
            patient=False,
            namesrvAddr=name_server.address,
            lakeAutoCreateTopics="false",
            **options,
        ) as gateway,
        OfficialClient() as one,
        OfficialClient() as other,
    ):
        ours = f"127.0.0.1:{gateway.remoting_port}"
        found = Both(
            Side(mqadmin, one, peer.name_server, peer.broker_address, peer.address),
            Side(mqadmin, other, name_server.address, ours, gateway.address),
            gateway,
        )
        found.wait_for("clusterList", until=lambda text: "V5_5_0" in text)
        found.options = found.run("getBrokerConfig", "-b", "BROKER")
        patience = "".join(f"{name}={value}\n" for name, value in PATIENT.items()).encode()
        for side in (found.real, found.ours):
            requests.done(side.broker, RequestCode.UPDATE_BROKER_CONFIG, patience)
        fill(found)
        yield found
        assert gateway.terminate() == 0
    assert "Traceback" not in gateway.log.read_text()


def fill(both: Both) -> None:
    """A topic of one queue with messages, one of four without; a group."""
    create = ("updateTopic", "-c", "DefaultCluster", "-a", "+message.type=NORMAL")
    assert "create topic to BROKER success." in both.same(*create, "-t", "single", "-r", "1", "-w", "1")
    assert "success" in both.same(*create, "-t", "orders", "-r", "4", "-w", "4", "-p", "4")
    assert "success" in both.same("updateSubGroup", "-c", "DefaultCluster", "-g", "readers", "-r", "3")
    both.wait_for("topicRoute", "-t", "single", until=lambda text: "BROKER" in text)
    for side in (both.real, both.ours):
        with side.client() as official:
            official.call("producer", endpoints=side.grpc, topics=["single"])
            for number in range(MESSAGES):
                side.sent_ms.append(now_ms())
                answer = official.call(
                    "send", topic="single", bodies=[f"body {number}"], tag="a", keys=[f"key-{number}"]
                )
                side.ids += answer["ids"]
                stored_ms = now_ms()
                wait_until(lambda before=stored_ms: now_ms() > before)  # the next one has a later time


def fields(text: str) -> dict[str, str]:
    """`name: value` lines."""
    return {
        found[1].strip(): found[2].strip()
        for line in text.splitlines()
        if (found := re.match(r"([\w ./#-]+?) *: (.*)", line))
    }


def columns(text: str, *numbers: int) -> list[list[str]]:
    """Some columns of every line."""
    return [
        [parts[number] for number in numbers if number < len(parts)]
        for line in text.splitlines()
        if (parts := line.split())
    ]


def properties(text: str) -> dict[str, str]:
    listed = fields(text)["Properties"].strip("{}").split(", ")
    found = dict(each.partition("=")[::2] for each in listed)
    return {name: value if name not in _SENDERS else "" for name, value in found.items()}


def test_routes_and_lists(both: Both) -> None:
    assert '"readQueueNums":1' in both.same("topicRoute", "-t", "single")
    assert '"perm":4' in both.same("topicRoute", "-t", "orders")
    real, ours = both.run("topicList")
    assert {"single", "orders", "DefaultCluster", "broker-a"} <= set(ours.split())
    assert {each for each in ours.split() if not each.startswith("%RETRY%")} <= set(real.split())
    real, ours = both.run("clusterList")
    assert columns(ours, 0, 1, 2, 3, 4) == columns(real, 0, 1, 2, 3, 4)
    assert ours.splitlines()[1].split()[-1] == "true"


def test_topic_status(both: Both) -> None:
    real, ours = both.run("topicStatus", "-t", "single")
    assert columns(ours, 0, 1, 2, 3) == columns(real, 0, 1, 2, 3)
    assert ["broker-a", "0", "0", str(MESSAGES)] in columns(ours, 0, 1, 2, 3)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", ours)
    both.same("topicStatus", "-t", "orders")
    assert both.run("topicStatus", "-t", "nosuch") == ("", "")


def test_broker_status(both: Both) -> None:
    real, ours = (fields(each) for each in both.run("brokerStatus", "-b", "BROKER"))
    shown = {name for name in ours if not name.startswith("commitLogDiskRatio_")}
    assert shown == {name for name in real if not name.startswith("commitLogDiskRatio_")}
    for name in shown:
        if "Capacity" in name and name != "commitLogDirCapacity":
            assert ours[name] == real[name], name
    assert ours["brokerVersionDesc"] == real["brokerVersionDesc"]
    assert ours["msgPutTotalTodayNow"] == ours["putMessageTimesTotal"] == str(MESSAGES)
    assert int(ours["commitLogMaxOffset"]) > int(ours["commitLogMinOffset"])
    for each in (real, ours):  # as the dashboard collects it, each minute
        rates = [Decimal(part) for part in each["getTotalTps"].split(" ")]
        assert len(rates) == 3
        assert sum(rates) / len(rates) >= 0
        assert re.fullmatch(r"\d+\.\d\d", each["putLatency99"])
        assert re.fullmatch(r"null|(\[[<=0-9ms~s]+\]:\d+ ?){13}", each["putMessageDistributeTime"])


def test_messages_by_offset_and_id(both: Both) -> None:
    texts = both.run("queryMsgByOffset", "-t", "single", "-b", "broker-a", "-i", "0", "-o", "3")
    compared = ("Topic", "Tags", "Keys", "Queue ID", "Queue Offset", "Reconsume Times", "System Flag")
    for name in compared:
        assert fields(texts[1])[name] == fields(texts[0])[name], name
    assert fields(texts[1])["Keys"] == "[key-3]"
    assert properties(texts[1]) == properties(texts[0])
    assert properties(texts[1])["MAX_OFFSET"] == str(MESSAGES)
    assert {"MSG_REGION", "CLUSTER", "PGROUP", "RECONSUME_TIME", "TRACE_ON"} <= properties(texts[1]).keys()
    assert fields(texts[1])["Store Host"] == "BROKER"
    by_id = [
        side.run("queryMsgById", "-t", "single", "-i", fields(text)["OffsetID"])
        for side, text in zip((both.real, both.ours), texts, strict=True)
    ]
    by_unique_key = [
        side.run("queryMsgByUniqueKey", "-t", "single", "-i", side.ids[3]) for side in (both.real, both.ours)
    ]
    for real, ours in (by_id, by_unique_key):
        for name in compared:
            assert fields(ours)[name] == fields(real)[name], name
        assert fields(ours)["Keys"] == "[key-3]"
        assert properties(ours) == properties(real)
    for offset in ("99", "-1"):
        assert both.run("queryMsgByOffset", "-t", "single", "-b", "broker-a", "-i", "0", "-o", offset) == (
            "",
            "",
        )


def test_messages_by_key(both: Both) -> None:
    both.wait_for("queryMsgByKey", "-t", "single", "-k", "key-4", until=lambda text: "key-4" in text)
    real, ours = both.run("queryMsgByKey", "-t", "single", "-k", "key-4")
    assert columns(ours, 1, 2) == columns(real, 1, 2)
    assert ["0", "4"] in columns(ours, 1, 2)
    for side in (both.real, both.ours):
        late = str(side.sent_ms[-1] + 3_600_000)
        assert "key-4" not in side.run("queryMsgByKey", "-t", "single", "-k", "key-4", "-b", late)
    assert "key-4" not in both.ours.run("queryMsgByKey", "-t", "orders", "-k", "key-4")


def progress(text: str) -> list[str]:
    """Broker offset, consumer offset, difference of the one queue."""
    return next(line.split()[3:6] for line in text.splitlines() if line.startswith("single"))


def consume(both: Both, count: int) -> None:
    """Both groups receive and acknowledge so many messages, and no more come."""

    def received(side: Side) -> int:
        with side.client() as official:
            official.call("simple", endpoints=side.grpc, group="readers", topics={"single": "*"}, await_s=3)
            return len(receive_all(official, count))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(received, (both.real, both.ours))) == [count, count]


def test_group_from_connection_to_reset(both: Both) -> None:
    """Consumed, seen, reset by time and by offset, and consumed again from there."""
    consume(both, MESSAGES)
    done = [str(MESSAGES), str(MESSAGES), "0"]
    real, ours = both.wait_for(
        "consumerProgress", "-g", "readers", "-t", "single", until=lambda text: progress(text) == done
    )
    assert columns(ours, 0, 1, 2, 3, 4, 5, 6)[:2] == columns(real, 0, 1, 2, 3, 4, 5, 6)[:2]
    assert "N/A" not in ours
    reset = ("resetOffsetByTime", "-g", "readers", "-t", "single")
    for side in (both.real, both.ours):
        printed = side.run(*reset, "-s", str(side.sent_ms[4]))
        assert columns(printed, 0, 1, 2)[-1] == ["broker-a", "0", "4"]
    consume(both, MESSAGES - 4)
    both.wait_for(
        "consumerProgress", "-g", "readers", "-t", "single", until=lambda text: progress(text) == done
    )
    for side in (both.real, both.ours):
        assert columns(side.run(*reset, "-s", "0"), 0, 1, 2)[-1][1:] == ["0", "0"]
    consume(both, MESSAGES)
    for side in (both.real, both.ours):
        assert columns(side.run(*reset, "-s", "-1"), 0, 1, 2)[-1] == ["broker-a", "0", str(MESSAGES)]
    printed = both.same(*reset, "-b", "BROKER", "-q", "0", "-o", "7", "-s", "1700000000000")
    assert "reset consumer offset to 7" in printed
    consume(both, MESSAGES - 7)


def test_connected_consumers(both: Both) -> None:
    """The tool looks a group's brokers up by its retry topic, which the real one makes for 4.x consumers only."""
    both.real.run("updateTopic", "-b", "BROKER", "-t", "%RETRY%readers", "-r", "1", "-w", "1")
    command = ("consumerConnection", "-g", "readers")
    printed = []
    for side in (both.real, both.ours):
        with side.client() as official:
            official.call(
                "simple", endpoints=side.grpc, group="readers", topics={"single": "a || b"}, await_s=3
            )
            receive_all(official, 0)
            printed.append(
                wait_until(
                    lambda at=side: text if "MessageModel" in (text := at.run(*command)) else "",
                    side.admin.errors,
                )
            )
    real, ours = ([line.rstrip() for line in text.splitlines()] for text in printed)
    start = real.index("Below is subscription:")
    assert re.fullmatch(r"single +a ?\|\| ?b", real[start + 2])
    assert ours[ours.index("Below is subscription:") :] == real[start:], "subscriptions, and how it consumes"
    assert ours[0] == real[0]
    assert ours[1].split()[2] == real[1].split()[2] == "PYTHON"
    assert both.run("consumerConnection", "-g", "nobody") == ("", "")


def test_options(both: Both) -> None:
    def options(text: str) -> dict[str, str]:
        found = (re.fullmatch(r"(\w+)\s+=\s*(.*)", line) for line in text.splitlines())
        return {each[1]: each[2].strip() for each in found if each}

    real, ours = map(options, both.options)
    differ = {"listenPort", "haListenPort", "storePathRootDir", "storePathCommitLog", "namesrvAddr"}
    chosen = {"flushCommitLogLeastPages", "mappedFileSizeCommitLog"}
    chosen |= {"metricsPromExporterPort", "metricsPromExporterHost"}
    shared = set(real) & set(ours) - differ - chosen
    assert {"brokerName", "fileReservedTime", "autoCreateTopicEnable", "deleteWhen", "brokerIP1"} <= shared
    wrong = {name: (ours[name], real[name]) for name in shared if ours[name].lower() != real[name].lower()}
    assert not wrong
    left_out = differ | chosen | {row.name for row in TABLE["auth"]}  # which a real broker keeps to itself
    assert not (set(ours) - set(real)) & set(ROWS) - left_out, "what a real broker has no value for"
    change = ("updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "48")
    assert "success" in both.same(*change)
    for text in both.run("getBrokerConfig", "-b", "BROKER"):
        assert options(text)["fileReservedTime"] == "48"
    for name, value, why in (
        ("brokerName", "other", "restart"),
        ("autoCreateTopicEnable", "true", "command line"),
        ("deleteWhen", "25", "deleteWhen=25"),
        ("noSuchOption", "1", "unknown"),
    ):
        before = len(both.ours.admin.errors())
        printed = both.ours.run("updateBrokerConfig", "-b", "BROKER", "-k", name, "-v", value)
        assert "success" not in printed
        assert why in both.ours.admin.errors()[before:]
    assert options(both.ours.run("getBrokerConfig", "-b", "BROKER"))["deleteWhen"] == "04"


def test_statistics_and_cleaning(both: Both) -> None:
    at = ("-b", "BROKER", "-q", "0", "-o", "7", "-s", "1700000000000")
    both.same("resetOffsetByTime", "-g", "readers", "-t", "single", *at)
    real, ours = both.run("brokerConsumeStats", "-b", "BROKER")
    rows = [[line for line in columns(each, 0, 1, 2, 3, 4) if line[0] == "single"] for each in (real, ours)]
    assert rows[0]
    assert rows[1] == rows[0]
    real, ours = both.run("statsAll", "-t", "single")
    assert columns(ours, 0, 1) == columns(real, 0, 1)
    assert "readers" in ours
    for group in SYSTEM_GROUPS:
        assert group in both.same("getConsumerConfig", "-g", group)
    for command in ("cleanExpiredCQ", "deleteExpiredCommitLog"):
        assert "success" in both.same(command, "-b", "BROKER")
    assert both.run("producerConnection", "-g", "nobody", "-t", "single") == ("", "")


def ask(side: Side, code: int, body: Any = None, **fields: Any) -> Command:
    """The answer to a request that no command of the tool sends, or not alone."""

    return requests.ask(side.broker, code, body, **fields)


def ask_both(both: Both, code: int, body: Any = None, **fields: Any) -> tuple[Any, Any]:
    """Bodies of both answers, which have the same code."""
    real, ours = (ask(side, code, body, **fields) for side in (both.real, both.ours))
    assert ours.code == real.code, (real.remark, ours.remark)
    texts = [re.sub(rb"\{\{.*?\}:", b'{"queue":', each.body) for each in (real, ours)]
    found = [java_json.loads(each) if each else None for each in texts]
    return found[0], found[1]


def shape(value: Any) -> Any:
    """A value without its numbers and times."""
    if isinstance(value, str):
        return re.sub(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}", "TIME", value)
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return 0 if type(value) is int else value


def test_lists_are_created_in_one_request(both: Both) -> None:
    topics = [
        {"topicName": f"listed{n}", "readQueueNums": n, "writeQueueNums": 2, "perm": 6,
         "attributes": {"+message.type": "FIFO"}}
        for n in (1, 2)
    ]  # fmt: skip
    ask_both(both, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics})
    for topic in ("listed1", "listed2"):
        real, ours = ask_both(both, RequestCode.GET_TOPIC_CONFIG, topic=topic)
        assert ours == real
    bad = {"topicConfigList": [{**topics[0], "topicName": "listed3"}, {**topics[0], "topicName": "a b"}]}
    ask_both(both, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, bad)
    ask_both(both, RequestCode.GET_TOPIC_CONFIG, topic="listed3")
    groups = [{"groupName": f"listed{n}", "retryMaxTimes": n} for n in (1, 2)]
    ask_both(both, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": groups})
    for group in ("listed1", "listed2"):
        real, ours = ask_both(both, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
        assert ours["retryMaxTimes"] == real["retryMaxTimes"] == int(group[-1])
    real, ours = ask_both(both, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="TOOLS_CONSUMER")
    assert ours == real


def test_topics_and_groups_keep_what_they_are_given(both: Both) -> None:
    given: dict[str, Any] = {
        "topic": "given", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 2, "perm": 7,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "true",
    }  # fmt: skip
    for change in (
        {"attributes": "+message.type=UNSPECIFIED"},
        {"attributes": "+message.type=MIXED"},
        {"perm": 0},
        {"perm": 1, "order": "false"},
    ):
        ask_both(both, RequestCode.UPDATE_AND_CREATE_TOPIC, **{**given, **change})
        real, ours = ask_both(both, RequestCode.GET_TOPIC_CONFIG, topic="given")
        assert ours == real
    for retries in (-1, 5000):
        body = {"groupName": "given", "retryMaxTimes": retries}
        ask_both(both, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        real, ours = ask_both(both, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="given")
        assert ours["retryMaxTimes"] == real["retryMaxTimes"] == retries


def test_pulls_and_unknown_offsets(both: Both) -> None:
    pull: dict[str, Any] = {
        "consumerGroup": "TOOLS_CONSUMER", "topic": "single", "queueId": 0, "queueOffset": 0, "maxMsgNums": 3,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
    }  # fmt: skip
    for change in (
        {"subscription": "*"},
        {"subscription": "a || b"},
        {"subscription": "b"},
        {"subscription": "*", "queueId": 99},
        {"subscription": "a > 1", "expressionType": "SQL92"},
    ):
        real, ours = (
            ask(side, RequestCode.PULL_MESSAGE, **{**pull, **change}) for side in (both.real, both.ours)
        )
        assert (ours.code, bool(ours.body)) == (real.code, bool(real.body)), (change, real.remark)
        names = ("nextBeginOffset", "minOffset", "maxOffset")
        assert [ours.ext_fields.get(n) for n in names] == [real.ext_fields.get(n) for n in names]
    for change in ({}, {"setZeroIfNotFound": "false"}, {"topic": "orders"}, {"topic": "nosuch"}):
        asked = {"consumerGroup": "nobody", "topic": "single", "queueId": 0, **change}
        real, ours = (
            ask(side, RequestCode.QUERY_CONSUMER_OFFSET, **asked) for side in (both.real, both.ours)
        )
        assert (ours.code, ours.ext_fields.get("offset")) == (real.code, real.ext_fields.get("offset")), (
            change
        )


def test_queues_looked_into(both: Both) -> None:
    # a reset of readers waits at the real broker
    both.same("updateSubGroup", "-b", "BROKER", "-g", "lookers")
    queue = {"topic": "single", "queueId": 0}
    real, ours = ask_both(both, RequestCode.QUERY_CONSUME_QUEUE, **queue, index=2, count=3)
    assert shape(ours) == shape(real)
    assert [each["tagsCode"] for each in ours["queueData"]] == [ord("a")] * 3
    assert (ours["minQueueIndex"], ours["maxQueueIndex"]) == (0, MESSAGES)
    for more in ({"consumerGroup": "nobody"}, {"topic": "not-there"}, {"queueId": 99}, {"index": 99}):
        asked: dict[str, Any] = {**queue, "index": 0, "count": 1, **more}
        real, ours = ask_both(both, RequestCode.QUERY_CONSUME_QUEUE, **asked)
        assert shape(ours) == shape(real)
    offset = {"consumerGroup": "lookers", "topic": "single", "queueId": 0, "commitOffset": 4}
    ask_both(both, RequestCode.UPDATE_CONSUMER_OFFSET, **offset)
    real, ours = ask_both(both, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="single", group="lookers")
    assert shape(ours) == shape(real)
    (span,) = ours["consumeTimeSpanSet"]
    assert span["minTimeStamp"] < span["consumeTimeStamp"] < span["maxTimeStamp"]
    assert 0 < span["delayTime"] < 3_600_000
    ask_both(both, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="nosuch", group="lookers")
    assert "success" in both.same("cleanUnusedTopic", "-b", "BROKER")
    real, ours = ask_both(both, RequestCode.GET_BROKER_HA_STATUS)
    assert shape(ours) == shape(real)
    assert ours["masterCommitLogMaxOffset"] > 0


def test_offsets_are_cloned(both: Both) -> None:
    for group in ("sources", "targets"):
        both.same("updateSubGroup", "-b", "BROKER", "-g", group)
    offset = {"consumerGroup": "sources", "topic": "single", "queueId": 0}
    for at, topic in ((3, "single"), (5, "nosuch")):
        ask_both(both, RequestCode.UPDATE_CONSUMER_OFFSET, **offset, commitOffset=at)
        clone = {"srcGroup": "sources", "destGroup": "targets", "topic": topic, "offline": "true"}
        ask_both(both, RequestCode.CLONE_GROUP_OFFSET, **clone)
        asked = {**offset, "consumerGroup": "targets"}
        found = [ask(side, RequestCode.QUERY_CONSUMER_OFFSET, **asked) for side in (both.real, both.ours)]
        assert [each.ext_fields["offset"] for each in found] == ["3", "3"]


def test_who_is_connected(both: Both) -> None:
    """A producer over gRPC is in a group named as its topic; of clients over gRPC nothing more is known."""
    answers: list[list[Any]] = []
    for side in (both.real, both.ours):
        with side.client() as official:
            official.call("producer", endpoints=side.grpc, topics=["single"])
            official.call("send", topic="single", bodies=["one more"], tag="a")
            official.call(
                "simple", endpoints=side.grpc, group="readers", topics={"single": "a||b "}, await_s=3
            )
            receive_all(official, 0)

            def told_of_both(at: Side = side) -> list[Any]:
                told = [
                    java_json.loads(ask(at, code, topic="single", group="readers").body)
                    for code in (
                        RequestCode.GET_ALL_PRODUCER_INFO,
                        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                    )
                ]
                return told if "subscriptionData" in told[1] and "single" in told[0]["data"] else []

            told = wait_until(told_of_both)
            producers = ask(
                side, RequestCode.GET_PRODUCER_CONNECTION_LIST, topic="single", producerGroup="single"
            )
            told.append(java_json.loads(producers.body))
            answers.append(told)
    real, ours = answers
    assert abs(ours[1]["subscriptionData"]["subVersion"] - now_ms()) < 600_000
    for each in real, ours:
        each[0]["data"].pop(
            "CLIENT_INNER_PRODUCER", None
        )  # of the real proxy's own client, which may be there already
        for client in (*each[0]["data"]["single"], *each[3]["connectionSet"]):
            assert client.pop("clientId")
            assert re.match(r"/?127\.0\.0\.1:\d+", client.pop("remoteIP", "") or client.pop("clientAddr", ""))
        each[1]["subscriptionData"]["codeSet"].sort()
    assert shape(ours) == shape(real)
    assert ours[1]["subscriptionData"]["codeSet"] == real[1]["subscriptionData"]["codeSet"]
    real, ours = ask_both(both, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, topic="no", group="no")
    assert ours == real
    ask_both(both, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="no", group="no")


def test_topic_is_changed_deleted_and_made_again(both: Both) -> None:
    make = ("updateTopic", "-b", "BROKER", "-t", "brief", "-a", "+message.type=NORMAL")
    both.same(*make, "-r", "2", "-w", "2")
    both.same(*make, "-r", "1", "-w", "1")
    both.wait_for("topicRoute", "-t", "brief", until=lambda text: '"readQueueNums":1' in text)
    both.same("updateSubGroup", "-b", "BROKER", "-g", "once")
    for side in (both.real, both.ours):
        with side.client() as official:
            official.call("producer", endpoints=side.grpc, topics=["brief"])
            official.call("send", topic="brief", bodies=["first", "second"])
    assert ["broker-a", "0", "0", "2"] in columns(both.ours.run("topicStatus", "-t", "brief"), 0, 1, 2, 3)
    both.same("deleteTopic", "-c", "DefaultCluster", "-t", "brief")
    both.wait_for("topicStatus", "-t", "brief", until=lambda text: not text)
    both.same(*make, "-r", "1", "-w", "1")
    both.wait_for("topicStatus", "-t", "brief", until=lambda text: "broker-a" in text)
    ours = both.ours.run("topicStatus", "-t", "brief")
    assert ["broker-a", "0", "2", "2"] in columns(ours, 0, 1, 2, 3), "goes on with higher offsets"
    side = both.ours
    with side.client() as official:
        official.call("producer", endpoints=side.grpc, topics=["brief"])
        sent = official.call("send", topic="brief", bodies=["third"])["ids"]
        official.call("simple", endpoints=side.grpc, group="once", topics={"brief": "*"}, await_s=3)
        assert receive_all(official, 1) == sent, "what was there before is gone"
    both.same("deleteSubGroup", "-b", "BROKER", "-g", "once", "-r", "true")
    for name, options in (
        ("TBW102", ()),
        ("broker-a", ()),
        ("two words", ()),
        ("x" * 200, ()),
        ("y", ("-r", "0")),
    ):
        ours = both.ours.run("updateTopic", "-b", "BROKER", "-t", name, *options)
        assert "success" not in ours, name


def backoff(side: Side, group: str) -> pb.RetryPolicy:
    """The retry policy that a push consumer gets over Telemetry."""
    with grpc.insecure_channel(side.grpc) as channel:
        call = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        settings = pb.Settings(
            client_type=pb.PUSH_CONSUMER,
            access_point=pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)]),
            subscription=pb.Subscription(group=pb.Resource(name=group)),
        )
        metadata = (
            ("x-mq-client-id", f"asks-{group}"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.0.0"),
            ("x-mq-protocol", "v2"),
        )  # fmt: skip
        ended = threading.Event()

        def commands() -> Iterator[rpc.TelemetryCommand]:
            yield rpc.TelemetryCommand(settings=settings)
            ended.wait(60)

        answers = call(commands(), timeout=LIMIT_S, metadata=metadata)
        try:
            answer = next(answers)
        finally:
            ended.set()
            answers.cancel()
    assert answer.status.code == pb.OK, answer.status
    return answer.settings.backoff_policy


EXPONENTIAL = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":1500,"max":90000,"multiplier":3}}'


def test_groups_have_every_field_and_consumers_their_policy(both: Both) -> None:
    make = ("updateSubGroup", "-b", "BROKER", "-g", "every")
    show = ("getConsumerConfig", "-g", "every")
    others = "-s true -m true -d false -q 3 -r 5 -i 0 -w 2 -a false"
    for options in (
        (),
        (*others.split(), "-p", EXPONENTIAL),
        ("-o", "true", "-p", '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000,10000]}}'),
        ("--attributes", "+priority.factor=5,+lite.sub.model=Exclusive"),
        ("--attributes=-priority.factor",),
        ("-r", "2", "-p", EXPONENTIAL),
        ("-p", '{"type":"EXPONENTIAL"}'),
    ):
        assert "success" in both.same(*make, *options)
        real, ours = ask_both(both, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="every")
        assert ours == real
        assert "every" in both.same(*show)
        assert backoff(both.ours, "every") == backoff(both.real, "every")
    wrong = "+priority.factor=101 +priority.factor= +x=1 -lite.bind.topic +lite.sub.model=A"
    for refused in wrong.split():
        for printed in both.run(*make, f"--attributes={refused}"):
            assert "success" not in printed, refused
    real, ours = ask_both(both, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="every")
    assert ours == real
    assert ours["attributes"] == {"lite.sub.model": "Exclusive"}
    before = len(both.ours.admin.errors())
    assert "success" not in both.ours.run(*make, "-p", EXPONENTIAL.replace("1500", "-1500"))
    assert "initial of exponentialRetryPolicy is -1500" in both.ours.admin.errors()[before:]


def test_topics_have_every_field(both: Both) -> None:
    make = ("updateTopic", "-b", "BROKER", "-t", "every", "-r", "2", "-w", "2")
    kinds = "+message.type=DELAY,+cleanup.policy=COMPACTION,+queue.type=SimpleCQ"
    for options in (
        ("-a", kinds, "-u", "true", "-s", "true"),
        ("-a", "+reserve.time=7,+message.type=FIFO", "-p", "4"),
        ("-a=-reserve.time,+lite.topic.expiration=60",),
        (),
    ):
        both.same(*make, *options)
        real, ours = ask_both(both, RequestCode.GET_TOPIC_CONFIG, topic="every")
        assert ours == real
    assert ours["attributes"] == {
        "cleanup.policy": "COMPACTION", "lite.topic.expiration": "60", "message.type": "FIFO", "queue.type": "SimpleCQ",
    }  # fmt: skip
    wrong = "+cleanup.policy=DELETE -reserve.time +reserve.time=-2 +x=1 -x +message.type=A"
    for refused in wrong.split():
        for printed in both.run(*make, f"-a={refused}"):
            assert "success" not in printed, refused
    new = ("updateTopic", "-b", "BROKER", "-t", "never")
    for refused in ("-reserve.time", "+cleanup.policy=Delete", "+lite.topic.expiration=43201"):
        for printed in both.run(*new, f"-a={refused}"):
            assert "success" not in printed, refused
    multi = {
        "topic": "every", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "MULTI_TAG", "topicSysFlag": 2, "order": "false",
    }  # fmt: skip
    ask_both(both, RequestCode.UPDATE_AND_CREATE_TOPIC, **multi)
    real, ours = ask_both(both, RequestCode.GET_TOPIC_CONFIG, topic="every")
    assert ours == real
    assert ours["topicFilterType"] == "MULTI_TAG"
