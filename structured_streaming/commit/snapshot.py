"""What a table's log adds up to: its files, those it removed lately, its schema. Costs what the table's files are many.

A batch needs none of this (`table_log.py`); who rewrites, removes or checks files does.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from structured_streaming.commit.last_checkpoint import checkpoints, newest_checkpoint
from structured_streaming.errors import LakeError
from structured_streaming.staging.table_file import LABELS, PART
from structured_streaming.stated import may_hold
from structured_streaming.storage.delta_names import LOG, commit_name
from structured_streaming.storage.folder import Folder

_TRIES = 5
"""To read a log whose oldest files another process removes meanwhile."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_OF_CHECKPOINTS = {
    "add": ("path", "size", "stats", "deletionVector", "modificationTime"),
    "remove": ("path", "deletionTimestamp"),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "metaData": ("id", "schemaString", "partitionColumns"),
}
"""What is read of each kind of action."""


class DataFile(NamedTuple):
    """A file of a table: its path as the log has it, bytes, statistics as JSON, whether rows of it are marked as deleted, when its
    writer says that it was written, ms since the epoch."""

    path: str
    size: int
    stats: str
    has_deletions: bool
    modified: int = 0

    @property
    def name(self) -> str:
        """In the table's folder; anything where the file `is_elsewhere`."""
        return unquote(self.path)

    @property
    def label(self) -> str:
        """What kind of file it is, as its writer named it (`staging/table_file.py`); `part` of another's."""
        first = self.path.partition("-")[0]
        return first if first in LABELS else PART

    @property
    def is_elsewhere(self) -> bool:
        """Outside of the table's folder, as those of a shallow clone."""
        name = self.name
        return "://" in self.path or name.startswith("/") or "\0" in name or ".." in name.split("/")

    @property
    def statistics(self) -> dict[str, Any]:
        """Empty where the writer stated none. Raises LakeError for what is none."""
        try:
            found = json.loads(self.stats) if self.stats else {}
        except (ValueError, RecursionError) as error:
            raise LakeError(f"statistics of file {self.path} are no JSON: {error}") from error
        if not isinstance(found, dict):
            raise LakeError(f"statistics of file {self.path} are {self.stats:.100}, which are none")
        by_column = ("minValues", "maxValues", "nullCount")
        return {name: its for name, its in found.items() if name not in by_column or isinstance(its, dict)}

    def may_hold(self, column: str, low: Any, high: Any) -> bool:
        """Whether a column may have a value of `low` to `high`, by the statistics; None: no bound. Raises LakeError."""
        return may_hold(self.statistics, column, low, high)


class Changed(NamedTuple):
    """Files that came since a version, and the paths of those that went."""

    added: list[DataFile]
    gone: set[str]


