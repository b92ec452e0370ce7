"""One table's `_delta_log`: commits that a power cut cannot take back once they returned.

Delta's own libraries link a commit's file into place and leave it to the system when it is on disk. Here a commit
is put by `storage`, durable before it has its name, and not over another writer's. So a version that has its name has
its content, and none has its name before the one below it. Checkpoints likewise.

| what | cost |
|---|---|
| a commit | its own file and those of other writers since; nothing that grows with the table |
| opening | the application transactions of the newest checkpoint, the commits behind it, and what is not on disk yet |
| a checkpoint | the table's files; one follows when the commits since the last are a tenth of them, and at least 100 |
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.commit.table_schema import check, plain
from structured_streaming.errors import LakeError, NotThereError
from structured_streaming.lake import schema_version
from structured_streaming.storage.delta_names import (
    LAST_CHECKPOINT,
    LOG,
    checkpoint_name,
    commit_name,
    is_checkpoint,
    version_of,
)
from structured_streaming.storage.folder import Folder

WRITER_VERSION = 2
"""Of Delta's protocol: what a plain append has to know."""
CHECKPOINT_COMMITS = 100
_CHECKPOINT_SHARE = 10
_SCRATCH_S = 3600
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""A log that cannot be read, or whose content is none of Delta's."""


class VersionTakenError(LakeError):
    """Another writer committed the version."""


class _Known(NamedTuple):
    """A version, and what an append has to know of it."""

    version: int
    transactions: dict[str, int]
    metadata: dict[str, Any]


