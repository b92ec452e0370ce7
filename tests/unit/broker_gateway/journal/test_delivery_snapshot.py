"""A group's state on a queue as pieces of a snapshot, which stay small."""

from __future__ import annotations

from pathlib import Path

from broker_gateway.delivery.queue_delivery import QueueKey
from tests.unit.broker_gateway.journal.journaled import opened, parts


def test_records_stay_small_whatever_ids_are(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.fly(QueueKey("g", "t", 0), 900, message="\U0001f600" * 255, client="\U0001f600" * 255)
        journaled.journal.write_snapshot()
        assert max(part.ByteSize() for part in parts(journaled.store)) < 1 << 19
        assert journaled.replayed() == journaled.told()