class Snapshot:
    """A version of the table in `folder`, the newest one when it was made or followed last. Calls raise LakeError.

    `files` by path, `removed`: when a path was removed, ms since the epoch, as far back as the log tells.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._log = folder.child(LOG)
        self._begin()
        self._read()

    def follow(self) -> None:
        """Reads what was committed since."""
        self._read()

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, also those that were added to it."""
        return _schema(self.schema_json)

    def changed_since(self, version: int) -> Changed | None:
        """Of what the table had at `version`, what it has not any more, and what it has besides, as the commits tell; None
        where they are not all there. A file that was added once more without being removed counts as one that came."""
        was_there: dict[str, bool] = {}
        commits = 0
        try:
            for content in self._log.read_each(map(commit_name, range(version + 1, self.version + 1))):
                actions = [json.loads(line) for line in content.splitlines()]
                for kind in ("remove", "add"):
                    for action in actions:
                        if kind in action:
                            was_there.setdefault(action[kind]["path"], kind == "remove")
                commits += 1
        except _UNREADABLE as error:
            raise self._error(error) from error
        if commits < self.version - version:
            return None
        added = [self.files[path] for path in was_there if path in self.files]
        return Changed(added, {path for path, was in was_there.items() if was})

    def _begin(self) -> None:
        self.version = -1
        self.files: dict[str, DataFile] = {}
        self.removed: dict[str, int] = {}
        self.protocol: dict[str, Any] = {}
        self.transactions: dict[str, int] = {}
        self.table_id = ""
        self.schema_json = ""
        self.partitioned = False

    def _read(self) -> None:
        for tried in range(_TRIES):
            try:
                self._follow()
                break
            except FileNotFoundError as error:  # another process cleans up: there is a newer checkpoint
                if tried == _TRIES - 1:
                    raise self._error(error) from error
            except _UNREADABLE as error:
                raise self._error(error) from error
        if not self.schema_json or not self.protocol:
            raise LakeError(f"{self._log} holds neither a checkpoint nor version 0; restore them")

    def _follow(self) -> None:
        self._take_commits()
        found = checkpoints(self._log)
        newest = max(found, default=-1)
        if newest > self.version:  # the commits between are gone, or were never read
            self._begin()
            self._take_checkpoint(newest, found[newest])
            self._take_commits()

    def _take_commits(self) -> None:
        if self.version < 0 and newest_checkpoint(self._log) >= 0:
            return
        for content in self._log.read_each(map(commit_name, itertools.count(self.version + 1))):
            actions = [json.loads(line) for line in content.splitlines()]
            self._take(
                sorted(actions, key=lambda action: "add" in action)
            )  # a path may be replaced by itself
            self.version += 1

    def _take_checkpoint(self, version: int, names: Iterable[str]) -> None:
        for name in names:
            found = pq.ParquetFile(self._log.readable(name))
            wanted = [f"{kind}.{field}" for kind, fields in _OF_CHECKPOINTS.items() for field in fields]
            rows = found.read(columns=[*wanted, "txn"])
            for kind in rows.column_names:
                self._take([{kind: each} for each in rows[kind].drop_null().to_pylist()])
        self.version = version

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            if add := action.get("add"):
                deletions = add.get("deletionVector") is not None
                modified = int(add.get("modificationTime") or 0)
                file = DataFile(add["path"], add["size"], add.get("stats") or "", deletions, modified)
                self.files[file.path] = file
                self.removed.pop(file.path, None)
            elif remove := action.get("remove"):
                self.files.pop(remove["path"], None)
                self.removed[remove["path"]] = remove.get("deletionTimestamp") or 0
            elif txn := action.get("txn"):
                self.transactions[txn["appId"]] = txn["version"]
            elif protocol := action.get("protocol"):
                self.protocol = dict(protocol)
            elif metadata := action.get("metaData"):
                self.table_id = metadata.get("id") or ""
                self.schema_json = metadata["schemaString"]
                self.partitioned = bool(metadata.get("partitionColumns"))

    def _error(self, error: Exception) -> LakeError:
        return LakeError(f"table {self._folder}: {error}; its log cannot be read")


@functools.lru_cache
def _schema(stated: str) -> pa.Schema:
    """Versions of a table nearly always have the same one."""
    return pa.schema(Schema.from_json(stated).to_arrow())


def read_rows(folder: Folder, snapshot: Snapshot, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a small table of ours, in `folder`, with the columns of `schema`, a row group at a time, a column that a file lacks null: what
    loads Arrow's datasets takes longer. Raises LakeError."""
    for file in snapshot.files.values():
        if file.has_deletions:
            raise LakeError(
                f"table {folder}: rows of its file {file.path} are marked as deleted, which is not read here"
            )
        try:
            if file.is_elsewhere:
                raise ValueError("it is outside of the table's folder")
            opened = pq.ParquetFile(folder.readable(file.name), coerce_int96_timestamp_unit="us")
            there = [name for name in schema.names if name in opened.schema_arrow.names]
            for number in range(opened.num_row_groups):
                rows = opened.read_row_group(number, there, use_threads=False)
                columns = [
                    rows[field.name] if field.name in there else pa.nulls(len(rows), field.type)
                    for field in schema
                ]
                yield pa.table(columns, schema.names).cast(schema)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise LakeError(f"table {folder}: its file {file.path}: {error}") from error