class TableLog:
    """The log of the table in `folder`, as far as it was read. Every call raises LakeError.

    `schema` is that of files for it; the table must fit (`table_schema.py`), or readers would not see what they hold. For
    who only `reads` nothing is made durable or removed, and features that concern writers alone are none of its business.
    """

    def __init__(self, folder: Folder, schema: pa.Schema | None = None, *, reads: bool = False) -> None:
        self._folder = folder
        self._reads = reads
        self._schema = schema
        self.metadata: dict[str, Any] = {}
        """As it was read last."""
        self._log = folder.child(LOG)
        self._tries = 0
        self.version = -1
        self.transactions: dict[str, int] = {}
        self._open()

    def transaction_version(self, application: str) -> int | None:
        """The newest version that an application gave with its commits."""
        return self.transactions.get(application)

    def follow(self) -> None:
        """Reads, and makes durable, what other writers committed. What fails leaves all as it was known."""
        try:
            self._believe(self._follow(_Known(self.version, self.transactions, self.metadata)))
            if self._newest_checkpoint()[0] > self.version:
                self._open()  # the commits between are gone
        except _UNREADABLE as error:
            raise self._error(error) from error

    def append(self, files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]) -> None:
        """Commits files (`path`, `size`, `stats`) as the next version; durable when it returns.

        Raises VersionTakenError when that version is another's.
        """
        self._put(_appending(files, transactions))
        self.transactions.update(transactions)

    def alter(self, metadata: Mapping[str, Any]) -> None:
        """Commits other metadata as the next version; as `append`."""
        now = time.time_ns() // 1_000_000
        self._put([_information(now, "UPGRADE SCHEMA", {}, blind=False), {"metaData": metadata}])
        self.metadata = dict(metadata)

    def rewrite(self, removed: Iterable[tuple[str, int]], files: Iterable[Mapping[str, Any]]) -> None:
        """Commits files in the place of others that hold the same rows, `removed` (path as the log has it, bytes).

        As `append`. Whether the removed ones are still the table's is the caller's to know. When it raises anything
        but VersionTakenError the version may be there all the same.
        """
        self._put(_rewriting(removed, files))

    def checkpoint_if_due(self, commits: int | None = None) -> None:
        """A checkpoint that fails is tried again later, and said: nothing but time depends on it.

        One is due after `commits`, when they are given.
        """
        try:
            last, size = self._newest_checkpoint()
            least = commits or max(CHECKPOINT_COMMITS, size // _CHECKPOINT_SHARE) * (1 + self._tries)
            if self.version - max(last, 0) < least:
                return
            self._checkpoint(last)
            self._tries = 0
            DeltaTable(self._folder.uri).cleanup_metadata()
        except (OSError, DeltaError) as error:
            self._tries += 1
            sys.stderr.write(f"lakebroker: no checkpoint of {self._folder} could be made: {error}\n")

    def _put(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """The next version."""
        try:
            content = "".join(json.dumps(action) + "\n" for action in actions)
            self._log.put_if_absent(commit_name(self.version + 1), content.encode())
        except FileExistsError as error:
            raise VersionTakenError(
                f"version {self.version + 1} of {self._folder} is another writer's"
            ) from error
        except OSError as error:
            raise self._error(error) from error
        self.version += 1

    def _open(self) -> None:
        if not self._log.exists():
            raise LakeError(
                f"{self._folder} is no Delta table; make the lake's tables with `lakebroker init`"
            )
        try:
            base, _ = self._newest_checkpoint()
            known = _Known(-1, {}, {})
            if base >= 0:
                known = self._read_checkpoint(base)
                if not self._reads:
                    # another writer may have made it, and what it speaks of: rows that were durable in files that are gone
                    self._folder.make_all_durable()
            known = self._follow(known)
            if not self._reads:
                self._log.make_durable(())
                self._log.remove_scratch(_SCRATCH_S)
                self._folder.parent.remove_scratch(_SCRATCH_S)
        except _UNREADABLE as error:
            raise self._error(error) from error
        if known.version < 0:
            raise LakeError(f"{self._log} holds neither a checkpoint nor version 0; restore them")
        self._believe(known)

    def _believe(self, known: _Known) -> None:
        """Files are added to the table as it is now, however it was before."""
        if known.metadata is not self.metadata:
            schema_version(self._folder, known.metadata["configuration"])
            if self._schema is not None:
                check(self._folder, known.metadata, self._schema)
        self.version, self.transactions, self.metadata = known

    def _follow(self, known: _Known) -> _Known:
        """The newest version, from a known one on; durable."""
        version, metadata = known.version, known.metadata
        transactions, read, added = dict(known.transactions), list[str](), list[str]()
        for content in self._log.read_each(map(commit_name, itertools.count(version + 1))):
            for line in content.splitlines():
                action = json.loads(line)
                added += self._take(action, version + 1, transactions)
                if "metaData" in action:
                    metadata = plain(action["metaData"])
            version += 1
            read.append(commit_name(version))
        if read and not self._reads:
            # another writer's file may hold rows that were durable in ours; it may be vacuumed since
            self._folder.make_durable(added)
            self._log.make_durable(read)
        return _Known(version, transactions, metadata)

    def _take(self, action: Any, version: int, transactions: dict[str, int]) -> Iterator[str]:
        """What an append has to know of an action of a commit; the names of the files in the folder that it adds."""
        if not isinstance(action, dict):
            raise ValueError(f"version {version} holds {action!r:.100}, which is no action")
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "protocol" in action:
            self._check_protocol(action["protocol"])
        elif "add" in action and "://" not in action["add"]["path"]:
            yield unquote(action["add"]["path"])

    def _check_protocol(self, protocol: Mapping[str, Any]) -> None:
        if protocol["minWriterVersion"] > WRITER_VERSION and not self._reads:
            raise LakeError(
                f"{self._folder} asks for Delta writer version {protocol['minWriterVersion']}, the reput writes "
                f"{WRITER_VERSION}: a table feature was turned on; turn it off (ALTER TABLE … DROP FEATURE)"
            )

    def _newest_checkpoint(self) -> tuple[int, int]:
        """Version and number of actions of the newest checkpoint; (-1, 0) without one."""
        try:
            found = json.loads(self._log.read(LAST_CHECKPOINT))
            return int(found["version"]), int(found.get("size", 0))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a hint only: the names tell as well
            return max(self._checkpoints().values(), default=-1), 0

    def _read_checkpoint(self, version: int) -> _Known:
        parts = sorted(name for name, its in self._checkpoints().items() if its == version)
        if not parts:
            raise FileNotFoundError(f"checkpoint {version} of {self._folder} is not there")
        transactions, metadata = dict[str, int](), dict[str, Any]()
        for part in parts:
            found = pq.read_table(self._log.readable(part), columns=["txn", "protocol", "metaData"])
            for txn in found["txn"].drop_null().to_pylist():
                transactions[txn["appId"]] = txn["version"]
            for protocol in found["protocol"].drop_null().to_pylist():
                self._check_protocol(protocol)
            for each in found["metaData"].drop_null().to_pylist():
                metadata = plain(each)
        return _Known(version, transactions, metadata)

    def _checkpoints(self) -> dict[str, int]:
        """The versions of the files that are checkpoints, or parts of one, by name."""
        return {name: version for name, version in self._versions().items() if is_checkpoint(name)}

    def _versions(self) -> dict[str, int]:
        """The versions of commits and checkpoints by name."""
        versions = ((name, version_of(name)) for name in self._log.names())
        return {name: version for name, version in versions if version is not None}

    def _checkpoint(self, last: int) -> None:
        """Delta's library makes it of the newest checkpoint and what was committed since."""
        inputs = [name for name, version in self._versions().items() if last <= version <= self.version]
        # a crash may have left a checkpoint without the hint
        if last >= 0 and self._log.has(LAST_CHECKPOINT):
            inputs.append(LAST_CHECKPOINT)
        self._log.derive(
            inputs,
            lambda uri: DeltaTable(uri, version=self.version).create_checkpoint(),
            (checkpoint_name(self.version), LAST_CHECKPOINT),
        )

    def _error(self, error: Exception) -> LakeError:
        away = isinstance(error, NotThereError)
        return LakeError(
            f"table {self._folder}: {error}{'' if away else '; its log cannot be used as it is'}"
        )


def _appending(
    files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Actions of a commit that appends."""
    now = time.time_ns() // 1_000_000
    yield _information(now, "WRITE", {"mode": "Append"}, blind=True)
    for application, version in transactions.items():
        yield {"txn": {"appId": application, "version": version, "lastUpdated": now}}
    for file in files:
        yield _adding(file, now, changes=True)


def _rewriting(
    removed: Iterable[tuple[str, int]], files: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Actions of a commit that changes no rows. Application transactions stay as they are."""
    now = time.time_ns() // 1_000_000
    yield _information(now, "OPTIMIZE", {}, blind=False)
    for path, size in removed:
        yield {
            "remove": {
                "path": path,
                "deletionTimestamp": now,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": size,
            }
        }
    for file in files:
        yield _adding(file, now, changes=False)


def _information(now: int, operation: str, parameters: Mapping[str, str], *, blind: bool) -> dict[str, Any]:
    """What a table's history shows of a commit; `blind`: it depends on nothing that was there."""
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": "lakebroker",
            "isBlindAppend": blind,
        }
    }


def _adding(file: Mapping[str, Any], now: int, *, changes: bool) -> dict[str, Any]:
    return {
        "add": {
            "path": file["path"],
            "partitionValues": {},
            "size": file["size"],
            "modificationTime": now,
            "dataChange": changes,
            "stats": file["stats"],
        }
    }
