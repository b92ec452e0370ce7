"""A broker whose disk is gone starts from the lake: as far as the lake goes, it knows what the old one knew."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.lake.broker_state import read_broker_state
from broker_gateway.lake.reader import Lake
from broker_gateway.metadata.catalog import MAX_QUEUES, Group, Topic
from broker_gateway.metadata.names import NAME_PATTERN
from broker_gateway.migration.from_lake import Restored, start_from_lake
from broker_gateway.runtime.errors import StartError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from structured_streaming.tables import TABLES
from tests.support.brokers.restored import BATCH_BYTES, new_store
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.maintained import reput
from tests.support.lakes.staged import StagedLake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.logs.raw import Raw, log_of

Open = dict[QueueKey, tuple[int, dict[int, int], list[tuple[int, int]]]]
"""Committed offset, attempts of what was handed out and is open, ranges never handed out; by group, topic and queue."""


def restored(lake: Path, folder: Path, broker: str = "broker-a") -> Restored | None:
    with new_store(folder / "store", broker) as store:
        return start_from_lake(Lake(str(lake)), store)


def open_of(deliveries: DeliveryTable, ends: dict[tuple[str, int], int]) -> Open:
    """What a broker has open, its own log's as well as that which only the lake has."""
    found: Open = {}
    for state in deliveries.queues():
        messages = {each.queue_offset: each.attempt for each in state.lake_only.messages}
        messages |= {offset: each.attempt for offset, each in state.in_flight.items()}
        spans = list(state.lake_only.spans)
        end = ends.get((state.key.topic, state.key.queue_id), 0)
        if state.position < end:
            spans.append((state.position, end))
        found[state.key] = (state.committed, messages, spans)
    for group, topic, _ in list(found):
        for (name, queue_id), end in ends.items():
            if name == topic and end:  # where the group had nothing yet, all is unread
                found.setdefault(QueueKey(group, topic, queue_id), (0, {}, [(0, end)]))
    return found


def ends_of(broker: InProcessBroker) -> dict[tuple[str, int], int]:
    index = broker.store.index
    return {queue: index.max_offset(*queue) for queue in index.queues()}


def busy_broker(broker: InProcessBroker) -> None:
    """All kinds of what a group can have open, and a topic and a group that were deleted and made again."""
    parts = broker.broker.parts
    broker.create_topic("orders", 3)
    broker.create_group("billing", 1)
    for number in range(30):
        broker.send("orders", b"%d" % number, tag="even" if number % 2 == 0 else "odd")
    first = broker.receive("orders", "billing", batch=8, invisible_ms=60_000)[1]
    broker.ack("orders", "billing", *first[2:5])
    broker.change_invisible("orders", "billing", first[0], 10)
    broker.dead_letter("orders", "billing", first[1])
    broker.advance(1)
    broker.receive("orders", "billing", batch=2, invisible_ms=60_000)
    everything = broker.receive("orders", "audit", batch=32, invisible_ms=60_000)[1]
    broker.ack("orders", "audit", *everything)
    some = broker.receive("orders", "reset", batch=32, invisible_ms=60_000)[1]
    broker.ack("orders", "reset", *some)
    broker.reset("orders", "reset", 1, 4)
    for name in ("again", "gone"):
        broker.create_topic(name, 2)
        broker.send(name, b"1", b"2")
        broker.receive(name, "audit", invisible_ms=60_000)
        broker.do(partial(parts.topics.delete, name))
    broker.create_topic("again", 2)
    broker.send("again", b"3")
    broker.receive("again", "late", batch=1, invisible_ms=60_000)
    broker.send("again", b"4")
    broker.receive("orders", "left", batch=5, invisible_ms=60_000)
    broker.do(partial(parts.groups.delete, "left", clean_offsets=True))


