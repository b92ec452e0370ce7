"""Receiving what the log has no more: from the lake, as if it were still there."""

from __future__ import annotations

import gzip
import hashlib
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from broker_gateway.lake.queue_ends import queue_ends
from broker_gateway.lake.reader import Lake
from broker_gateway.messaging import old_messages
from broker_gateway.messaging.outcome import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import bodies, message, send_request
from structured_streaming.commit.upkeep_log import add_to_upkeep
from structured_streaming.maintenance import retention
from structured_streaming.retention_rules import parsed
from structured_streaming.storage.local import LocalFolder
from structured_streaming.upkeep import RETENTION, row
from tests.suite.evidence import rounds, seeds
from tests.support.brokers.with_lake import (
    LakeBroker,
    drain,
    pull,
    query,
    send,
    take_away,
)
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.maintained import reput


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        made.create_topic("t")
        made.create_topic("filler")
        made.create_group("g", 3)
        yield made


def test_a_group_below_the_log_receives_from_the_lake_and_goes_on_in_the_log(broker: LakeBroker) -> None:
    sent = [b"%03d" % number for number in range(100)]
    for body in sent:
        broker.send("t", body)
    broker.reset("t", "g", 0, 0)
    assert broker.retire() > 0
    assert broker.min_offset("t") == 100
    broker.send("t", b"new")
    assert bodies(drain(broker)) == [*sent, b"new"]


def shown(message: pb.Message) -> pb.Message:
    """Without what differs from delivery to delivery."""
    copy = pb.Message()
    copy.CopyFrom(message)
    for name in ("receipt_handle", "delivery_attempt"):
        copy.system_properties.ClearField(name)
    return copy


def test_replies_are_those_that_the_log_gave(broker: LakeBroker) -> None:
    for number in range(20):
        broker.send(
            "t", b"%d" % number * (number * 1000), tag="a" if number % 2 else "bé", keys=["k", str(number)]
        )
    broker.call(
        "SendMessage",
        send_request(
            message("t", b"traced", {"name": "väl\u00fce"}, trace_context="00-x", born_host="10.0.0.1"),
            message("t", b"", {}),
        ),
    )
    broker.create_topic("fifo")
    broker.send("fifo", b"1", b"2", message_group="m", message_type=pb.FIFO)
    for topic in ("t", "fifo"):
        broker.reset(topic, "g", 0, 0)
        before = drain(broker, topic)
        assert before
        broker.reset(topic, "g", 0, 0)
        broker.retire()
        assert broker.min_offset(topic) == len(before)
        assert [shown(each) for each in drain(broker, topic)] == [shown(each) for each in before]


def test_a_compressed_body_comes_without_its_compression(broker: LakeBroker) -> None:
    body = b"text" * 1000
    broker.send("t", gzip.compress(body), body_encoding=pb.GZIP)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    (found,) = drain(broker)
    assert found.body == body
    assert found.system_properties.body_encoding == pb.IDENTITY
    assert found.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


def test_what_is_in_flight_outlives_its_segment(broker: LakeBroker) -> None:
    sent = send(broker, 6)
    broker.reset("t", "g", 0, 0)
    first = broker.receive("t", "g", batch=4, invisible_ms=60_000)[1]
    broker.ack("t", "g", first[0], first[2])
    broker.retire()
    broker.change_invisible("t", "g", first[1], 10)
    broker.restart()
    broker.advance(1)
    found = drain(broker)
    assert bodies(found) == [sent[1], sent[4], sent[5]]
    assert [each.system_properties.delivery_attempt for each in found] == [2, 1, 1]
    broker.crash()
    broker.advance(60)
    found = drain(broker)
    assert sorted(bodies(found)) == [sent[1], sent[3], sent[4], sent[5]]
    assert broker.ack("t", "g", *found).status.code == pb.OK
    broker.crash()
    broker.advance(60)
    assert drain(broker) == []
    assert broker.committed("t", "g") == 6


def test_after_the_last_attempt_the_copy_is_made_of_the_lakes_row(broker: LakeBroker) -> None:
    broker.create_group("once", 0)
    sent = send(broker, 3, tag="a", keys=["k"])
    broker.reset("t", "once", 0, 0)
    broker.retire()
    assert bodies(drain(broker, group="once", invisible_ms=1000)) == sent
    broker.restart()  # nothing of the lake is in memory
    broker.advance(1)
    broker.advance(5)
    dead = drain(broker, "%DLQ%once", "reader", filter="*")
    if not dead:
        broker.reset("%DLQ%once", "reader", 0, 0)
        dead = drain(broker, "%DLQ%once", "reader")
    assert bodies(dead) == sent
    assert {each.system_properties.dead_letter_queue.topic for each in dead} == {"t"}
    assert {each.system_properties.tag for each in dead} == {"a"}
    assert broker.committed("t", "once") == 3


