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
    """Of the lake in `folder`, from transactions where there are some, else from rows."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder.child(REPUT_PROGRESS.name)
        self._rows = EndsInRows(self._folder)

    def at(self, progress: TableLog) -> Ends:
        """By the table's log as it was read last. Raises LakeError."""
        if progress.transaction_version(SPARK_APPLICATION) is None:
            return ends_of(progress)
        try:
            return self._rows.at(progress.version)
        except (DeltaError, OSError) as error:
            raise LakeError(f"table {self._folder}: {error}") from error


class EndsInRows:
    """As the rows of the `reput_progress` in `folder` say. Versions that follow each other cost the files that are new in them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._table: DeltaTable | None = None
        self._read_at = -1
        self._by_file: dict[str, Ends] = {}
        self._ends: Ends = {}

    def at(self, version: int) -> Ends:
        """By a version of the table. Raises DeltaError, OSError."""
        if version != self._read_at:
            if self._table is None:
                self._table = DeltaTable(self._folder.uri, version=version)
            else:
                self._table.load_as_version(version)
            self._by_file = _by_file(self._folder, self._table, self._by_file)
            self._ends = _merged(self._by_file)
            self._read_at = version
        return dict(self._ends)


def ends_in_rows(folder: Folder) -> Ends:
    """As the rows of the `reput_progress` in `folder` say. Raises DeltaError, OSError."""
    return _merged(_by_file(folder, DeltaTable(folder.uri), {}))


def _by_file(folder: Folder, progress: DeltaTable, known: dict[str, Ends]) -> dict[str, Ends]:
    """What each file says; the `known` ones are not read."""
    found = {}
    for file in progress.to_pyarrow_dataset(filesystem=folder.arrow_filesystem()).get_fragments():
        ends = known.get(file.path)
        if ends is None:
            rows = file.to_table(columns=["broker", "log_id", "end_offset"])
            last = rows.group_by(["broker", "log_id"], use_threads=False).aggregate([("end_offset", "max")])
            ends = {(row["broker"], row["log_id"]): row["end_offset_max"] for row in last.to_pylist()}
        found[file.path] = ends
    return found


def _merged(by_file: dict[str, Ends]) -> Ends:
    merged: Ends = {}
    for ends in by_file.values():
        for log, end in ends.items():
            merged[log] = max(end, merged.get(log, 0))
    return merged
