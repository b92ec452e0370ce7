"""A reput without Spark: its source is asked for batches as Spark asks it, and its sink commits them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.report import BatchReport
from structured_streaming.lake import create_tables
from structured_streaming.reput_source import ReputDataSource
from structured_streaming.staging.wanted import Wanted
from structured_streaming.typed.declaration import Declaration, packed


def stream(
    store: Path,
    lake: Path,
    batch_bytes: int,
    typed: tuple[Declaration, ...] = (),
    reported: Callable[[BatchReport], object] = lambda report: None,
) -> None:
    """Commits what the lake, which is made where there is none, has not of the log in `store`."""
    create_tables(str(lake))
    source = ReputDataSource(
        {
            "store": str(store),
            "lake": str(lake),
            "maxBytesPerTrigger": str(batch_bytes),
            "typed": packed(typed),
        }
    )
    reader = source.streamReader(source.schema())
    sink = DeltaCommitSink(str(lake), wanted=Wanted(typed=typed))
    limit, offset = reader.getDefaultReadLimit(), reader.initialOffset()
    try:
        while (latest := reader.latestOffset(offset, limit)) != offset:
            parts = reader.partitions(offset, latest)
            report = sink.commit(
                [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
            )
            assert report is not None
            reported(report)
            offset = latest
    finally:
        reader.stop()
