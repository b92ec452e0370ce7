"""One table's `_delta_log` in a local folder: commits that a power cut cannot take back once they returned.

Delta's own libraries link a commit's file into place and leave it to the system when it is on disk. Here a commit
is written under another name, fsynced, linked to its version (which fails when another writer has that version) and
the folder fsynced. So a version that has its name has its content, and none has its name before the one below it.
Checkpoints likewise: made beside the log, fsynced, then renamed.

| what | cost |
|---|---|
| a commit | its own file and those of other writers since; nothing that grows with the table |
| opening | the application transactions of the newest checkpoint, and the commits behind it |
| a checkpoint | the table's files; one follows when the commits since the last are a tenth of them, and at least 100 |
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from store.log.segment import sync_folder
from structured_streaming.errors import LakeError
from structured_streaming.storage.local import SCRATCH_PREFIX, put_if_absent, sync_file

WRITER_VERSION = 2
"""Of Delta's protocol: what a plain append has to know."""
CHECKPOINT_COMMITS = 100
_CHECKPOINT_SHARE = 10
_LAST_CHECKPOINT = "_last_checkpoint"
_SCRATCH_S = 3600
_DIGITS = 20


class VersionTakenError(LakeError):
    """Another writer committed the version."""


class TableLog:
    """The log of the table in `path`, as far as it was read. Every call raises LakeError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path / "_delta_log"
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
            if self._newest_checkpoint()[0] > self.version:
                self._open()  # the commits between may be gone
            else:
                self.version, self.transactions = self._follow(self.version, self.transactions)
        except (OSError, ValueError) as error:
            raise self._error(error) from error

    def append(self, files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]) -> None:
        """Commits files (`path`, `size`, `stats`) as the next version; durable when it returns.

        Raises VersionTakenError when that version is another's.
        """
        now = time.time_ns() // 1_000_000
        info = {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": "lakebroker",
            "isBlindAppend": True,
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        actions += [
            {"txn": {"appId": application, "version": version, "lastUpdated": now}}
            for application, version in transactions.items()
        ]
        actions += [
            {
                "add": {
                    "path": file["path"],
                    "partitionValues": {},
                    "size": file["size"],
                    "modificationTime": now,
                    "dataChange": True,
                    "stats": file["stats"],
                }
            }
            for file in files
        ]
        try:
            self._put(self.version + 1, "".join(json.dumps(action) + "\n" for action in actions))
        except FileExistsError as error:
            raise VersionTakenError(
                f"version {self.version + 1} of {self._path} is another writer's"
            ) from error
        except OSError as error:
            raise self._error(error) from error
        self.version += 1
        self.transactions.update(transactions)

    def checkpoint_if_due(self) -> None:
        """A checkpoint that fails is tried again later, and said: nothing but time depends on it."""
        last, size = self._newest_checkpoint()
        if self.version - max(last, 0) < max(CHECKPOINT_COMMITS, size // _CHECKPOINT_SHARE) * (
            1 + self._tries
        ):
            return
        try:
            self._checkpoint(last)
            self._tries = 0
            DeltaTable(str(self._path)).cleanup_metadata()
        except (OSError, DeltaError) as error:
            self._tries += 1
            sys.stderr.write(f"lakebroker: no checkpoint of {self._path} could be made: {error}\n")

    def _open(self) -> None:
        if not self._log.is_dir():
            raise LakeError(f"{self._path} is no Delta table; make the lake's tables with `lakebroker init`")
        try:
            base, _ = self._newest_checkpoint()
            version, transactions = self._follow(base, self._read_checkpoint(base) if base >= 0 else {})
            sync_folder(self._log)
            self._remove_scratch()
        except (OSError, ValueError) as error:
            raise self._error(error) from error
        if version < 0:
            raise LakeError(f"{self._log} holds neither a checkpoint nor version 0; restore them")
        self.version, self.transactions = version, transactions

    def _follow(self, version: int, known: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """The newest version and its application transactions, where `version` has those that are `known`."""
        transactions, first = dict(known), version
        while True:
            path = self._log / f"{version + 1:0{_DIGITS}}.json"
            try:
                with path.open("rb") as file:
                    for line in file:
                        self._take(json.loads(line), version + 1, transactions)
                    os.fsync(file.fileno())
            except FileNotFoundError:
                break
            version += 1
        if version > first:
            sync_folder(self._log)
            sync_folder(self._path)
        return version, transactions

    def _take(self, action: Any, version: int, transactions: dict[str, int]) -> None:
        """An action of a commit: what an append has to know of it."""
        if not isinstance(action, dict):
            raise ValueError(f"version {version} holds {action!r:.100}, which is no action")
        if "txn" in action:
            transactions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "protocol" in action:
            self._check_protocol(action["protocol"])
        elif "add" in action and "://" not in action["add"]["path"]:
            self._sync_data(self._path / unquote(action["add"]["path"]))

    def _sync_data(self, path: Path) -> None:
        """Another writer's file, which may hold rows that were durable in ours."""
        with contextlib.suppress(FileNotFoundError):  # replaced and vacuumed since
            sync_file(path)

    def _check_protocol(self, protocol: Mapping[str, Any]) -> None:
        if protocol["minWriterVersion"] > WRITER_VERSION:
            raise LakeError(
                f"{self._path} asks for Delta writer version {protocol['minWriterVersion']}, the reput writes "
                f"{WRITER_VERSION}: a table feature was turned on; turn it off (ALTER TABLE … DROP FEATURE)"
            )

    def _newest_checkpoint(self) -> tuple[int, int]:
        """Version and number of actions of the newest checkpoint; (-1, 0) without one."""
        try:
            found = json.loads((self._log / _LAST_CHECKPOINT).read_bytes())
            return int(found["version"]), int(found.get("size", 0))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a hint only: the names tell as well
            versions = [int(path.name[:_DIGITS]) for path in self._log.glob("*.checkpoint*.parquet")]
            return max(versions, default=-1), 0

    def _read_checkpoint(self, version: int) -> dict[str, int]:
        """Its application transactions."""
        parts = sorted(self._log.glob(f"{version:0{_DIGITS}}.checkpoint*.parquet"))
        if not parts:
            raise FileNotFoundError(f"checkpoint {version} of {self._path} is not there")
        transactions = {}
        for part in parts:
            found = pq.read_table(part, columns=["txn", "protocol"])
            for txn in found["txn"].drop_null().to_pylist():
                transactions[txn["appId"]] = txn["version"]
            for protocol in found["protocol"].drop_null().to_pylist():
                self._check_protocol(protocol)
        return transactions

    def _put(self, version: int, content: str) -> None:
        """Raises FileExistsError when the version is there."""
        put_if_absent(self._log, f"{version:0{_DIGITS}}.json", content.encode())

    def _checkpoint(self, last: int) -> None:
        """Delta's library makes it in a folder of links to the log; what it made is moved when it is on disk."""
        beside = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self._path.parent))
        try:
            log = beside / self._log.name
            log.mkdir()
            for entry in os.scandir(self._log):
                version = entry.name[:_DIGITS]
                if version.isdigit() and last <= int(version) <= self.version:
                    os.link(entry.path, log / entry.name)
            if last >= 0:  # a crash between the renames below leaves a checkpoint without the hint
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self._log / _LAST_CHECKPOINT, log / _LAST_CHECKPOINT)
            DeltaTable(str(beside)).create_checkpoint()
            for name in (f"{self.version:0{_DIGITS}}.checkpoint.parquet", _LAST_CHECKPOINT):
                sync_file(log / name)
                os.replace(log / name, self._log / name)
                sync_folder(self._log)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _remove_scratch(self) -> None:
        """What a crash left; young ones may be another writer's."""
        for path in (*self._log.glob(f"{SCRATCH_PREFIX}*"), *self._path.parent.glob(f"{SCRATCH_PREFIX}*")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime < _SCRATCH_S:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _error(self, error: Exception) -> LakeError:
        return LakeError(f"table {self._path}: {error}; its log cannot be used as it is")
