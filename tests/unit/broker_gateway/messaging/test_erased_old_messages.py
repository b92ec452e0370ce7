"""Erased messages that are in the lake alone: nobody gets them, whether they were purged there or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker_gateway.journal.erasures import Log, erasure
from broker_gateway.lake.messages import LakeMessages, Stretch
from broker_gateway.messaging.erasing import Asked
from broker_gateway.messaging.message_search import Wanted
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from structured_streaming.tables import ERASURES
from tests.support.brokers.journaled import batches
from tests.support.brokers.with_lake import LakeBroker

COUNT = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        for topic in ("t", "filler"):
            made.create_topic(topic)
        made.create_group("g", 2)
        for number in range(COUNT):
            made.send("t", b"%d" % number, keys=["gone" if number % 4 == 1 else f"k{number}"])
        made.reset("t", "g", 0, 0)
        made.retire()
        assert made.min_offset("t") == COUNT
        yield made


LEFT = [b"%d" % number for number in range(COUNT) if number % 4 != 1]


def drain(broker: LakeBroker, group: str = "g", topic: str = "t") -> list[bytes]:
    """Everything that is there, acknowledged."""
    found: list[bytes] = []
    for _ in range(1000):
        waiting = broker.begin_receive(topic, group, wait_ms=1000, invisible_ms=60_000)
        if not waiting.done:
            broker.hang_up(waiting)
            return found
        assert waiting.response[0].status.code == pb.OK
        assert broker.ack(topic, group, *waiting.messages).status.code == pb.OK
        found += [each.body for each in waiting.messages]
    raise AssertionError("no end")


def places(broker: LakeBroker) -> list[tuple[str, str, list[int]]]:
    """Where the lake has the messages with the key."""
    table = DeltaTable(str(broker.lake / "message_index")).to_pyarrow_table()
    rows = [row for row in table.to_pylist() if row["key"] == "gone"]
    offsets = sorted(row["physical_offset"] for row in rows)
    assert len(offsets) == COUNT // 4
    return [(rows[0]["broker"], rows[0]["log_id"], offsets)]


def asked_for(broker: LakeBroker) -> None:
    broker.run(broker.broker.parts.erasing.erase(Asked("t", ["gone"], records=places(broker))))


def asked_for_elsewhere(broker: LakeBroker) -> None:
    """The broker never heard of it: the lake's table says so."""
    ((name, log_id, offsets),) = places(broker)
    count = len(offsets)
    columns: dict[str, object] = {
        "erased_broker": [name] * count,
        "erased_log_id": [log_id] * count,
        "erased_physical_offset": offsets,
        "ordinal": list(range(count)),
        "broker": [""] * count,
        "log_id": ["f" * 32] * count,
        "physical_offset": [0] * count,
    }
    schema = ERASURES.schema
    rows = [pa.array(columns.get(field.name, [None] * count), field.type) for field in schema]
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    write_deltalake(str(broker.lake / "erasures"), pa.table(rows, nullable), mode="append")


def purged(broker: LakeBroker) -> None:
    """The rows are gone, of all tables or, where it was killed, of `messages` alone."""
    ((_, _, offsets),) = places(broker)
    named = ", ".join(map(str, offsets))
    DeltaTable(str(broker.lake / "messages")).delete(f"physical_offset in ({named})")


WAYS = pytest.mark.parametrize("way", [asked_for, asked_for_elsewhere, purged], ids=lambda way: way.__name__)


@WAYS
def test_a_receive_passes_over_them(broker: LakeBroker, way: Callable[[LakeBroker], None]) -> None:
    way(broker)
    broker.send("t", b"new")
    assert drain(broker) == [*LEFT, b"new"]
    assert broker.committed("t", "g") == COUNT + 1


@pytest.mark.parametrize("again", ["crash", "restart"])
def test_it_lasts(broker: LakeBroker, again: str) -> None:
    asked_for(broker)
    for _ in range(2):
        getattr(broker, again)()
    assert drain(broker) == LEFT


def test_what_is_in_memory_is_let_go(broker: LakeBroker) -> None:
    (first,) = broker.begin_receive("t", "g", batch=1, wait_ms=1000, invisible_ms=10_000).messages
    assert first.body == b"0"
    asked_for(broker)
    broker.ack("t", "g", first)
    assert drain(broker) == LEFT[1:]


def test_a_message_in_flight_is_not_delivered_again(broker: LakeBroker) -> None:
    some = broker.begin_receive("t", "g", batch=2, wait_ms=1000, invisible_ms=10_000).messages
    assert [each.body for each in some] == [b"0", b"1"]
    asked_for(broker)
    broker.advance(11)
    assert sorted(drain(broker)) == sorted(LEFT)
    assert broker.committed("t", "g") == COUNT


def test_what_becomes_of_one_in_flight_names_none(broker: LakeBroker) -> None:
    """The log does not say any more whose records were erased: none of the messages that it has no more is named."""
    some = broker.begin_receive("t", "g", batch=2, wait_ms=1000, invisible_ms=10_000).messages
    (new,) = broker.send("t", b"new").entries
    asked_for(broker)
    written = len(batches(broker.store))
    broker.ack("t", "g", *some)
    drain(broker)
    told = [
        (offset, message_id)
        for batch in batches(broker.store)[written:]
        for queue in batch.queues
        for events in queue.events
        for offset, message_id in zip(events.queue_offset, events.message_id, strict=True)
    ]
    assert {message_id for offset, message_id in told if offset < COUNT} == {""}
    assert {message_id for offset, message_id in told if offset >= COUNT} == {new.message_id}


@WAYS
def test_a_search_finds_none(broker: LakeBroker, way: Callable[[LakeBroker], None]) -> None:
    topic = broker.broker.catalog.topic("t")
    assert topic is not None
    queries = broker.broker.parts.message_queries

    def found(**wanted: str) -> list[bytes]:
        page = broker.run(queries.page(topic, Wanted(**wanted), 100))  # type: ignore[arg-type]
        return sorted(bytes(each.record.body) for each in page.messages)

    assert len(found(key="gone")) == COUNT // 4
    way(broker)
    assert found(key="gone") == []
    assert found() == sorted(LEFT)


def test_a_reading_that_was_under_way_is_done_again(
    broker: LakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, known = broker.broker.parts.old_messages, broker.broker.core.erasures
    assert old is not None
    read, readings = LakeMessages.read, 0

    def with_an_erasure(self: LakeMessages, *asked: Any) -> Stretch:
        nonlocal readings
        found, readings = read(self, *asked), readings + 1
        if readings == 1:
            ((name, log_id, offsets),) = places(broker)
            known.add([erasure(Log(name, log_id, own=True), offsets, 0)])
            old.forget()
        return found

    monkeypatch.setattr(LakeMessages, "read", with_an_erasure)
    assert drain(broker) == LEFT
    assert readings == 2
