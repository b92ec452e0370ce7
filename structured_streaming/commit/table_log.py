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

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.errors import LakeError
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


class TableLog:
    """The log of the table in `folder`, as far as it was read. Every call raises LakeError.

    `columns` are those that files for it have; the table must have them too, or readers would not see them.
    """

    def __init__(self, folder: Folder, columns: Sequence[str] = ()) -> None:
        self._folder = folder
        self._columns = columns
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
            self.version, self.transactions = self._follow(self.version, self.transactions)
            if self._newest_checkpoint()[0] > self.version:
                self._open()  # the commits between are gone
        except _UNREADABLE as error:
            raise self._error(error) from error

    def append(self, files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]) -> None:
        """Commits files (`path`, `size`, `stats`) as the next version; durable when it returns.

        Raises VersionTakenError when that version is another's.
        """
        try:
            content = "".join(json.dumps(action) + "\n" for action in _actions(files, transactions))
            self._log.put_if_absent(commit_name(self.version + 1), content.encode())
        except FileExistsError as error:
            raise VersionTakenError(
                f"version {self.version + 1} of {self._folder} is another writer's"
            ) from error
        except OSError as error:
            raise self._error(error) from error
        self.version += 1
        self.transactions.update(transactions)

    def checkpoint_if_due(self) -> None:
        """A checkpoint that fails is tried again later, and said: nothing but time depends on it."""
        try:
            last, size = self._newest_checkpoint()
            least = max(CHECKPOINT_COMMITS, size // _CHECKPOINT_SHARE) * (1 + self._tries)
            if self.version - max(last, 0) < least:
                return
            self._checkpoint(last)
            self._tries = 0
            DeltaTable(self._folder.uri).cleanup_metadata()
        except (OSError, DeltaError) as error:
            self._tries += 1
            sys.stderr.write(f"lakebroker: no checkpoint of {self._folder} could be made: {error}\n")

    def _open(self) -> None:
        if not self._log.exists():
            raise LakeError(
                f"{self._folder} is no Delta table; make the lake's tables with `lakebroker init`"
            )
        try:
            base, _ = self._newest_checkpoint()
            known = {}
            if base >= 0:
                known = self._read_checkpoint(base)
                # another writer may have made it, and what it speaks of: rows that were durable in files that are gone
                self._folder.make_all_durable()
            version, transactions = self._follow(base, known)
            self._log.make_durable(())
            self._log.remove_scratch(_SCRATCH_S)
            self._folder.parent.remove_scratch(_SCRATCH_S)
        except _UNREADABLE as error:
            raise self._error(error) from error
        if version < 0:
            raise LakeError(f"{self._log} holds neither a checkpoint nor version 0; restore them")
        self.version, self.transactions = version, transactions

    def _follow(self, version: int, known: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """The newest version and its application transactions, where `version` has those that are `known`."""
        transactions, read, added = dict(known), list[str](), list[str]()
        while True:
            name = commit_name(version + 1)
            try:
                content = self._log.read(name)
            except FileNotFoundError:
                break
            for line in content.splitlines():
                added += self._take(json.loads(line), version + 1, transactions)
            read.append(name)
            version += 1
        if read:
            # another writer's file may hold rows that were durable in ours; it may be vacuumed since
            self._folder.make_durable(added)
            self._log.make_durable(read)
        return version, transactions

    def _take(self, action: Any, version: int, transactions: dict[str, int]) -> Iterator[str]:
        """What an append has to know of an action of a commit; the names of the files in the folder that it adds."""
        if not isinstance(action, dict):
            raise ValueError(f"version {version} holds {action!r:.100}, which is no action")
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "protocol" in action:
            self._check_protocol(action["protocol"])
        elif "metaData" in action:
            self._check_columns(action["metaData"]["schemaString"])
        elif "add" in action and "://" not in action["add"]["path"]:
            yield unquote(action["add"]["path"])

    def _check_protocol(self, protocol: Mapping[str, Any]) -> None:
        if protocol["minWriterVersion"] > WRITER_VERSION:
            raise LakeError(
                f"{self._folder} asks for Delta writer version {protocol['minWriterVersion']}, the reput writes "
                f"{WRITER_VERSION}: a table feature was turned on; turn it off (ALTER TABLE … DROP FEATURE)"
            )

    def _check_columns(self, schema: str) -> None:
        there = {field["name"] for field in json.loads(schema)["fields"]}
        missing = [name for name in self._columns if name not in there]
        if missing:
            raise LakeError(
                f"{self._folder} lacks the column {missing[0]}, which this version writes; add it (ALTER TABLE … ADD "
                "COLUMN), or begin a new lake"
            )

    def _newest_checkpoint(self) -> tuple[int, int]:
        """Version and number of actions of the newest checkpoint; (-1, 0) without one."""
        try:
            found = json.loads(self._log.read(LAST_CHECKPOINT))
            return int(found["version"]), int(found.get("size", 0))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a hint only: the names tell as well
            return max(self._checkpoints().values(), default=-1), 0

    def _read_checkpoint(self, version: int) -> dict[str, int]:
        """Its application transactions."""
        parts = sorted(name for name, its in self._checkpoints().items() if its == version)
        if not parts:
            raise FileNotFoundError(f"checkpoint {version} of {self._folder} is not there")
        transactions = {}
        for part in parts:
            found = pq.read_table(self._log.target(part), columns=["txn", "protocol", "metaData"])
            for txn in found["txn"].drop_null().to_pylist():
                transactions[txn["appId"]] = txn["version"]
            for protocol in found["protocol"].drop_null().to_pylist():
                self._check_protocol(protocol)
            for metadata in found["metaData"].drop_null().to_pylist():
                self._check_columns(metadata["schemaString"])
        return transactions

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
            lambda uri: DeltaTable(uri).create_checkpoint(),
            (checkpoint_name(self.version), LAST_CHECKPOINT),
        )

    def _error(self, error: Exception) -> LakeError:
        return LakeError(f"table {self._folder}: {error}; its log cannot be used as it is")


def _actions(files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Of a commit that appends."""
    now = time.time_ns() // 1_000_000
    yield {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": "lakebroker",
            "isBlindAppend": True,
        }
    }
    for application, version in transactions.items():
        yield {"txn": {"appId": application, "version": version, "lastUpdated": now}}
    for file in files:
        yield {
            "add": {
                "path": file["path"],
                "partitionValues": {},
                "size": file["size"],
                "modificationTime": now,
                "dataChange": True,
                "stats": file["stats"],
            }
        }
