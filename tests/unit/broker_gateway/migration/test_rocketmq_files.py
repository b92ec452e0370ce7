"""`config/*.json` as the real broker writes them, read; as we write them, read again; damaged, named."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.group_configuration import forbidden
from broker_gateway.metadata.group_configuration import policy as retry_policy
from broker_gateway.metadata.retry_policy import DEFAULT
from broker_gateway.migration.rocketmq_files import ConfigFileError, read_config, write_config

DATA = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"


def test_a_real_brokers_files(tmp_path: Path) -> None:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    found = read_config(next(tmp_path.glob("*/commitlog")).parent, 5)
    topics = {topic.name: topic for topic in found.topics}
    assert topics["fifo"] == Topic("fifo", 8, 8, 6, ("FIFO",), 5)
    assert topics["tx"].accept_message_types == ("TRANSACTION",)
    groups = {group.name: group for group in found.groups}
    assert groups["g_fifo"].fifo
    assert groups["g_normal"].retry_max_times == 16
    assert QueueKey("g_delay", "delay", 0) in found.offsets
    assert groups["g_fifo"].others == '{"consumeBroadcastEnable":false,"consumeFromMinEnable":false}'
    assert not found.problems
    assert found.versions["topics.json"].timestamp_ms > 1_600_000_000_000


def test_what_we_write_is_what_we_read(tmp_path: Path) -> None:
    catalog = Catalog()
    topics = [Topic("a", 3, 4, 4, (), 9), Topic("b", 8, 8, 6, ("NORMAL",), 9)]
    groups = [Group("g", 2, True, False, 9), Group("h", created_ms=9)]
    for topic in topics:
        catalog.restore_topic(topic, topic.name)
    for group in groups:
        catalog.restore_group(group, group.name)
    offsets = {QueueKey("g", "a", 0): 7, QueueKey("g", "a", 11): 0}
    for _ in range(2):
        write_config(tmp_path, catalog, offsets, 1)
    found = read_config(tmp_path, 9)
    assert (found.topics, found.groups) == (topics, groups)
    assert found.offsets == offsets
    assert (tmp_path / "config" / "topics.json.bak").exists()


def test_what_is_absurd_is_kept_without_effect_and_named(tmp_path: Path) -> None:
    """NaN, which Python reads, too."""
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    policy = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,NaN]}}'
    path.write_text('{"subscriptionGroupTable":{"g":{"groupRetryPolicy":%s,"brokerId":"x"}}}' % policy)  # noqa: UP031
    found = read_config(tmp_path, 0)
    (group,), (problem,) = found.groups, found.problems
    assert problem.startswith("group g: next[1] of customizedRetryPolicy is nan; a whole number of 0 to")
    assert retry_policy(group) is DEFAULT
    catalog = Catalog()
    catalog.restore_group(group, "g")
    write_config(tmp_path, catalog, {}, 1)
    written = json.loads(path.read_text(), parse_constant=str)["subscriptionGroupTable"]["g"]
    assert written["groupRetryPolicy"] == json.loads(policy, parse_constant=str)
    assert written["brokerId"] == "x"


def test_what_no_group_may_not_read_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.write_text('{"subscriptionGroupTable":{"g":{}},"forbiddenTable":{"g":{"t":1},"gone":{"t":1}}}')
    found = read_config(tmp_path, 0)
    assert forbidden(found.groups[0]) == {"t": 1}
    (problem,) = found.problems
    assert "1 group that is not there, the first 'gone'" in problem


def test_a_missing_file_does_not_take_the_problems_of_another(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config"
    (config / "topics.json").write_text(
        '{"topicConfigTable":{"t":{"attributes":{"message.type":"QUANTUM"}}}}'
    )
    (config / "subscriptionGroup.json.bak").write_text('{"subscriptionGroupTable":{}}')
    (problem,) = read_config(tmp_path, 0).problems
    assert problem.startswith("topic t: message.type 'QUANTUM' is unknown")


FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


@pytest.mark.parametrize("kept", [DataVersion(), DataVersion(0, 9, 50), DataVersion(3, 1, 1)])
@pytest.mark.parametrize("now", [0, 40, 1 << 50])
def test_data_versions_never_go_back(tmp_path: Path, kept: DataVersion, now: int) -> None:
    catalog = Catalog()
    catalog.versions = dict.fromkeys(FILES, kept)
    (tmp_path / "config").mkdir()
    before = DataVersion(0, 7, 45)
    (tmp_path / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":45},"topicConfigTable":{}}'
    )
    for _ in range(3):
        write_config(tmp_path, catalog, {}, now)
        found = read_config(tmp_path, 0).versions
        assert found["topics.json"] > max(kept, before)
        assert found["consumerOffset.json"] > kept
        before, kept = found["topics.json"], found["consumerOffset.json"]


def test_a_file_that_hides_its_data_version_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "topics.json"
    for text in ("{", "[]", '{"dataVersion":{"counter":-1}}', '{"dataVersion":7}'):
        path.write_text(text)
        with pytest.raises(ConfigFileError, match=r"topics\.json.*remove"):
            write_config(tmp_path, Catalog(), {}, 1)
        assert path.read_text() == text


def test_bare_numbers_as_keys_but_not_in_texts(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"t,1:@{2:g":{0:5, 12 :7\n,3:0}}}')
    assert read_config(tmp_path, 0).offsets == {
        QueueKey("{2:g", "t,1:", queue): offset for queue, offset in ((0, 5), (12, 7), (3, 0))
    }


def test_a_damaged_file_is_replaced_by_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"t@g":{0:')
    path.with_suffix(".json.bak").write_text('{"offsetTable":{"t@g":{0:4}}}')
    found = read_config(tmp_path, 0)
    assert found.offsets == {QueueKey("g", "t", 0): 4}
    assert "consumerOffset.json cannot be read" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("topics.json", "{", "topics.json cannot be read"),
        ("topics.json", '{"topicConfigTable":[]}', "has no topicConfigTable"),
        ("topics.json", '{"topicConfigTable":{"t":{"readQueueNums":-1}}}', "readQueueNums of t is -1"),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":"6"}}}', "perm of t is '6'"),
        ("consumerOffset.json", '{"offsetTable":{"t":{0:1}}}', "'t' is no topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:1.5}}}', "0 of t@g is 1.5"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:true}}}', "0 of t@g is True"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{-1:1}}}', "'-1' of t@g is no queue id"),
        ("consumerOffset.json", '{"offsetTable":{},"dataVersion":{"counter":"x"}}', "counter of dataVersion"),
        ("topics.json", '{"topicConfigTable":{"t":{"attributes":[1]}}}', "attributes of t"),
        (
            "subscriptionGroup.json",
            '{"subscriptionGroupTable":{"g":{"retryMaxTimes":null}}}',
            "retryMaxTimes",
        ),
        (
            "subscriptionGroup.json",
            '{"subscriptionGroupTable":{"g":{"new":"%s"}}}' % ("x" * 20_000),
            r"subscriptionGroup.json: the configuration of group g has 20010 bytes .*: 16384 are allowed",
        ),
        (
            "topics.json",
            '{"topicConfigTable":{"t":{"new":%s}}}' % ("[" * 40 + "]" * 40),
            "topics.json: 'new' of topic t is nested more than 32 deep",
        ),
        (
            "subscriptionGroup.json",
            '{"subscriptionGroupTable":{},"forbiddenTable":{"g":5}}',
            "forbiddenTable holds something else than objects",
        ),
        ("topics.json", "[" * 100_000, "topics.json cannot be read: too deeply nested"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text(text)
    with pytest.raises(ConfigFileError, match=said):
        read_config(tmp_path, 0)


def test_a_file_without_its_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "topics.json"
    path.write_text("{}")
    with pytest.raises(ConfigFileError) as refused:
        read_config(tmp_path, 5)
    assert str(refused.value).startswith(f"{path} has no topicConfigTable; restore it")
