"""A store goes from us to the real broker 5.5.0 and back: each starts on it at once and serves what was not settled.

Ours runs by a clock of the test (`exchange.py`), except where a process of it has to be killed.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.metadata.data_version import DataVersion, parse_data_version
from broker_gateway.migration.rocketmq_files import quoted_keys
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import LONG
from tests.support.rocketmq import put_off_exchange
from tests.support.rocketmq.exchange import SEGMENT, left, ours, run, take, theirs, written_offsets
from tests.support.rocketmq.put_off_exchange import PutOff
from tests.support.rocketmq.receiving import receive_all
from tests.support.rocketmq.requests import done, queue_end
from tests.support.waiting import wait_until

COUNT = 300


def ids_of(messages: list[pb.Message]) -> list[str]:
    return [each.system_properties.message_id for each in messages]


@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=LONG)])
def test_the_real_broker_goes_on_with_our_store_and_we_with_its(tmp_path: Path, end: str) -> None:
    """With what is put off."""
    a_minute_before = ManualClock(ManualClock().now_ms - 60_000)
    put_off = PutOff()
    with ours(tmp_path / "ours", a_minute_before) as broker:
        put_off.begin(broker)
        ids = []
        for number in range(COUNT):
            one = message("orders", b"%d " % number * 10_000, queue_id=number % 8)
            one.system_properties.tag = "even" if number % 2 == 0 else "odd"
            answer = broker.call("SendMessage", send_request(one))
            assert answer.status.code == pb.OK
            ids.append(answer.entries[0].message_id)
        held = broker.receive("orders", "readers", batch=8, invisible_ms=30_000)[1]
        assert len(held) == 8
        settled: set[str] = set()
        while len(settled) < 120:
            messages = broker.receive("orders", "readers", invisible_ms=600_000)[1]
            assert broker.ack("orders", "readers", *messages).status.code == pb.OK
            settled |= set(ids_of(messages))
        broker.advance(1.0)  # more than flushIntervalCommitLog
        store = left(broker, end, tmp_path / "killed")
    assert len(list((store / "commitlog").iterdir())) > 10
    run("store", "rebuild", str(store))
    assert (store / "config" / "topics.json").exists()
    with theirs(tmp_path / "peer", store) as peer, OfficialClient() as official:
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        # those held too, nothing settled behind them
        found = receive_all(official, COUNT - len(settled))
        assert sorted(found) == sorted(set(ids) - settled)
        official.call("producer", endpoints=peer.address, topics=["orders"])
        sent = [official.call("send", topic="orders", bodies=[f"after {n}"], tag="a") for n in range(3)]
        new = [each for answer in sent for each in answer["ids"]]
        assert sorted(receive_all(official, 3)) == sorted(new)
        last = official.call("send", topic="orders", bodies=["left"], tag="a")["ids"]
        put_off.there(peer.address)
        if end == "stopped":
            peer.terminate()
        else:
            written_offsets(peer, put_off_exchange.TOPIC, put_off_exchange.GROUP, put_off_exchange.SETTLED)
            written_offsets(peer, "orders", "readers", COUNT + 3)
            peer.kill()
    taken = run("store", "import", str(store))
    assert taken["groups"] > 0
    assert (taken["timers"], taken["transactions"]) == (
        put_off_exchange.TIMERS,
        put_off_exchange.TRANSACTIONS,
    )
    with ours(tmp_path / "again", storePathRootDir=str(store)) as broker:
        assert ids_of(take(broker, "orders", "readers")) == last
        one = message("orders", b"ours again", queue_id=0)
        assert broker.call("SendMessage", send_request(one)).status.code == pb.OK
        assert [each.body for each in take(broker, "orders", "readers")] == [b"ours again"]
        every = set(ids_of(take(broker, "orders", "late")))
        assert every == {*ids, *new, *last, one.system_properties.message_id}
        put_off.back(broker)
    run("store", "verify", str(store))


def versions(store: Path) -> dict[str, DataVersion]:
    return {
        name: parse_data_version(
            json.loads(quoted_keys((store / "config" / name).read_text()))["dataVersion"]
        )
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
    }


def real_receive(official: OfficialClient, count: int, invisible_s: int) -> list[str]:
    """Ids of so many messages from the real broker, none acknowledged."""
    found: list[str] = []

    def all_there() -> bool:
        most = min(8, count - len(found))
        answer = when_started(official, "receive", max=most, invisible_s=invisible_s)
        found.extend(each["id"] for each in answer["messages"])
        return len(found) == count

    wait_until(all_there)
    return found


EVERY_FIELD: dict[str, Any] = {
    "brokerId": 0, "consumeBroadcastEnable": False, "consumeEnable": True, "consumeFromMinEnable": False,
    "consumeMessageOrderly": False, "consumeTimeoutMinute": 3, "groupName": "every", "groupSysFlag": 2,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1500, "max": 90_000, "multiplier": 3},
    },
    "notifyConsumerIdsChangedEnable": False, "retryMaxTimes": 5, "retryQueueNums": 4,
    "subscriptionDataSet": [{"topic": "every", "expression": "*", "expressionType": "TAG", "version": 7}],
    "whichBrokerWhenConsumeSlowly": 2,
}  # fmt: skip
EVERY_TOPIC_FIELD: dict[str, Any] = {
    "topicName": "every", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6, "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 3, "order": True,
}  # fmt: skip
CONFIGURATION = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}


def ask(port: int, code: int, body: Any = None, **fields: str) -> Any:
    """The body of a broker's answer."""
    answer = done(f"127.0.0.1:{port}", code, body, **fields)
    return java_json.loads(answer.body) if answer.body else None


