"""A broker in this process with a lake, to which its log goes when the test says so, and whose old segments go then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker_gateway.lake.reader import Lake
from lakebroker_testing.broker import InProcessBroker
from store.log_source import FolderLog
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest

SEGMENT = 1 << 20
_ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))


class LakeBroker(InProcessBroker):
    """Its lake is `lake`, beside the store."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.lake = folder / "lake"
        empty_lake(self.lake)
        given = {
            "lakeLocation": str(self.lake),
            "mappedFileSizeCommitLog": str(SEGMENT),
            "deleteWhen": _ALWAYS,
            "fileReservedTime": "0",
            "cleanResourceInterval": "3600000",
            "brokerName": "broker-a",
        }
        super().__init__(folder, **given | options)

    def dispatch(self) -> None:
        """All that the log has goes into the lake."""
        self.flush()
        dispatch(self.lake, self.root)

    def fill_segment(self) -> None:
        """Has the log go on in another segment."""
        start = self.store.max_offset // SEGMENT
        while self.store.max_offset // SEGMENT == start:
            self.send("filler", bytes(60_000))

    def retire(self) -> int:
        """Deletes all segments that may go, with nothing but time in their way; how many went."""
        self.fill_segment()
        self.dispatch()
        gone = 0
        for _ in range(6):
            for path in (self.root / "commitlog").iterdir():
                os.utime(path, (1, 1))
            gone += self.run(self.broker.retention.run_once())
            for _ in range(20):
                self.settle()
            self.flush()
            self.dispatch()
        return gone

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """The first queue offset that the log has."""
        return self.store.index.min_offset(topic, queue_id)


def dispatch(lake: Path, store: Path) -> None:
    """All of a log that is flushed and not in the lake yet."""
    log = FolderLog(store)
    state = log.describe()
    log.close()
    start = max(Lake(str(lake)).dispatched_to(state.broker, state.log_id), state.start)
    end = cuts(store, 1)[-1]
    if start < end:
        commit(lake, manifest(lake, store, start, end))