def test_a_new_disk_goes_on_where_the_lake_ends(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        busy_broker(old)
        before, ends = open_of(old.broker.deliveries, ends_of(old)), ends_of(old)
        topics = {each.name: each for each in old.broker.catalog.topics()}
        groups = {each.name: each for each in old.broker.catalog.groups()}
    reput(old.root, lake, BATCH_BYTES)

    taken = restored(lake, tmp_path / "new")
    assert taken is not None
    assert taken.logs == 1
    assert restored(lake, tmp_path / "new") is None, "once is enough"
    with InProcessBroker(tmp_path / "new", brokerName="broker-a") as new:
        assert {each.name: each for each in new.broker.catalog.topics()} == topics
        assert {each.name: each for each in new.broker.catalog.groups()} == groups
        assert "gone" not in topics
        after = ends_of(new)
        assert {queue: after.get(queue, 0) >= end for queue, end in ends.items()} == dict.fromkeys(ends, True)
        assert open_of(new.broker.deliveries, after) == before
        assert taken.waiting == sum(
            len(messages) + sum(stop - start for start, stop in spans)
            for _, messages, spans in before.values()
        )

        status, found = new.receive("orders", "billing")
        assert (status, found) == (pb.MESSAGE_NOT_FOUND, []), "what only the lake has is not delivered"
        sent = [new.send("orders", b"new %d" % number).entries[0] for number in range(3)]
        got = new.receive("orders", "billing")[1]
        assert {each.system_properties.message_id for each in got} == {each.message_id for each in sent}
        new.ack("orders", "billing", *got)
        assert {
            key: open_
            for key, open_ in open_of(new.broker.deliveries, ends_of(new)).items()
            if "billing" in key
        } == {key: open_ for key, open_ in before.items() if "billing" in key}, "they stay open"
        new.crash()
        (queue_id,) = {each.system_properties.queue_id for each in got[:1]}
        assert new.committed("orders", "billing", queue_id) == before["billing", "orders", queue_id][0]
        new.reset("orders", "billing", queue_id, after["orders", queue_id])
        assert not new.broker.deliveries.queue(QueueKey("billing", "orders", queue_id)).lake_only


def test_a_second_loss_and_a_crash_in_between(tmp_path: Path) -> None:
    """The logs of two lost disks: the second began with what the first had open, and at first could not be written."""
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "one", brokerName="broker-a") as one:
        one.create_topic("t", 1)
        for number in range(300):  # a snapshot of several records
            one.create_topic(f"other-{number}", 1)
        one.send("t", *[b"%d" % number for number in range(6)])
        got = one.receive("t", "g", batch=3, invisible_ms=60_000)[1]
        one.ack("t", "g", got[1])
    reput(one.root, lake, BATCH_BYTES)
    with new_store(tmp_path / "two" / "store") as store:
        store.inject("append", OSError(errno.ENOSPC, "No space left on device"), after=1)
        with pytest.raises(OSError, match="No space"):
            start_from_lake(Lake(str(lake)), store)
        assert store.max_offset, "a part of the snapshot is in the log"
    taken = restored(lake, tmp_path / "two")
    with InProcessBroker(tmp_path / "two", brokerName="broker-a") as two:
        assert taken is not None
        assert taken.logs == 1
        two.send("t", *[b"%d" % number for number in range(6, 10)])
        got = two.receive("t", "g", batch=2, invisible_ms=60_000)[1]
        assert [each.body for each in got] == [b"6", b"7"]
        two.ack("t", "g", got[0])
        before, ends = open_of(two.broker.deliveries, ends_of(two)), ends_of(two)
    assert before == {QueueKey("g", "t", 0): (0, {0: 1, 2: 1, 7: 1}, [(3, 6), (8, 10)])}
    reput(two.root, lake, BATCH_BYTES)

    taken = restored(lake, tmp_path / "three")
    assert taken is not None
    assert taken.logs == 2
    with InProcessBroker(tmp_path / "three", brokerName="broker-a") as three:
        assert open_of(three.broker.deliveries, ends_of(three)) == before
        assert ends_of(three)["t", 0] == ends["t", 0] == 10
        sent = three.send("t", b"10").entries[0]
        assert sent.offset == 10
        three.restart()
        assert [each.body for each in three.receive("t", "g")[1]] == [b"10"]


def test_what_has_messages_or_is_unknown_is_left_alone(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert restored(lake, tmp_path / "none") is None, "there is no lake yet"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 1)
        old.send("t", b"1", b"2")
    reput(old.root, lake, BATCH_BYTES)
    assert restored(lake, tmp_path / "other", "broker-b") is None, "the lake has nothing of that broker"
    with InProcessBroker(tmp_path / "used", brokerName="broker-a") as used:
        used.create_topic("t", 1)
        used.send("t", b"1")
    assert restored(lake, tmp_path / "used") is None
    with InProcessBroker(tmp_path / "touched", brokerName="broker-a") as touched:
        touched.create_topic("mine", 1)
    assert restored(lake, tmp_path / "touched") is not None, (
        "no message, and queues that end below the lake's"
    )
    with InProcessBroker(tmp_path / "touched", brokerName="broker-a") as touched:
        assert {"mine", "t"} <= {each.name for each in touched.broker.catalog.topics()}
        assert touched.send("t", b"3").entries[0].offset == 2


def test_a_lake_that_cannot_be_read_keeps_an_empty_store_from_starting(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 1)
        old.send("t", b"1")
    reput(old.root, lake, BATCH_BYTES)
    for file in (lake / "consume_queue").glob("*.parquet"):
        file.write_bytes(b"torn")
    with pytest.raises(StartError, match=r"cannot be read.*consume_queue.*without lakeLocation"):
        restored(lake, tmp_path / "new")