def configurations(port: int) -> tuple[Any, Any]:
    """The topic and the group that have every field, as a broker shows them."""
    return (
        ask(port, RequestCode.GET_TOPIC_CONFIG, topic="every"),
        ask(port, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="every"),
    )


def rows(store: Path) -> dict[str, Any]:
    """The tables of both files, of topics and groups that are not the system's."""
    found = {}
    for name, table in CONFIGURATION.items():
        every = json.loads(quoted_keys((store / "config" / name).read_text()))[table]
        found[name] = {
            each: every[each] for each in ("every", "orders", "given", "readers", "givers") if each in every
        }
    return found


def give_every_field(peer: RocketMQ) -> tuple[Any, Any]:
    """A topic and a group with every field, as the real broker shows them."""
    kinds = {"+message.type": "FIFO", "+cleanup.policy": "DELETE", "+reserve.time": "7"}
    topics = {"topicConfigList": [{**EVERY_TOPIC_FIELD, "attributes": kinds}]}
    ask(peer.broker_port, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics)
    group = {**EVERY_FIELD, "attributes": {"+priority.factor": "9"}}
    ask(peer.broker_port, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    shown = configurations(peer.broker_port)
    assert shown[1] == {**EVERY_FIELD, "attributes": {"priority.factor": "9"}}
    return shown


def give_fields_of_a_newer_broker(store: Path) -> None:
    """To both, in the files."""
    for name, table in CONFIGURATION.items():
        path = store / "config" / name
        content = json.loads(quoted_keys(path.read_text()))
        content[table]["every"]["ofANewerBroker"] = {"on": True}
        path.write_text(json.dumps(content))


def assert_served(folder: Path, store: Path, shown: tuple[Any, Any]) -> None:
    """A gateway over a copy of the store has what the real broker showed, before it is killed and after, and leaves it as it was."""
    before = rows(store)
    copy = folder / "copy"
    shutil.copytree(store, copy)
    with Gateway(folder, brokerName="broker-a", storePathRootDir=str(copy)) as gateway:
        topic, group = configurations(gateway.remoting_port)
        for each in (topic, group):
            assert each.pop("ofANewerBroker") == {"on": True}
        assert (topic, group) == shown
        gateway.kill()
        gateway.start()
        assert gateway.terminate() == 0
    run("store", "rebuild", str(copy))
    assert rows(copy) == before


def gave_back(peer: RocketMQ, topic: str, group: str) -> list[str]:
    """Ids of ten messages that a 4.x consumer gave back, and that wait in the group's retry topic."""
    program = Path(__file__).with_name("SendBack.java")
    printed = peer.java(program, peer.name_server, topic, group, "10")
    sent = [line for line in printed.splitlines() if re.fullmatch(r"[0-9A-F]{32,64}", line)]
    assert len(sent) == 10
    wait_until(lambda: queue_end(peer.broker_address, f"%RETRY%{group}") == len(sent))
    return sent


@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=LONG)])
def test_what_consumers_hold_or_gave_back_and_every_field_go_there_and_back(tmp_path: Path, end: str) -> None:
    """Pop consumers hold, a 4.x consumer gave back; the fields are set at the real broker, with some that a newer one might have."""
    peer = RocketMQ(
        tmp_path / "peer",
        {"orders": (2, "NORMAL"), "given": (2, "NORMAL")},
        ["readers", "givers"],
        heap="1g",
        mappedFileSizeCommitLog=str(SEGMENT),
        flushConsumerOffsetInterval="500",
    )
    with peer, OfficialClient() as official:
        shown = give_every_field(peer)
        given = gave_back(peer, "given", "givers")
        official.call("producer", endpoints=peer.address, topics=["orders"])
        sent = [
            each
            for number in range(60)
            for each in when_started(official, "send", topic="orders", bodies=[f"{number}"], tag="a")["ids"]
        ]
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        popped = real_receive(official, 32, 900)
        acked, nacked, kept, held = popped[:16], popped[16:20], popped[20:24], popped[24:]
        assert official.call("ack", ids=acked)["errors"] == {}
        for each in kept[:2]:
            official.call("invisible", id=each, seconds=1200)
        for each in held:
            official.call("invisible", id=each, seconds=25)
        # the shortest time last: a message whose time is over comes to whoever receives then
        expired = real_receive(official, 6, 10)
        for each in nacked:
            official.call("invisible", id=each, seconds=10)
        official.call("stop")
        retried = len(expired) + len(nacked)
        wait_until(lambda: queue_end(peer.broker_address, "%RETRY%readers_orders") >= retried)
        written_offsets(peer, "orders", "readers", len(expired) + len(popped))
        if end == "stopped":
            peer.terminate()
        else:
            peer.kill()
    store = peer.store
    give_fields_of_a_newer_broker(store)
    before, fields = versions(store), rows(store)
    assert {len(each) for each in fields.values()} == {3}
    taken = run("store", "import", str(store))
    assert taken["in_flight"] >= len(kept)
    assert taken["retries_moved"] == len(given)
    assert run("store", "import", str(store))["retries_moved"] == 0
    assert_served(tmp_path / "gateway", store, shown)
    due = set(sent) - {*acked, *kept}
    with ours(tmp_path / "ours", storePathRootDir=str(store)) as broker:
        found = take(broker, "orders", "readers")
        broker.advance(26.0)  # what was held is due by then
        found += take(broker, "orders", "readers")
        assert sorted(ids_of(found)) == sorted(due)
        attempts = {m.system_properties.message_id: m.system_properties.delivery_attempt for m in found}
        again = {*expired, *nacked, *held}
        assert {each for each, attempt in attempts.items() if attempt == 2} == again
        assert {each for each, attempt in attempts.items() if attempt == 1} == due - again
        assert {m.topic.name for m in found} == {"orders"}
        again_given = take(broker, "given", "givers")
        assert sorted(ids_of(again_given)) == sorted(given)
        assert {m.system_properties.delivery_attempt for m in again_given} == {2}
        assert {m.topic.name for m in again_given} == {"given"}
        answers = [broker.send("orders", b"%d" % number, queue_id=number % 2) for number in range(12)]
        more = [answer.entries[0].message_id for answer in answers]
        received = broker.receive("orders", "readers", batch=8, invisible_ms=2000)[1]
        settled = received[::2]
        assert broker.ack("orders", "readers", *settled).status.code == pb.OK
        broker.advance(1.0)  # more than flushIntervalCommitLog
        store = left(broker, end, tmp_path / "killed")
    run("store", "rebuild", str(store))
    after = versions(store)
    assert all(after[name] > before[name] for name in before)
    run("store", "rebuild", str(store))  # once more: no check point twice
    assert all(each > after[name] for name, each in versions(store).items())
    assert rows(store) == fields
    unsettled = set(more) - set(ids_of(settled))
    with theirs(tmp_path / "again", store) as peer, OfficialClient() as official:
        assert configurations(peer.broker_port) == shown
        official.call("simple", endpoints=peer.address, group="readers", topics={"orders": "*"}, await_s=3)
        # the stated bounds: held ones came due while no real broker ran, and one that is killed may not have written that it
        # had copied the others to its retry topic
        bound = again if end == "killed" else set(held)
        got = receive_all(official, len(unsettled), beside=bound)
        assert len(got) == len(set(got))
        assert set(got) - bound == unsettled
        peer.terminate()
    assert all(each >= after[name] for name, each in versions(store).items())
    taken = run("store", "import", str(store))
    # theirs, through both; the held ones as above
    assert len(kept) <= taken["in_flight"] <= len(kept) + len(held)