def test_a_client_gives_up_a_message_of_the_lake(broker: LakeBroker) -> None:
    send(broker, 2)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    found = drain(broker)
    broker.dead_letter("t", "g", found[0])
    broker.reset("%DLQ%g", "g", 0, 0)
    assert bodies(drain(broker, "%DLQ%g", "g")) == [b"0"]


@pytest.mark.parametrize("expression", ["a", "a || c", pb.FilterExpression(type=pb.SQL, expression="n > 7")])
def test_filters_take_what_they_would_of_the_log(broker: LakeBroker, expression: object) -> None:
    for number in range(12):
        broker.call(
            "SendMessage",
            send_request(message("t", b"%d" % number, {"n": str(number)}, tag="abc"[number % 3])),
        )
    broker.reset("t", "g", 0, 0)
    here = bodies(drain(broker, filter=expression))
    assert 0 < len(here) < 12
    broker.reset("t", "g", 0, 0)
    broker.retire()
    assert bodies(drain(broker, filter=expression)) == here
    assert broker.committed("t", "g") == int(here[0])


def test_message_groups_of_an_ordered_group_keep_their_order(broker: LakeBroker) -> None:
    broker.create_group("ordered", 3, fifo=True)
    for number in range(12):
        broker.send("t", b"%d" % number, message_group="xyz"[number % 3], message_type=pb.FIFO)
    broker.reset("t", "ordered", 0, 0)
    first = broker.receive("t", "ordered", batch=5, invisible_ms=60_000)[1]
    broker.retire()
    for number in range(12, 18):
        broker.send("t", b"%d" % number, message_group="xyz"[number % 3], message_type=pb.FIFO)
    broker.restart()
    broker.ack("t", "ordered", *first)
    found = list(first)
    while some := drain(broker, group="ordered", batch=2):
        broker.ack("t", "ordered", *some)
        found += some
    for number in range(3):
        assert [int(each.body) for each in found if int(each.body) % 3 == number] == list(
            range(number, 18, 3)
        )


@pytest.mark.parametrize("instead", ["a file", "nothing", "an empty lake", "a damaged file"])
def test_while_the_lake_is_away_its_queue_waits_and_others_go_on(broker: LakeBroker, instead: str) -> None:
    sent = send(broker, 5)
    broker.create_topic("new")
    broker.reset("t", "g", 0, 0)
    broker.retire()
    aside = broker.lake.with_name("aside")
    copy_folder(broker.lake, aside)
    if instead == "a damaged file":
        for data in (broker.lake / "messages").glob("*.parquet"):
            data.write_bytes(data.read_bytes()[:500])
    else:
        shutil.rmtree(broker.lake)
        if instead == "a file":
            broker.lake.write_text("no folder")
        elif instead == "an empty lake":
            empty_lake(str(broker.lake))
    waiting = broker.begin_receive("t", "g", wait_ms=300_000, invisible_ms=60_000)
    assert not waiting.done
    broker.reset("new", "g", 0, 0)
    send(broker, 2, "new")
    assert bodies(drain(broker, "new")) == [b"0", b"1"]
    assert broker.receive("t", "g", wait_ms=0)[0] == pb.MESSAGE_NOT_FOUND
    broker.advance(100)
    assert not waiting.done
    assert broker.committed("t", "g") == 0, "nothing is passed over"
    failures = broker.broker.metrics.registry.get_sample_value
    labels = {"cluster": "DefaultCluster", "node_id": "broker-a", "topic": "t"}
    assert 4 <= (failures("lakebroker_lake_read_failures_total", labels) or 0) <= 10, (
        "with longer and longer pauses"
    )
    if instead == "a file":
        broker.lake.unlink()
    shutil.rmtree(broker.lake, ignore_errors=True)
    aside.rename(broker.lake)
    broker.advance(31)
    assert bodies(waiting.messages) == sent


def test_of_the_queues_that_cannot_be_read_a_number_is_remembered_and_all_are_tried_again(
    broker: LakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_messages, "_MOST_FAILED", 2)
    topics = [f"t{number}" for number in range(5)]
    for topic in topics:
        broker.create_topic(topic)
        send(broker, 1, topic)
        broker.reset(topic, "g", 0, 0)
    broker.retire()
    back = take_away(broker)
    old = broker.broker.parts.old_messages
    assert old is not None
    waiting = [broker.begin_receive(topic, "g", wait_ms=300_000) for topic in topics]
    for _ in range(200):
        broker.advance(0.5)
        assert 0 < old.failing <= 2
    failures = broker.broker.metrics.registry.get_sample_value
    for topic in topics:
        labels = {"cluster": "DefaultCluster", "node_id": "broker-a", "topic": topic}
        assert failures("lakebroker_lake_read_failures_total", labels), f"{topic} was never tried"
    back()
    broker.advance(60)
    assert [bodies(each.messages) for each in waiting] == [[b"0"]] * 5
    assert old.failing == 0


