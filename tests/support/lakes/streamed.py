"""A reput without Spark: its source is asked for batches as Spark asks it, and its sink commits them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.report import BatchReport
from structured_streaming.lake import create_tables
from structured_streaming.reput_source import ReputDataSource
from structured_streaming.staging.wanted import Wanted
from structured_streaming.typed.declaration import Declaration, packed
from tests.support.lakes.maintained import ends
from tests.support.waiting import LIMIT_S


class StreamedLake:
    """A lake, which is made where there is none, and the batches that fill it; `options` are the source's."""

    def __init__(self, lake: Path, typed: tuple[Declaration, ...] = (), **options: str) -> None:
        create_tables(str(lake))
        self._lake = str(lake)
        source = ReputDataSource({"lake": self._lake, "typed": packed(typed), **options})
        with patch(
            "structured_streaming.source.stream.PATIENCE_S", LIMIT_S
        ):  # a log that is late is no log that is read
            self._reader: Any = source.streamReader(source.schema())
        self._sink = DeltaCommitSink(self._lake, wanted=Wanted(typed=typed))
        self._offset = self._reader.initialOffset()

    def batch(self) -> BatchReport | None:
        """Commits the next one; None where the lake has everything."""
        latest = self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        if latest == self._offset:
            return None
        parts = list(self._reader.partitions(self._offset, latest))
        report = self._sink.commit(
            [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        )
        self._offset = latest
        return report

    def reach(self, end: int) -> None:
        """Batches until the lake has everything below `end`."""
        while max(ends(self._lake).values(), default=0) < end:
            self.batch()

    def stop(self) -> None:
        self._reader.stop()


def stream(
    store: Path,
    lake: Path,
    batch_bytes: int,
    typed: tuple[Declaration, ...] = (),
    reported: Callable[[BatchReport], object] = lambda report: None,
) -> None:
    """Commits what the lake has not of the log in `store`."""
    filled = StreamedLake(lake, typed, store=str(store), maxBytesPerTrigger=str(batch_bytes))
    try:
        while (report := filled.batch()) is not None:
            reported(report)
    finally:
        filled.stop()
