"""topics and consumer_groups: what a broker journaled of them, and what it wrote down again in a snapshot."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker_gateway.metadata.catalog import Group, Topic
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.rows.journal import JournalRows
from structured_streaming.rows.records import Records

PLACE = {"broker": "b", "log_id": "l", "physical_offset": 7}


def rows(store: Path, table: str) -> list[dict[str, Any]]:
    """What the store's log says, in its order."""
    reader = LogReader(store)
    found: list[dict[str, Any]] = []
    for offset, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 1 << 30):
        records = Records(reader.broker, reader.log_id, scan(data, offset))
        found += next(each for table_, each in records.journal.tables() if table_.name == table).to_pylist()
    reader.close()
    return found


def tables_of(batch: pb.Batch) -> dict[str, pa.Table]:
    batch.version = 1
    journal = JournalRows()
    journal.read([(0, batch.SerializeToString(), PLACE)])
    assert journal.bad == []
    return {table.name: each for table, each in journal.tables()}


def test_what_a_broker_journals_of_its_topics_and_groups(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as process:
        catalog, parts = process.broker.catalog, process.broker.parts
        topic = Topic("orders", 4, 2, 4, ("FIFO",), 1_700_000_000_123, True, '{"topicSysFlag":1}')
        process.do(partial(parts.topics.put, topic, shrink=False))
        process.do(partial(parts.topics.put, Topic("orders", 8, 8), shrink=False))
        process.do(
            partial(
                parts.groups.put,
                Group("billing", 3, True, False, first_used_by="1.2.3.4", others='{"brokerId":7}'),
            )
        )
        process.do(partial(parts.topics.delete, "orders"))
        process.do(partial(parts.groups.delete, "billing", clean_offsets=True))
        process.do(partial(parts.topics.put, Topic("kept", 1, 1), shrink=False))
        process.do(process.broker.journal.write_snapshot)
        known = {each.name for each in catalog.topics()}
        store = process.store.root
    changes = [row for row in rows(store, "topics") if row["topic"] == "orders"]
    first = changes[0]["configuration"]
    created = first.pop("created_timestamp")
    assert created.timestamp() == 1_700_000_000.123
    assert first == {
        "read_queues": 4,
        "write_queues": 2,
        "permission": 4,
        "message_types": ["FIFO"],
        "is_ordered": True,
    }
    assert changes[1]["configuration"]["read_queues"] == 8
    assert [(row["deleted"], row["restated"]) for row in changes[:3]] == [
        (False, False),
        (False, False),
        (True, False),
    ]
    assert changes[2]["configuration"] is None
    assert [row["other_fields"] for row in changes[:3]] == ['{"topicSysFlag":1}', None, None]
    restated = {row["topic"] for row in rows(store, "topics") if row["restated"] and not row["deleted"]}
    assert restated == known
    group, gone = (row for row in rows(store, "consumer_groups") if row["consumer_group"] == "billing")
    assert group["configuration"]["first_used_by"] == "1.2.3.4"
    assert {name: group["configuration"][name] for name in ("retry_max_times", "is_fifo", "is_consume_enabled")} == {
        "retry_max_times": 3, "is_fifo": True, "is_consume_enabled": False,
    }  # fmt: skip
    assert group["other_fields"] == '{"brokerId":7}'
    assert (gone["deleted"], gone["configuration"], gone["other_fields"]) == (True, None, None)


def test_rows_count_in_the_order_of_the_record() -> None:
    batch = pb.Batch(timestamp_ms=5)
    for name in ("c", "a", "b"):
        batch.topics.add(topic=name)
        batch.groups.add(group=name)
    found = tables_of(batch)
    assert (
        found["topics"]["topic"].to_pylist()
        == found["consumer_groups"]["consumer_group"].to_pylist()
        == ["c", "a", "b"]
    )
    assert (
        found["topics"]["ordinal"].to_pylist() == found["consumer_groups"]["ordinal"].to_pylist() == [0, 1, 2]
    )


def test_a_snapshot_has_no_other_rows_and_one_that_makes_up_for_a_lost_append_is_a_change() -> None:
    for snapshot_id, restated in (("id", True), ("", False)):
        batch = pb.Batch(snapshot=pb.SnapshotPart(snapshot_id=snapshot_id))
        batch.topics.add(topic="t")
        batch.queues.add(consumer_group="g", topic="t", has_committed=True, committed=3)
        batch.stats.add(topic="t")
        found = tables_of(batch)
        assert {name: each.num_rows for name, each in found.items() if each.num_rows} == {"topics": 1}
        assert found["topics"]["restated"].to_pylist() == [restated]


def test_times_that_no_column_holds_are_null() -> None:
    for created in (0, -5, (1 << 63) - 1, 253_402_300_800_000):
        batch = pb.Batch()
        batch.topics.add(topic="t", created_ms=created)
        batch.groups.add(group="g", created_ms=created)
        for table in ("topics", "consumer_groups"):
            (row,) = tables_of(batch)[table].to_pylist()
            assert row["configuration"]["created_timestamp"] is None