def test_what_expired_in_the_lake_is_passed_over(broker: LakeBroker) -> None:
    sent = send(broker, 10)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    table = DeltaTable(str(broker.lake / "messages"))
    table.delete("topic = 't' AND (queue_offset < 3 OR queue_offset = 6)")
    assert bodies(drain(broker)) == [*sent[3:6], *sent[7:]]
    broker.stop()
    reput(broker.root, broker.lake)
    events = DeltaTable(str(broker.lake / "delivery_events")).to_pyarrow_table()
    skipped = events.filter(pc.equal(events["event"], "skipped"))
    assert sorted(skipped["queue_offset"].to_pylist()) == [0, 1, 2, 6]


def expire(broker: LakeBroker, rules: str, days: int = 0) -> None:
    """Retention by these rules, that many days later."""
    folder = LocalFolder(broker.lake)
    add_to_upkeep(folder, row(RETENTION, rules=parsed(rules)))
    now = datetime.fromtimestamp(broker.clock.wall_ns / 1e9, UTC) + timedelta(days=days)
    for report in retention.expire(folder, now):
        assert report.problems == []


def test_what_retention_removed_is_no_damage_and_the_minimum_follows(broker: LakeBroker) -> None:
    """Of a group that is below it, of one that is set there, of pulls, of a look for the beginning or a time."""
    broker.create_topic("quiet")
    send(broker, 4, "quiet")
    send(broker, 600)
    old_ms = broker.clock.wall_ns // 1_000_000
    broker.jump(3 * 86_400)
    sent = [b"young %d" % number for number in range(5)]
    for body in sent:
        broker.send("t", body)
    for topic in ("t", "quiet"):
        broker.reset(topic, "g", 0, 0)
    broker.retire()
    before = queue_ends(Lake(str(broker.lake)), "broker-a")
    assert query(broker, pb.BEGINNING).offset == 0
    expire(broker, "*=1d")
    assert queue_ends(Lake(str(broker.lake)), "broker-a") == before, "no offset is given out twice"
    broker.advance(11)
    assert query(broker, pb.BEGINNING).offset == 600
    assert query(broker, pb.TIMESTAMP, old_ms).offset == 600
    assert pull(broker, 0) == (pb.ILLEGAL_OFFSET, [], 600), "and where it begins"
    code, pulled, following = pull(broker, 600)
    assert (code, bodies(pulled), following) == (pb.OK, sent, 605)
    with capture_logs() as logs:
        assert bodies(drain(broker)) == sent
        assert drain(broker, "quiet") == []
    assert [each["event"] for each in logs if each["log_level"] in ("warning", "error")] == []
    assert broker.committed("quiet", "g") == 4
    broker.send("quiet", b"new")
    assert bodies(drain(broker, "quiet")) == [b"new"]
    broker.stop()
    reput(broker.root, broker.lake)
    events = DeltaTable(str(broker.lake / "delivery_events")).to_pyarrow_table()
    assert "skipped" not in events["event"].to_pylist()
    (quiet,) = [
        each
        for each in DeltaTable(str(broker.lake / "messages")).to_pyarrow_table().to_pylist()
        if each["topic"] == "quiet"
    ]
    assert quiet["queue_offset"] == 4


def test_a_hole_above_the_minimum_is_damage_also_where_there_is_retention(broker: LakeBroker) -> None:
    send(broker, 3)
    broker.jump(3 * 86_400)
    sent = send(broker, 6)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    expire(broker, "t=1d")
    DeltaTable(str(broker.lake / "messages")).delete("topic = 't' AND queue_offset = 5")
    assert bodies(drain(broker)) == [*sent[:2], *sent[3:]]
    broker.stop()
    reput(broker.root, broker.lake)
    events = DeltaTable(str(broker.lake / "delivery_events")).to_pyarrow_table()
    skipped = events.filter(pc.equal(events["event"], "skipped"))
    assert skipped["queue_offset"].to_pylist() == [5]


