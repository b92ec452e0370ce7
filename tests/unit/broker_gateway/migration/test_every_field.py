"""Every field of a real broker's topics and groups, and some of a newer broker, go through us and back as they were."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.metadata.data_version import parse_data_version
from broker_gateway.metadata.system_topics import is_system_topic
from broker_gateway.migration.exchange import export_to_rocketmq, import_from_rocketmq
from broker_gateway.migration.rocketmq_files import ConfigFileError, quoted_keys
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from tests.support.logs.real_exchange import Real
from tests.support.rocketmq.every_field import GROUP, TOPIC

DATA = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"
FILES = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}


def tables(root: Path) -> dict[str, Any]:
    found = {name: json.loads(quoted_keys((root / "config" / name).read_text())) for name in FILES}
    for each in found.values():
        parse_data_version(each.pop("dataVersion", None))
    return found


def write(root: Path, name: str, table: dict[str, Any], **others: Any) -> None:
    (root / "config" / name).write_text(json.dumps({FILES[name]: table, **others}))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A real broker's store with a topic and a group that have every field, each not as by default."""
    real = Real(tmp_path / "store")
    real.messages("t", 2)
    real.close()
    plain = {"attributes": {}, "order": True, "perm": 7, "readQueueNums": 1, "topicFilterType": "SINGLE_TAG",
             "topicName": "plain", "topicSysFlag": 0, "writeQueueNums": 2}  # fmt: skip
    write(real.root, "topics.json", {"t": TOPIC, "plain": plain})
    write(real.root, "subscriptionGroup.json", {"g": GROUP}, forbiddenTable={"g": {"t": 1}})
    return real.root


@pytest.mark.parametrize("runs", [0, 2])
def test_they_go_there_and_back(store: Path, runs: int) -> None:
    """Also when we ran on the store in between, killed and stopped, with a snapshot each."""
    before = tables(store)
    import_from_rocketmq(store, "b", "c")
    for run in range(runs):
        with InProcessBroker(store.parent, brokerName="b", brokerClusterName="c") as process:
            assert process.root == store
            assert process.broker.catalog.group("g") is not None
            process.do(process.broker.journal.write_snapshot)
            if run == 0:
                process.crash()
    export_to_rocketmq(store)
    assert {name: before[name][table].keys() for name, table in FILES.items()} == {
        "topics.json": {"t", "plain"},
        "subscriptionGroup.json": {"g"},
    }
    after = tables(store)
    assert after["subscriptionGroup.json"] == before["subscriptionGroup.json"]
    for topic in ("t", "plain"):
        assert (
            after["topics.json"]["topicConfigTable"][topic]
            == before["topics.json"]["topicConfigTable"][topic]
        )


def test_a_change_of_ours_changes_nothing_else(store: Path) -> None:
    before = tables(store)
    import_from_rocketmq(store, "b", "c")
    with InProcessBroker(store.parent, brokerName="b", brokerClusterName="c") as process:
        process.call("PutGroup", pb.PutGroupRequest(group=pb.Group(name="g", retry_max_times=3)))
        process.call(
            "PutGroup", pb.PutGroupRequest(group=pb.Group(name="g", configuration='{"groupSysFlag":5}'))
        )
        process.call("PutTopic", pb.PutTopicRequest(topic=pb.Topic(name="t", queues=9)))
    export_to_rocketmq(store)
    group, topic = before["subscriptionGroup.json"]["subscriptionGroupTable"]["g"], TOPIC
    after = tables(store)
    assert after["subscriptionGroup.json"]["subscriptionGroupTable"]["g"] == {
        **group, "retryMaxTimes": 3, "groupSysFlag": 5,
    }  # fmt: skip
    assert after["topics.json"]["topicConfigTable"]["t"] == {**topic, "readQueueNums": 9, "writeQueueNums": 9}


def test_a_topic_of_batches_keeps_the_store_here_until_it_is_deleted(store: Path) -> None:
    """A real broker does not start over queue files of the other kind."""
    table = {
        "t": TOPIC,
        "batches": {**TOPIC, "topicName": "batches", "attributes": {"queue.type": "BatchCQ"}},
    }
    write(store, "topics.json", table)
    (problem,) = [each for each in import_from_rocketmq(store, "b", "c").problems if "BatchCQ" in each]
    assert "batches" in problem
    before = (store / "config" / "topics.json").read_bytes()
    with pytest.raises(ConfigFileError, match=r"1 topic has queue\.type BatchCQ, the first 'batches'"):
        export_to_rocketmq(store)
    assert (store / "config" / "topics.json").read_bytes() == before
    with InProcessBroker(store.parent, brokerName="b", brokerClusterName="c") as process:
        process.do(lambda: process.broker.parts.topics.delete("batches"))
    export_to_rocketmq(store)
    assert "batches" not in tables(store)["topics.json"]["topicConfigTable"]


def test_the_files_of_a_real_broker_come_back_as_they_were(tmp_path: Path) -> None:
    """Of all its topics but the system's."""
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    root = next(tmp_path.glob("*/commitlog")).parent
    before = tables(root)
    import_from_rocketmq(root, "broker-a", "DefaultCluster")
    export_to_rocketmq(root)
    after = tables(root)
    assert after["subscriptionGroup.json"] == before["subscriptionGroup.json"]
    topics = {
        name: topic
        for name, topic in before["topics.json"]["topicConfigTable"].items()
        if not is_system_topic(name, "DefaultCluster", "broker-a")
    }
    assert len(topics) > 5
    found = after["topics.json"]["topicConfigTable"]
    assert {name: found[name] for name in topics} == topics
