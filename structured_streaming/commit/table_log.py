"""One table's `_delta_log`: commits that a power cut cannot take back once they returned.

Delta's own libraries link a commit's file into place and leave it to the system when it is on disk. Here a commit
is put by `storage`, durable before it has its name, and not over another writer's. So a version that has its name has
its content, and none has its name before the one below it. Checkpoints likewise.

| what | cost |
|---|---|
| a commit | its own file and those of other writers since; nothing that grows with the table |
| opening | the application transactions of the newest checkpoint, the commits behind it, and what is not on disk yet |
| a checkpoint | the table's files, and those that went within a day; one follows when the commits since the last are a fiftieth of them, and at least 100 |
"""

from __future__ import annotations

import contextlib
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

from structured_streaming.commit.last_checkpoint import (
    checkpoints,
    hinted,
    newest_checkpoint,
    point_to_newest,
)
from structured_streaming.commit.table_schema import check, plain
from structured_streaming.commit.taken_away import ENGINE, TakenAway, taken_away
from structured_streaming.errors import LakeError, of_the_system
from structured_streaming.lake import schema_version
from structured_streaming.storage.delta_names import (
    LOG,
    checkpoint_name,
    commit_name,
)
from structured_streaming.storage.folder import Folder

WRITER_VERSION = 2
"""Of Delta's protocol: what a plain append has to know."""
COPY = "COPY"
"""What commits are called that make a table the copy of another one."""
CHECKPOINT_COMMITS = 100
CHECKPOINT_SHARE = 50
"""Of the actions of a checkpoint, to which the commits behind it grow: a reader opens those one by one, some 0.3 ms each; a checkpoint
costs some 2 us and 50 bytes for each action."""
_MOST_COMMITS = 10_000
"""Behind a checkpoint, however many actions its hint says that it has."""
_SCRATCH_S = 3600
_SLEPT_S = 3600
"""Who has not followed a log for longer looks for the newest checkpoint by name: the commits behind its version may be gone."""
_TRIES = 5
"""To read a checkpoint that another process removes meanwhile."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""A log that cannot be read, or whose content is none of Delta's."""


class VersionTakenError(LakeError):
    """Another writer committed the version."""


class _Known(NamedTuple):
    """A version, and what an append has to know of it."""

    version: int
    transactions: dict[str, int]
    metadata: dict[str, Any]
    taken: TakenAway | None = None


