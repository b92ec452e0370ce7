"""What a table's log adds up to: its files, those it removed lately, its schema. Costs what the table's files are many.

A batch needs none of this (`table_log.py`); who rewrites, removes or checks files does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG, commit_name, is_checkpoint, version_of
from structured_streaming.storage.folder import Folder

_TRIES = 5
"""To read a log whose oldest files another process removes meanwhile."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
_OF_CHECKPOINTS = {
    "add": ("path", "size", "stats", "deletionVector"),
    "remove": ("path", "deletionTimestamp"),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "metaData": ("schemaString", "partitionColumns"),
}
"""What is read of each kind of action."""


class DataFile(NamedTuple):
    """A file of a table: its path as the log has it, bytes, statistics as JSON, whether rows of it are marked as deleted."""

    path: str
    size: int
    stats: str
    has_deletions: bool

    @property
    def name(self) -> str:
        """In the table's folder; anything where the file `is_elsewhere`."""
        return unquote(self.path)

    @property
    def is_elsewhere(self) -> bool:
        """Outside of the table's folder, as those of a shallow clone."""
        return "://" in self.path or self.path.startswith("/")

    @property
    def statistics(self) -> dict[str, Any]:
        """Empty where the writer stated none. Raises LakeError for what is none."""
        try:
            found = json.loads(self.stats) if self.stats else {}
        except ValueError as error:
            raise LakeError(f"statistics of file {self.path} are no JSON: {error}") from error
        if not isinstance(found, dict):
            raise LakeError(f"statistics of file {self.path} are {self.stats:.100}, which are none")
        return found


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
        return pa.schema(Schema.from_json(self.schema_json).to_arrow())

    def _begin(self) -> None:
        self.version = -1
        self.files: dict[str, DataFile] = {}
        self.removed: dict[str, int] = {}
        self.protocol: dict[str, Any] = {}
        self.transactions: dict[str, int] = {}
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
        newest = self._newest_checkpoint()
        if newest > self.version:  # the commits between are gone, or were never read
            self._begin()
            self._take_checkpoint(newest)
            self._take_commits()

    def _take_commits(self) -> None:
        if self.version < 0 and self._newest_checkpoint() >= 0:
            return
        for content in self._log.read_each(map(commit_name, itertools.count(self.version + 1))):
            actions = [json.loads(line) for line in content.splitlines()]
            self._take(
                sorted(actions, key=lambda action: "add" in action)
            )  # a path may be replaced by itself
            self.version += 1

    def _take_checkpoint(self, version: int) -> None:
        for name in self._checkpoints()[version]:
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
                file = DataFile(add["path"], add["size"], add.get("stats") or "", deletions)
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
                self.schema_json = metadata["schemaString"]
                self.partitioned = bool(metadata.get("partitionColumns"))

    def _newest_checkpoint(self) -> int:
        return max(self._checkpoints(), default=-1)

    def _checkpoints(self) -> dict[int, list[str]]:
        """The names of whole checkpoints by version: of one file, or of all the parts that their names tell of."""
        found: dict[int, list[str]] = {}
        for name in filter(is_checkpoint, self._log.names()):
            version, parts = version_of(name), name.split(".")[2:-1]
            if version is not None and not parts:
                found[version] = [name]
            elif version is not None and len(parts) == 2:
                found.setdefault(version, []).append(name)
        return {version: names for version, names in found.items() if _is_whole(names)}

    def _error(self, error: Exception) -> LakeError:
        return LakeError(f"table {self._folder}: {error}; its log cannot be read")


def _is_whole(names: list[str]) -> bool:
    parts = names[0].split(".")[2:-1]
    return not parts or len(names) == int(parts[1])
