"""Whether tables have rows of all that a lake took from its logs. `reput_progress` has every batch for as long as the lake lives, so
`upkeep` remembers which of them were looked at."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pyarrow as pa

from structured_streaming.commit.progress_rows import names_table
from structured_streaming.commit.snapshot import DataFile
from structured_streaming.maintenance.age import CUT_US, LATE, LONG_AGO, NEVER, stated_us, us
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.reading import parts
from structured_streaming.stated import extremes
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, Table

_ROWS = 1 << 14
"""Of `reput_progress`, in memory at a time."""


def batches_without(
    lake: Folder, table: Table, before: Mapping[str, int], at: datetime | None
) -> dict[str, int]:
    """The version of `reput_progress` that was looked at, and under the name of a table a batch that left it out, where one did.
    `before`: what was found so, and stated in `upkeep` at `at`, or nothing; what was looked at then is not again. Raises LakeError."""
    if table.name in before:
        return dict(before)
    since = us(at - LATE, LONG_AGO) if before and at is not None else LONG_AGO
    progress = MaintainedTable(lake, REPUT_PROGRESS)
    found = {REPUT_PROGRESS.name: progress.log.version}
    for file in progress.files:
        if _committed(file) >= since and (batch := batch_in(progress, file, table)) is not None:
            return {**found, table.name: batch}
    return found


def batch_in(progress: MaintainedTable, file: DataFile, table: Table) -> int | None:
    """A batch in a file of `reput_progress` that a table was left out of. Raises FileError."""
    for part in parts(progress.folder, file, progress.snapshot.schema):
        for rows in part.batches(["batch", "table_versions"], _ROWS):
            versions = rows["table_versions"].combine_chunks()
            for chunk in versions.chunks if isinstance(versions, pa.ChunkedArray) else [versions]:
                there = names_table(chunk, table.name) | chunk.is_null().to_numpy(zero_copy_only=False)
                if not there.all():
                    return int(rows["batch"][int(np.argmin(there))].as_py())
    return None


def _committed(file: DataFile) -> int:
    """The greatest commit time in a file of `reput_progress`, µs. Raises LakeError."""
    _, greatest = extremes(file.statistics, "commit_timestamp")
    return NEVER if greatest is None else stated_us(greatest) + CUT_US
