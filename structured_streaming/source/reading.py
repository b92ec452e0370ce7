"""What batch and stream readers share: cutting a log into partitions, and reading one on an executor."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from store.log.erased import NOTHING, Offsets
from store.log_source import LogState
from structured_streaming.rows.pieces import Piece
from structured_streaming.rows.selected import Selection, batches
from structured_streaming.source.log_range import LogRange
from structured_streaming.source.logs import open_log
from structured_streaming.source.options import SourceOptions
from structured_streaming.source.partition import LogPartition
from structured_streaming.tables import MESSAGES


class Reading:
    """See the module."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        """What executors need to read a range; what the driver knows of lake and logs stays there."""
        return {"options": self.options}

    def parts(
        self,
        target: str,
        state: LogState,
        cuts: Sequence[int],
        *,
        missing: bool = False,
        erased: Offsets = NOTHING,
    ) -> list[LogPartition]:
        """Partitions between boundaries; `missing` says that their bytes are gone, `erased` which records are left out."""
        levels, size = state.delay_levels or self.options.delay_levels, state.segment_size
        return [
            LogPartition(
                target,
                state.broker,
                state.log_id,
                begin,
                end,
                state.end,
                levels,
                size,
                missing,
                tuple(erased[slice(*np.searchsorted(erased, (begin, end)))].tolist()),
            )
            for begin, end in itertools.pairwise(cuts)
        ]

    @contextlib.contextmanager
    def chunks(self, partition: LogRange) -> Iterator[Iterator[tuple[int, bytes | memoryview]]]:
        """The bytes of a partition: whole records, each part with its physical offset."""
        log = open_log(partition.target, self.options.access)
        try:
            yield log.read(partition.log_id, partition.start, partition.end)
        finally:
            log.close()
            _leave_modules_out_of_collections()

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:
        """The messages of a partition."""
        with self.chunks(partition) as chunks:
            yield from rows(partition, chunks, _MESSAGES)


def rows(
    partition: LogRange, chunks: Iterator[tuple[int, bytes | memoryview]], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The rows that are selected of the records in `chunks`."""
    from store.scan import scan

    for offset, data in chunks:
        found = scan(data, offset, segment_size=partition.segment_size)
        yield from batches(
            Piece(
                partition.broker,
                partition.log_id,
                partition.delay_levels,
                found,
                np.array(partition.erased, np.int64),
            ),
            selection,
        )


def _leave_modules_out_of_collections() -> None:
    """Spark collects garbage behind each task of a process, which went through all objects of pyarrow and numba: more
    than the task itself took. They are loaded once the first task ends."""
    global _left_out
    if not _left_out:
        gc.collect()
        gc.freeze()
        _left_out = True


_left_out = False
_MESSAGES = Selection(MESSAGES.name, tuple(MESSAGES.schema.names))
