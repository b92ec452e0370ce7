"""A lake of what a log service serves, filled without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.reput_source import ReputDataSource
from tests.support.lakes.empty import empty_lake


class SidecarLake:
    """A lake that is filled as Spark would have it, without Spark."""

    def __init__(self, folder: Path, address: str) -> None:
        empty_lake(folder)
        self._folder = folder
        options = {"brokers": address, "lake": str(folder), "partitionBytes": "50000", "onGap": "continue"}
        source = ReputDataSource(options)
        self._stream: Any = source.streamReader(source.schema())
        self._sink = DeltaCommitSink(str(folder))
        self._offset = self._stream.initialOffset()

    def reach(self, end: int) -> None:
        """Batches until the lake has everything below `end`."""
        while max(LakeProgress(str(self._folder)).offsets.values(), default=0) < end:
            latest = self._stream.latestOffset(self._offset, self._stream.getDefaultReadLimit())
            parts = list(self._stream.partitions(self._offset, latest))
            self._sink.commit(
                [row for part in parts for batch in self._stream.read(part) for row in batch.to_pylist()]
            )
            self._offset = latest
