"""Up to where a lake in a folder holds each log, whoever commits to it."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS

Ends = dict[tuple[str, str], int]
"""In bytes, by broker and log_id."""


def ends_of(progress: TableLog) -> Ends:
    """As the table's application transactions say."""
    found = {}
    for application, version in progress.transactions.items():
        broker, separator, log_id = application.rpartition("/")
        if separator:
            found[broker, log_id] = version
    return found


class FollowedEnds:
    """Of the lake in `folder`, from transactions where there are some, else from rows, which are read when there are new ones."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder.child(REPUT_PROGRESS.name)
        self._read_at = -1
        self._in_rows: Ends = {}

    def at(self, progress: TableLog) -> Ends:
        """By the table's log as it was read last. Raises LakeError."""
        if progress.transaction_version(SPARK_APPLICATION) is None:
            return ends_of(progress)
        if progress.version != self._read_at:
            try:
                self._in_rows = ends_in_rows(DeltaTable(self._folder.uri, version=progress.version))
            except (DeltaError, OSError) as error:
                raise LakeError(f"table {self._folder}: {error}") from error
            self._read_at = progress.version
        return dict(self._in_rows)


def ends_in_rows(progress: DeltaTable) -> Ends:
    """As the rows of `reput_progress` say. Raises DeltaError, OSError."""
    rows = progress.to_pyarrow_table(columns=["broker", "log_id", "end_offset"])
    last = rows.group_by(["broker", "log_id"], use_threads=False).aggregate([("end_offset", "max")])
    return {(row["broker"], row["log_id"]): row["end_offset_max"] for row in last.to_pylist()}
