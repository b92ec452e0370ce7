"""Receiving what the log has no more: from the lake, as if it were still there."""

from __future__ import annotations

import gzip
import hashlib
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from broker_gateway.messaging.outcome import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import message, send_request
from structured_streaming.lake import create_tables
from tests.lake_broker import LakeBroker, dispatch


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        made.create_topic("t")
        made.create_topic("filler")
        made.create_group("g", 3)
        yield made


def drain(broker: LakeBroker, topic: str = "t", group: str = "g", **asked: object) -> list[pb.Message]:
    """Everything that is there, in the order that it comes."""
    found: list[pb.Message] = []
    for _ in range(1000):
        waiting = broker.begin_receive(topic, group, **{"wait_ms": 1000, "invisible_ms": 60_000, **asked})
        if not waiting.done:
            broker.hang_up(waiting)
            return found
        assert waiting.response[0].status.code == pb.OK
        found += waiting.messages
    raise AssertionError("no end")


def bodies(messages: list[pb.Message]) -> list[bytes]:
    return [each.body for each in messages]


def send(broker: LakeBroker, count: int, topic: str = "t", **system: object) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    broker.send(topic, *sent, **system)
    return sent


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
    shutil.copytree(broker.lake, aside)
    if instead == "a damaged file":
        for data in (broker.lake / "messages").glob("*.parquet"):
            data.write_bytes(data.read_bytes()[:500])
    else:
        shutil.rmtree(broker.lake)
        if instead == "a file":
            broker.lake.write_text("no folder")
        elif instead == "an empty lake":
            create_tables(str(broker.lake))
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


def test_what_expired_in_the_lake_is_passed_over(broker: LakeBroker) -> None:
    sent = send(broker, 10)
    broker.reset("t", "g", 0, 0)
    broker.retire()
    table = DeltaTable(str(broker.lake / "messages"))
    table.delete("topic = 't' AND (queue_offset < 3 OR queue_offset = 6)")
    assert bodies(drain(broker)) == [*sent[3:6], *sent[7:]]
    broker.stop()
    dispatch(broker.lake, broker.root)
    events = DeltaTable(str(broker.lake / "delivery_events")).to_pyarrow_table()
    skipped = events.filter(pc.equal(events["event"], "skipped"))
    assert sorted(skipped["queue_offset"].to_pylist()) == [0, 1, 2, 6]


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


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_receives_retention_and_restarts_gives_each_message_once_in_order(
    broker: LakeBroker, seed: int
) -> None:
    chance = random.Random(seed)
    broker.create_topic("t", 2)
    for queue_id in range(2):
        broker.reset("t", "g", queue_id, 0)
    sent, found = 0, dict[int, list[int]]()
    for _ in range(60):
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
