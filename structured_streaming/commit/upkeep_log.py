"""`upkeep` of a lake in a folder: its rows read, and added to. A row is a commit that is on disk when the call returns."""

from __future__ import annotations

import pyarrow as pa

from structured_streaming.commit.snapshot import Snapshot, read_rows
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.errors import LakeError
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import UPKEEP
from structured_streaming.upkeep import Upkeep, upkeep_of


def read_upkeep(lake: Folder) -> Upkeep:
    """As it is now. Raises LakeError."""
    folder = lake.child(UPKEEP.name)
    rows = pa.concat_tables(
        [UPKEEP.schema.empty_table(), *read_rows(folder, Snapshot(folder), UPKEEP.schema)]
    )
    try:
        return upkeep_of(rows.to_pylist())
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LakeError(f"table {folder} has a row that nobody of ours wrote: {error}; DELETE it") from error


def add_to_upkeep(lake: Folder, rows: pa.Table) -> None:
    """Raises LakeError, OSError."""
    file = write_file(lake, UPKEEP, rows)
    log = TableLog(lake.child(UPKEEP.name), UPKEEP.schema)
    while True:
        try:
            log.append([file._asdict()], {})
        except VersionTakenError:
            log.follow()
        else:
            return
