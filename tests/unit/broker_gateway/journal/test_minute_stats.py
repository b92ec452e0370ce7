"""Minutes in the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.journal.replay import records_from
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.clock import ManualClock
from tests.support.brokers.journaled import batches, no_room, opened


def test_a_call_counts_in_its_own_minute_however_late_the_one_before_is_rolled() -> None:
    clock = ManualClock(59_999)
    with clock.in_place():
        counted = MinuteStatistics()
        counted.count("t", "", 8, 80, None)
        assert counted.roll() == []
        clock.set_wall(60_000)
        counted.count("t", "", 42, 420, None)
        clock.set_wall(180_000)
        counted.count("t", "", 1, 10, None)
        assert [(each.minute_ms, each.messages, each.bytes) for each in counted.roll()] == [
            (0, 8, 80),
            (60_000, 42, 420),
        ]
        assert counted.roll() == []
        assert [(each.minute_ms, each.messages) for each in counted.roll(closing=True)] == [(180_000, 1)]
        assert counted.roll(closing=True) == []


def test_statistics_of_many_topics_fill_several_records(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.minutes.note(
            pb.MinuteStats(topic=f"t{n}" + "x" * 200, minute_ms=60_000) for n in range(5000)
        )
        journaled.tick()
        assert sum(len(batch.stats) for batch in batches(journaled.store)) == 5000
        records = [record for _, record in records_from(journaled.store, JOURNAL_TOPIC, 0, 0)]
        assert max(len(record.body) for record in records) < 1 << 19


def test_a_minute_is_written_once_or_never(tmp_path: Path) -> None:
    """The lake counts rows: one that came a second time would count twice."""
    with opened(tmp_path) as journaled:
        journaled.store.inject("append", no_room())
        journaled.minutes.note([pb.MinuteStats(topic="lost", minute_ms=60_000)])
        with pytest.raises(OSError, match="No space"):
            journaled.journal.write()
        for _ in range(2):
            journaled.minutes.note([pb.MinuteStats(topic="kept", minute_ms=120_000)])
            journaled.journal.write(at_once=True)
        journaled.journal.write_snapshot()
        assert [each.topic for batch in batches(journaled.store) for each in batch.stats] == ["kept"] * 2