def test_a_topic_that_was_made_again_begins_behind_the_deleted_one(broker: LakeBroker) -> None:
    send(broker, 3)
    broker.do(partial(broker.broker.parts.topics.delete, "t"))
    broker.create_topic("t")
    sent = [b"new", b"newer"]
    broker.send("t", *sent)
    broker.reset("t", "g", 0, 3)
    broker.retire()
    broker.restart()
    assert bodies(drain(broker)) == sent
    with pytest.raises(ServiceError, match=r"range \[3-5\]"):
        broker.reset("t", "g", 0, 2)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_any_mix_of_receives_retention_and_restarts_gives_each_message_once_in_order(
    broker: LakeBroker, seed: int
) -> None:
    chance = random.Random(seed)
    broker.create_topic("t", 2)
    for queue_id in range(2):
        broker.reset("t", "g", queue_id, 0)
    sent, found = 0, dict[int, list[int]]()
    for _ in range(rounds(30, 60)):
        step = chance.randrange(10)
        if step < 3:
            for _ in range(chance.randrange(30)):
                broker.send("t", b"%d" % sent)
                sent += 1
        elif step < 8:
            got = broker.begin_receive("t", "g", batch=chance.randint(1, 32), wait_ms=10, invisible_ms=60_000)
            broker.advance(0.1)
            for each in got.messages:
                found.setdefault(each.system_properties.queue_id, []).append(
                    each.system_properties.queue_offset
                )
            broker.ack("t", "g", *got.messages) if got.messages else None
        elif step == 8:
            broker.retire()
        elif chance.random() < 0.5:
            broker.restart()
        else:
            broker.crash()
    for each in drain(broker):
        found.setdefault(each.system_properties.queue_id, []).append(each.system_properties.queue_offset)
    assert {queue_id: list(range(len(offsets))) for queue_id, offsets in found.items()} == found
    assert sum(map(len, found.values())) == sent


def test_little_memory_serves_many_groups_and_queues(tmp_path: Path) -> None:
    with LakeBroker(tmp_path, lakeColdReadBytes=str(1 << 20)) as broker:
        broker.create_topic("t", 3)
        broker.create_topic("filler")
        groups = [f"g{number}" for number in range(3)]
        for group in groups:
            broker.create_group(group)
            for queue_id in range(3):
                broker.reset("t", group, queue_id, 0)
        for number in range(30):
            broker.send("t", b"%d|" % number + b"x" * 100_000)
        broker.retire()
        found: dict[str, list[int]] = {group: [] for group in groups}
        old = broker.broker.parts.old_messages
        assert old is not None
        whole = 0
        for _ in range(200):
            waiting = {
                group: broker.begin_receive("t", group, batch=4, wait_ms=50, invisible_ms=60_000)
                for group in groups
            }
            broker.advance(0.1)
            for group, call in waiting.items():
                found[group] += [int(each.body.split(b"|")[0]) for each in call.messages]
            assert old.bytes <= (1 << 20) + 200_000
            whole += all(len(some) >= 30 for some in found.values())
            if whole == 5:  # what comes again would have come
                break
        assert {group: sorted(some) for group, some in found.items()} == {
            group: list(range(30)) for group in groups
        }
        assert (old.waiting, old.failing) == (0, 0)


def test_groups_that_read_on_share_readings(broker: LakeBroker) -> None:
    for number in range(400):
        broker.send("t", b"%d" % number)
    groups = ["a", "b", "c"]
    for group in groups:
        broker.create_group(group)
        broker.reset("t", group, 0, 0)
    broker.retire()
    old = broker.broker.parts.old_messages
    assert old is not None
    for group in groups:
        assert len(drain(broker, group=group)) == 400
    read = broker.broker.metrics.registry.get_sample_value
    labels = {"cluster": "DefaultCluster", "node_id": "broker-a", "topic": "t"}
    assert read("lakebroker_lake_messages_read_total", labels) == 400, "once for all of them"


def test_a_repeated_attempt_of_an_ordered_group_gets_what_it_took(broker: LakeBroker) -> None:
    broker.create_group("ordered", 3, fifo=True)
    for number in range(4):
        broker.send("t", b"%d" % number, message_group="m", message_type=pb.FIFO)
    broker.reset("t", "ordered", 0, 0)
    broker.retire()
    asked = {"batch": 2, "attempt_id": "x", "invisible_ms": 60_000, "wait_ms": 1000}
    call = broker.begin_receive("t", "ordered", **asked)
    first = call.messages
    assert bodies(first) == [b"0", b"1"]
    assert bodies(broker.begin_receive("t", "ordered", **asked).messages) == [b"0", b"1"]
    broker.crash()
    assert broker.receive("t", "ordered", **{**asked, "wait_ms": 0})[1] == [], "it is being read"
    again = broker.receive("t", "ordered", **{**asked, "wait_ms": 0})[1]
    assert [shown(each) for each in again] == [shown(each) for each in first]
    assert broker.ack("t", "ordered", *again).status.code == pb.OK
    assert bodies(drain(broker, group="ordered")) == [b"2", b"3"]


def test_a_stop_leaves_what_is_being_read(broker: LakeBroker) -> None:
    send(broker, 3)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    back = take_away(broker)
    waiting = broker.begin_receive("t", "g", wait_ms=100_000)
    broker.stop()
    assert waiting.response[0].status.code == pb.MESSAGE_NOT_FOUND
    back()
    broker.restart()
    assert bodies(drain(broker)) == [b"0", b"1", b"2"]
