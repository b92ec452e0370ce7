"""Records of the journal: what they are in the log, and what cannot be read of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_gateway.journal.record import (
    EVENTS_TAG,
    SNAPSHOT_TAG,
    VERSION,
    JournalVersionError,
    decode,
    encode,
)
from broker_gateway.journal.replay import records_from
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.faults import FaultyStore
from store.log.record import tags_code
from tests.support.brokers.journal_counts import Counted
from tests.support.brokers.journaled import append_body, opened_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FaultyStore]:
    with opened_store(tmp_path) as store:
        yield store


def test_a_field_that_nobody_knows_is_left_out(store: FaultyStore) -> None:
    """A later lakebroker may have one more contributor, whose field this one does not have."""
    known = pb.Batch(version=1, groups=[pb.GroupChange(group="a", retry_max_times=7)]).SerializeToString()
    unknown = b"\xa2\x06\x03xyz"  # field 100, three bytes
    append_body(store, unknown + known + unknown)
    assert Counted(store).numbers() == ({"a": 7}, {})


def test_a_later_version_is_refused(store: FaultyStore) -> None:
    append_body(store, pb.Batch(version=1).SerializeToString())
    offset = store.max_offset
    append_body(store, pb.Batch(version=4).SerializeToString())
    with pytest.raises(JournalVersionError, match=f"offset {offset} has version 4, .* reads up to 3; start"):
        Counted(store)


def test_what_does_not_decode_is_skipped_and_said(store: FaultyStore) -> None:
    counted = Counted(store)
    counted.one.count("a", 1)
    counted.tick()
    append_body(store, b"\xff")
    counted.one.count("b", 2)
    counted.tick()
    with capture_logs() as logs:
        assert Counted(store).numbers() == counted.numbers()
    assert [each["event"] for each in logs] == ["journal record does not decode; skipped"]


@pytest.mark.parametrize("tag", [EVENTS_TAG, SNAPSHOT_TAG])
def test_a_batch_is_read_back_with_its_version_and_time(store: FaultyStore, tag: str) -> None:
    """Its tag is that of a message: who looks for snapshots finds them by the code in the index."""
    batch, clock = pb.Batch(groups=[pb.GroupChange(group="a", retry_max_times=7)]), ManualClock()
    with clock.in_place():
        store.append([encode(batch, tag, store.store_host.packed)])
    ((_, record),) = records_from(store, JOURNAL_TOPIC, 0, 0)
    assert (record.topic, record.queue_id, record.born_host) == (JOURNAL_TOPIC, 0, store.store_host)
    assert record.properties_map()["TAGS"] == tag
    assert store.index.entries(JOURNAL_TOPIC, 0, 0, 1).codes.tolist() == [tags_code(tag)]
    read = decode(record)
    assert read is not None
    assert (read.version, read.timestamp_ms, record.born_timestamp) == (VERSION, clock.now_ms, clock.now_ms)
    assert list(read.groups) == list(batch.groups)