def test_a_lake_without_topics_of_its_own(tmp_path: Path) -> None:
    """As that of a real broker's log: topics are those of its messages."""
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 3)
        for _ in range(3):
            old.send("t", b"1")
    reput(old.root, lake, BATCH_BYTES)
    for name in ("topics", "consumer_groups", "consumer_offsets", "delivery_events"):
        shutil.rmtree(lake / name)
    assert restored(lake, tmp_path / "new") == Restored(logs=1, topics=1, groups=0, queues=0, waiting=0)
    with InProcessBroker(tmp_path / "new", brokerName="broker-a") as new:
        topic = new.broker.catalog.topic("t")
        assert topic is not None
        assert topic.queues == 3
        assert new.send("t", b"2").entries[0].offset == 1


@pytest.mark.parametrize("column", [True, False])
def test_other_fields_of_topics_and_groups_come_back(tmp_path: Path, column: bool) -> None:
    """Unless a reput of an earlier version, which did not write them, made the lake."""
    lake = tmp_path / "lake"
    topic, group = (
        Topic("t", 2, 2, created_ms=5, others='{"topicSysFlag":1}'),
        Group("g", 3, created_ms=5, others='{"brokerId":7}'),
    )
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.do(partial(old.broker.parts.topics.put, topic, shrink=False))
        old.do(partial(old.broker.parts.groups.put, group))
        old.send("t", b"1")
    reput(old.root, lake, BATCH_BYTES)
    for name in ("topics", "consumer_groups") if not column else ():
        rows = DeltaTable(str(lake / name)).to_pyarrow_table().drop_columns("other_fields")
        write_deltalake(str(lake / name), rows, mode="overwrite", schema_mode="overwrite")
        assert "other_fields" not in DeltaTable(str(lake / name)).to_pyarrow_table().column_names
    assert restored(lake, tmp_path / "new") is not None
    with InProcessBroker(tmp_path / "new", brokerName="broker-a") as new:
        catalog = new.broker.catalog
        assert catalog.topic("t") == (topic if column else replace(topic, others=""))
        assert catalog.group("g") == (group if column else replace(group, others=""))


def test_logs_that_knew_nothing_of_each_other(tmp_path: Path) -> None:
    """The second began at queue offset 0 too: on an empty disk, without the lake."""
    lake = tmp_path / "lake"
    for name, messages in (("one", 20), ("two", 6)):
        with InProcessBroker(tmp_path / name, brokerName="broker-a") as broker:
            broker.create_topic("t", 1)
            broker.send("t", *[b"%d" % number for number in range(messages)])
            got = broker.receive("t", "g", batch=3, invisible_ms=60_000)[1]
            broker.ack("t", "g", got[1])
        reput(broker.root, lake, BATCH_BYTES)
    assert restored(lake, tmp_path / "three") is not None
    with InProcessBroker(tmp_path / "three", brokerName="broker-a") as three:
        assert ends_of(three)["t", 0] == 20
        assert open_of(three.broker.deliveries, ends_of(three)) == {
            QueueKey("g", "t", 0): (0, {0: 1, 2: 1}, [(3, 20)])
        }


def test_records_that_no_topic_of_a_broker_has(tmp_path: Path) -> None:
    """Heads of records have no CRC: damage in them gets into the lake."""
    lake = StagedLake(tmp_path / "lake")
    lake.take(
        log_of(
            Raw(topic=b"t", queue_offset=2),
            Raw(topic=b"t", queue_id=-1, queue_offset=4),
            Raw(topic=b"t", queue_id=MAX_QUEUES, queue_offset=4),
            *[Raw(topic=name) for name in (b"", b"a\x00\nb", b"x" * 256)],
        ),
        broker="broker-a",
    )
    location = str(lake.folder)
    with InProcessBroker(tmp_path / "new", brokerName="broker-a", lakeLocation=location) as new:
        names = {
            each.name for each in new.broker.catalog.topics() if NAME_PATTERN.fullmatch(each.name) is None
        }
        assert (names, new.broker.catalog.topic("x" * 256)) == (set(), None)
        new.do(partial(new.broker.parts.topics.delete, "t"))
        new.crash()
        assert new.broker.catalog.topic("t") is None, "it was started from the lake before"