class TableLog:
    """The log of the table in `folder`, as far as it was read. Every call raises LakeError.

    `schema` is that of files for it; the table must fit (`table_schema.py`), or readers would not see what they hold. For
    who only `reads` nothing is made durable or removed, and features that concern writers alone are none of its business.
    """

    def __init__(self, folder: Folder, schema: pa.Schema | None = None, *, reads: bool = False) -> None:
        self.folder = folder
        self._reads = reads
        self._schema = schema
        self.metadata: dict[str, Any] = {}
        """As it was read last."""
        self.taken: TakenAway | None = None
        """The newest commit of another program that took rows away, of those behind the checkpoint that was read."""
        self._log = folder.child(LOG)
        self._tries = 0
        self._followed_at = time.time()
        self.version = -1
        self.transactions: dict[str, int] = {}
        self._open()

    def transaction_version(self, application: str) -> int | None:
        """The newest version that an application gave with its commits."""
        return self.transactions.get(application)

    def follow(self) -> None:
        """Reads, and makes durable, what other writers committed. What fails leaves all as it was known."""
        try:
            begun = time.time()
            self._believe(self._follow(_Known(self.version, self.transactions, self.metadata, self.taken)))
            hint = hinted(self._log)
            doubtful = hint is None or hint[0] > self.version or begun - self._followed_at > _SLEPT_S
            if doubtful and newest_checkpoint(self._log) > self.version:
                self._open()  # the commits between are gone
            self._followed_at = begun
        except _UNREADABLE as error:
            raise log_error(self.folder, error) from error

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

    def rewrite(
        self, removed: Iterable[tuple[str, int]], files: Iterable[Mapping[str, Any]], *, deletes: bool = False
    ) -> None:
        """Commits files in the place of others, `removed` (path as the log has it, bytes), that hold the same rows, or some of
        them where it `deletes`.

        As `append`. Whether the removed ones are still the table's is the caller's to know. When it raises anything
        but VersionTakenError the version may be there all the same.
        """
        self._put(_rewriting(removed, files, deletes=deletes))

    def take_over(
        self,
        removed: Iterable[tuple[str, int]],
        files: Iterable[Mapping[str, Any]],
        transactions: Mapping[str, int],
        metadata: Mapping[str, Any],
    ) -> None:
        """Commits what makes this table the same as another one, of which it is a copy: files that it lacks, those that are gone
        there (as for `rewrite`), how far it was committed, its metadata where it is another one. As `append`."""
        now = time.time_ns() // 1_000_000
        changed = [{"metaData": metadata}] if plain(metadata) != plain(self.metadata) else []
        self._put(
            [
                _information(now, COPY, {}, blind=False),
                *changed,
                *_transacting(transactions, now),
                *(_removing(path, size, now, changes=True) for path, size in removed),
                *(_adding(file, now, changes=True) for file in files),
            ]
        )
        self.transactions.update(transactions)
        self.metadata = dict(metadata)

    def last_operation(self) -> str:
        """What the newest commit says that it is; empty where it is not there any more, or does not say."""
        try:
            for line in self._log.read(commit_name(self.version)).splitlines():
                if (said := json.loads(line).get("commitInfo")) is not None:
                    return str(said.get("operation", ""))
        except FileNotFoundError:
            return ""
        except _UNREADABLE as error:
            raise log_error(self.folder, error) from error
        return ""

    def checkpoint_if_due(self, commits: int | None = None, share: int | None = None) -> None:
        """A checkpoint that fails is tried again later, and said: nothing but time depends on it.

        One is due after `commits` (`CHECKPOINT_COMMITS`), and a `share` (`CHECKPOINT_SHARE`) of the last one's actions.
        """
        try:
            last, size = self._newest_checkpoint()
            least = max(
                commits or CHECKPOINT_COMMITS, min(size // (share or CHECKPOINT_SHARE), _MOST_COMMITS)
            )
            least *= 1 + self._tries
            if self.version - max(last, 0) < least:
                return
            self._checkpoint()
            self._tries = 0
            # another process may be cleaning up, too; the next checkpoint removes what is left
            with contextlib.suppress(FileNotFoundError):
                DeltaTable(self.folder.uri).cleanup_metadata()
        except (OSError, DeltaError, pa.ArrowException) as error:
            self._tries += 1
            sys.stderr.write(f"lakebroker: no checkpoint of {self.folder} could be made: {error}\n")

    def checkpoint(self) -> None:
        """Makes a checkpoint of the version that was read last; one of it, or of a later one, may be there. Raises LakeError."""
        try:
            if newest_checkpoint(self._log) < self.version:
                self._checkpoint()
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise LakeError(f"no checkpoint of {self.folder} could be made: {error}") from error

    def _put(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """The next version."""
        try:
            content = "".join(json.dumps(action) + "\n" for action in actions)
            self._log.put_if_absent(commit_name(self.version + 1), content.encode())
        except FileExistsError as error:
            raise VersionTakenError(
                f"version {self.version + 1} of {self.folder} is another writer's"
            ) from error
        except OSError as error:
            raise log_error(self.folder, error) from error
        self.version += 1

    def _open(self) -> None:
        if not self._log.exists():
            raise LakeError(f"{self.folder} is no Delta table; make the lake's tables with `lakebroker init`")
        try:
            known = self._begun()
            if known.version >= 0 and not self._reads:
                # another writer may have made it, and what it speaks of: rows that were durable in files that are gone
                self.folder.make_all_durable()
            known = self._follow(known)
            if not self._reads:
                self._log.make_durable(())
                self._log.remove_scratch(_SCRATCH_S)
                self.folder.parent.remove_scratch(_SCRATCH_S)
        except _UNREADABLE as error:
            raise log_error(self.folder, error) from error
        if known.version < 0 or "configuration" not in known.metadata:
            raise LakeError(f"{self._log} holds neither a whole checkpoint nor version 0; restore them")
        self._believe(known)

    def _begun(self) -> _Known:
        """What the newest checkpoint says. An erasure may put another one in its place meanwhile."""
        for left in reversed(range(_TRIES)):
            found = checkpoints(self._log)
            newest = max(found, default=-1)
            try:
                return _Known(-1, {}, {}) if newest < 0 else self._read_checkpoint(newest, found[newest])
            except FileNotFoundError:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _believe(self, known: _Known) -> None:
        """Files are added to the table as it is now, however it was before."""
        if known.metadata is not self.metadata:
            schema_version(self.folder, known.metadata["configuration"])
            if self._schema is not None:
                check(self.folder, known.metadata, self._schema)
        self.version, self.transactions, self.metadata, self.taken = known

    def _follow(self, known: _Known) -> _Known:
        """The newest version, from a known one on; durable."""
        version, metadata, taken = known.version, known.metadata, known.taken
        transactions, read, added = dict(known.transactions), list[str](), list[str]()
        for content in self._log.read_each(map(commit_name, itertools.count(version + 1))):
            actions = [json.loads(line) for line in content.splitlines()]
            for action in actions:
                added += self._take(action, version + 1, transactions)
                if "metaData" in action:
                    metadata = plain(action["metaData"])
            version += 1
            taken = taken_away(actions, version, taken)
            read.append(commit_name(version))
        if read and not self._reads:
            # another writer's file may hold rows that were durable in ours; it may be vacuumed since
            self.folder.make_durable(added)
            self._log.make_durable(read)
        return _Known(version, transactions, metadata, taken)

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
                f"{self.folder} asks for Delta writer version {protocol['minWriterVersion']}, the reput writes "
                f"{WRITER_VERSION}: a table feature was turned on; turn it off (ALTER TABLE … DROP FEATURE)"
            )

    def _newest_checkpoint(self) -> tuple[int, int]:
        """Version and number of actions of the newest checkpoint; (-1, 0) without one."""
        hint = hinted(self._log)
        return hint if hint is not None and hint[0] <= self.version else (newest_checkpoint(self._log), 0)

    def _read_checkpoint(self, version: int, parts: Iterable[str]) -> _Known:
        transactions, metadata = dict[str, int](), dict[str, Any]()
        for part in sorted(parts):
            found = pq.ParquetFile(self._log.readable(part)).read(columns=["txn", "protocol", "metaData"])
            for txn in _present(found["txn"]):
                transactions[txn["appId"]] = txn["version"]
            for protocol in _present(found["protocol"]):
                self._check_protocol(protocol)
            for each in _present(found["metaData"]):
                metadata = plain(each)
        return _Known(version, transactions, metadata)

    def _checkpoint(self) -> None:
        """Delta's library makes it of the newest whole checkpoint and what was committed since.

        It finds that checkpoint by its name: the hint may meanwhile name another writer's, which is not among these.
        """
        there = {
            version: names for version, names in checkpoints(self._log).items() if version < self.version
        }
        last = max(there, default=-1)
        commits = [commit_name(version) for version in range(last + 1, self.version + 1)]
        self._log.derive(
            [*there.get(last, ()), *commits],
            lambda uri: DeltaTable(uri, version=self.version).create_checkpoint(),
            (checkpoint_name(self.version),),
        )
        point_to_newest(self._log)


def log_error(folder: Folder, error: Exception) -> LakeError:
    """Of the table in `folder`: a full disk, say, is no fault of its log."""
    fault = "" if of_the_system(error) else "; its log cannot be used as it is"
    return LakeError(f"table {folder}: {error}{fault}")


def _present(column: pa.ChunkedArray) -> Iterator[Any]:
    """Values that are there; by Arrow's functions it takes longer to load them than to look."""
    return (each.as_py() for each in column if each.is_valid)


def begin_log(folder: Folder, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """The first version of a table in `folder`, without files; one that is there stays. Raises OSError."""
    now = time.time_ns() // 1_000_000
    actions = [_information(now, COPY, {}, blind=False), {"protocol": protocol}, {"metaData": metadata}]
    log = folder.child(LOG)
    log.make()
    with contextlib.suppress(FileExistsError):
        log.put_if_absent(commit_name(0), "".join(json.dumps(each) + "\n" for each in actions).encode())


def _appending(
    files: Iterable[Mapping[str, Any]], transactions: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Actions of a commit that appends."""
    now = time.time_ns() // 1_000_000
    yield _information(now, "WRITE", {"mode": "Append"}, blind=True)
    yield from _transacting(transactions, now)
    for file in files:
        yield _adding(file, now, changes=True)


def _rewriting(
    removed: Iterable[tuple[str, int]], files: Iterable[Mapping[str, Any]], *, deletes: bool
) -> Iterator[dict[str, Any]]:
    """Actions of a commit that adds no rows. Application transactions stay as they are."""
    now = time.time_ns() // 1_000_000
    yield _information(now, "DELETE" if deletes else "OPTIMIZE", {}, blind=False)
    for path, size in removed:
        yield _removing(path, size, now, changes=deletes)
    for file in files:
        yield _adding(file, now, changes=deletes)


def _information(now: int, operation: str, parameters: Mapping[str, str], *, blind: bool) -> dict[str, Any]:
    """What a table's history shows of a commit; `blind`: it depends on nothing that was there."""
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": ENGINE,
            "isBlindAppend": blind,
        }
    }


def _transacting(transactions: Mapping[str, int], now: int) -> Iterator[dict[str, Any]]:
    for application, version in transactions.items():
        yield {"txn": {"appId": application, "version": version, "lastUpdated": now}}


def _removing(path: str, size: int, now: int, *, changes: bool) -> dict[str, Any]:
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": now,
            "dataChange": changes,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": size,
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