def test_topics_that_were_made_again_take_one_look_for_all_of_them(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    names = [f"again-{number}" for number in range(12)]
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        for name in names:
            old.create_topic(name, 1)
            old.send(name, b"1", b"2")
            old.do(partial(old.broker.parts.topics.delete, name))
            old.create_topic(name, 1)
            old.send(name, b"3")
            old.receive(name, "g", invisible_ms=60_000)
            old.send(name, b"4")
    reput(old.root, lake, BATCH_BYTES)
    looks: list[str] = []
    state = read_broker_state(Lake(str(lake)), "broker-a", looks.append)
    assert looks.count("consume_queue") == 2
    assert {each.key: (each.committed, each.lake_only.spans) for each in state.queues} == {
        QueueKey("g", name, 0): (2, ((3, 4),)) for name in names
    }


def test_a_copy_in_the_dead_letters_settles_what_was_handed_out_before_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 1)
        old.send("t", b"1", b"2")
        first, second = old.receive("t", "g", batch=2, invisible_ms=60_000)[1]
        old.dead_letter("t", "g", first)
        old.dead_letter("t", "g", second)
        old.reset("t", "g", 0, 0)
        old.receive("t", "g", batch=1, invisible_ms=60_000)
        before, ends = open_of(old.broker.deliveries, ends_of(old)), ends_of(old)
        assert before == {QueueKey("g", "t", 0): (0, {0: 1}, [(1, 2)])}
    reput(old.root, lake, BATCH_BYTES)
    restored(lake, tmp_path / "new")
    with InProcessBroker(tmp_path / "new", brokerName="broker-a") as new:
        assert open_of(new.broker.deliveries, ends) == before


def test_a_lake_whose_first_batch_was_cut_off_gives_no_place_twice(tmp_path: Path) -> None:
    """Rows of consume_queue, and no progress that names them."""
    lake = tmp_path / "lake"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 1)
        old.send("t", b"1", b"2")
    empty_lake(str(lake))
    start, end = cuts(old.root, 1)
    commit(lake, manifest(lake, old.root, start, end), crash_after="consume_queue")
    assert restored(lake, tmp_path / "new") is not None
    with InProcessBroker(tmp_path / "new", brokerName="broker-a") as new:
        assert new.send("t", b"3").entries[0].offset == 2


PLACE = {"broker": "broker-a", "log_id": "log-1", "physical_offset": 0, "ordinal": 0}
STATE = {**PLACE, "consumer_group": "g", "topic": "t", "queue_id": 0}


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("reput_progress", {"broker": "broker-a"}),
        ("consume_queue", {**PLACE, "topic": "t", "queue_id": 0}),
        ("topics", {**PLACE, "topic": "t", "deleted": False}),
        ("consumer_groups", {**PLACE, "consumer_group": "g", "deleted": False}),
        ("delivery_events", {**STATE, "queue_offset": 1, "event": "delivered"}),
        ("consumer_offsets", {**PLACE, "consumer_group": "h", "topic": "t", "queue_id": 0}),
    ],
)
def test_a_table_that_was_altered_by_hand_is_named(
    tmp_path: Path, table: str, row: dict[str, object]
) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(Raw(topic=b"t", queue_offset=2)), broker="broker-a")
    rows = [("consumer_offsets", {**STATE, "committed_offset": 0}), (table, row)]
    for name, values in rows:
        schema = pa.schema([(each.name, each.type) for each in TABLES[name].columns])
        write_deltalake(str(lake.folder / name), pa.Table.from_pylist([values], schema), mode="append")
    with pytest.raises(
        StartError, match=rf"{table} has rows of broker-a without .*altered by hand.*Make the lake"
    ):
        restored(lake.folder, tmp_path / "new")


@pytest.mark.parametrize(("read", "write"), [(MAX_QUEUES + 1, 1), (1, MAX_QUEUES + 1), (-1, 1), (1, -1)])
def test_a_topic_of_more_queues_than_can_be_is_named(tmp_path: Path, read: int, write: int) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(Raw(topic=b"t", queue_offset=2)), broker="broker-a")
    configuration = {"read_queues": read, "write_queues": write, "permission": 6}
    row = {**PLACE, "topic": "t", "deleted": False, "configuration": configuration}
    schema = pa.schema([(each.name, each.type) for each in TABLES["topics"].columns])
    write_deltalake(str(lake.folder / "topics"), pa.Table.from_pylist([row], schema), mode="append")
    with pytest.raises(
        StartError, match=r"topics has the topic 't' of broker-a with .* queues, at most 1024"
    ):
        restored(lake.folder, tmp_path / "new")


def test_a_wrong_place_or_name_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    assert restored(lake, tmp_path / "one") is None
    assert "there is no lake in lakeLocation yet" in capsys.readouterr().out
    empty_lake(str(lake))
    assert restored(lake, tmp_path / "two") is None
    assert "queues begin at offset 0" not in capsys.readouterr().out, "a lake without any broker is a new one"
    with InProcessBroker(tmp_path / "old", brokerName="broker-a") as old:
        old.create_topic("t", 1)
        old.send("t", b"1")
    reput(old.root, lake, BATCH_BYTES)
    capsys.readouterr()
    assert restored(lake, tmp_path / "three", "broker-A") is None
    assert "lake_has=['broker-a']" in capsys.readouterr().out
