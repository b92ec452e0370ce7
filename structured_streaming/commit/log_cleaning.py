"""What the log of a table says of files that are the table's no more, when rows of them are to be nowhere: their statistics hold
least and greatest values, such as keys.

| in the log | then |
|---|---|
| a commit | stays, without the statistics of such files: whoever follows the log sees the same adds and removes, and the name of the version stays taken, so that a writer who is behind cannot commit to it once more |
| a checkpoint that holds such statistics | one of the newest version is made first, and it is removed: versions before cannot be read any more, but where all commits are there. One of the newest version itself is put anew |
| a version's checksum (`crc`) or compacted commits with files in them | removed: nobody needs them |
| Hadoop's checksum of a file that changes | removed before the file is changed |
| a commit's file that was never put in place | removed after an hour |

Every step may be the last one of a process that is killed: the next call finds what is left. A commit that is clean is read once: a version's
stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from structured_streaming.commit.last_checkpoint import checkpoints, newest_checkpoint, point_to_newest
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import (
    LOG,
    commit_name,
    is_checkpoint,
    version_of,
)
from structured_streaming.storage.folder import Folder

MayHave = Callable[[Mapping[str, Any]], bool]
"""Whether a file with these statistics may have such rows."""
_YOUNG_S = 3600
_OF_FILES = ("add", "remove")
_DERIVED = (".crc", ".compacted.json")


class LogCleaning:
    """Of the table in `folder`, as `log` was read last: `live` are the paths of that version's files, which have no such rows.
    Calls raise LakeError, OSError."""

    def __init__(self, folder: Folder, log: TableLog, live: Container[str], may_have: MayHave) -> None:
        self._folder = folder.child(LOG)
        self._log = log
        self._live = live
        self._may_have = may_have
        self.told: dict[str, bool] = {}
        """By path, of files that were none of the version's when a commit was read that states their statistics: whether they may have
        such rows."""
        self._clean: set[str] = set()
        """Commits without such statistics."""

    def follow(self, live: Container[str]) -> None:
        """The log was read again."""
        self._live = live

    def is_needed(self) -> bool:
        """Whether commits or checkpoints have such statistics."""
        with self._readable():
            old = self._old()
            return any(changed is not None for _, changed in self._commits(old)) or any(
                map(self._checkpoint_holds, filter(is_checkpoint, old))
            )

    def run(self) -> int:
        """How many files were changed or removed."""
        with self._readable():
            return self._run()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """What others wrote may be no log."""
        try:
            yield
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise LakeError(f"{self._folder}: {error}; this log cannot be used as it is") from error

    def _run(self) -> int:
        old = self._old()
        done = 0
        for name, changed in self._commits(old):
            if changed is not None:
                done += self._cleaned(name)
        for name in old:
            if name.endswith(_DERIVED) and self._holds(self._folder.read(name)):
                _remove(self._folder, name)
                done += 1
        done += self._checkpoints({name: version for name, version in old.items() if is_checkpoint(name)})
        return done + self._unfinished()

    def _cleaned(self, name: str) -> bool:
        """Whether a commit was put without such statistics. Read once more just before: another round may have taken others out of it."""
        changed = next((self._changed(content) for content in self._folder.read_each([name])), None)
        if changed is not None:
            self._folder.remove(f".{name}.crc")
            self._folder.replace(name, changed)
        self._clean.add(name)
        return changed is not None

    def _old(self) -> dict[str, int]:
        """What the log had by the version that was read, with the version that its name begins with."""
        versions = ((name, version_of(name)) for name in self._folder.names())
        return {
            name: version
            for name, version in versions
            if version is not None and version <= self._log.version
        }

    def _checkpoints(self, names: Mapping[str, int]) -> int:
        """Those that hold such statistics go, with all their parts, once there is a newer one."""
        held = {version for name, version in names.items() if self._checkpoint_holds(name)}
        if not held:
            return 0
        self._log.checkpoint()
        for name in checkpoints(self._folder).get(self._log.version, ()):
            if self._checkpoint_holds(name):
                self._rewrite(name)  # of files that were removed it says what its writer's commits said
        gone = [name for name, version in names.items() if version in held and version < self._log.version]
        for name in gone:
            _remove(self._folder, name)
        point_to_newest(self._folder)
        return len(held)

    def _rewrite(self, name: str) -> None:
        """Puts a checkpoint in its own place without such statistics."""
        found = pq.ParquetFile(self._folder.readable(name)).read()
        for kind in _OF_FILES:
            if kind in found.column_names:
                at = found.schema.get_field_index(kind)
                found = found.set_column(
                    at, found.schema.field(at), self._without(found[kind].combine_chunks())
                )
        content = pa.BufferOutputStream()
        pq.write_table(found, content)
        self._folder.remove(f".{name}.crc")
        self._folder.replace(name, content.getvalue().to_pybytes())

    def _without(self, files: pa.StructArray) -> pa.StructArray:
        """Actions of one kind, such statistics null; no parsed ones, which nobody needs."""
        tell = pa.array([self._tells(each or {}) for each in files.to_pylist()], pa.bool_())
        arrays = []
        for number, each in enumerate(files.type):
            values = files.field(number)
            if each.name == "stats":
                values = pc.if_else(tell, pa.scalar(None, each.type), values)
            elif each.name == "stats_parsed":
                values = pa.nulls(len(files), each.type)
            arrays.append(values)
        return pa.StructArray.from_arrays(arrays, fields=list(files.type), mask=files.is_null())

    def _checkpoint_holds(self, name: str) -> bool:
        try:
            found = pq.ParquetFile(self._folder.readable(name))
            wanted = [
                f"{kind}.{column}" for kind in _OF_FILES for column in ("path", "stats", "stats_parsed")
            ]
            rows = found.read(columns=wanted)
        except pa.ArrowException as error:
            raise LakeError(f"checkpoint {self._folder}/{name} cannot be read: {error}") from error
        return any(
            self._tells(each) for kind in rows.column_names for each in rows[kind].drop_null().to_pylist()
        )

    def _commits(self, old: Mapping[str, int]) -> Iterator[tuple[str, bytes | None]]:
        """Those that are not known to be clean: what is to be in their place, None where they are."""
        left = sorted(
            name for name, version in old.items() if name == commit_name(version) and name not in self._clean
        )
        while left:
            read = 0
            for content in self._folder.read_each(left):
                name, changed = left[read], self._changed(content)
                read += 1
                if changed is None:
                    self._clean.add(name)
                yield name, changed
            left = left[read + 1 :]  # another process removed that one

    def _changed(self, content: bytes) -> bytes | None:
        """A commit without such statistics; None where it has none."""
        lines, changed = content.splitlines(), False
        for number, line in enumerate(lines):
            if b'"stats"' not in line:
                continue
            action = json.loads(line)
            for kind in _OF_FILES:
                file = action.get(kind) or {}
                tells = self._tells(file)
                if file.get("stats") and file["path"] not in self._live:
                    self.told[file["path"]] = tells
                if tells:
                    action[kind] = {
                        key: value for key, value in action[kind].items() if not key.startswith("stats")
                    }
                    lines[number], changed = json.dumps(action).encode(), True
        return b"\n".join(lines) + b"\n" if changed else None

    def _tells(self, file: Mapping[str, Any]) -> bool:
        """Whether what is said of a file may be of such rows."""
        if not file or file.get("path") in self._live:
            return False
        if file.get("stats"):
            stated = json.loads(file["stats"])
            return self._may_have(stated if isinstance(stated, dict) else {})
        return file.get("stats_parsed") is not None

    def _holds(self, content: bytes) -> bool:
        """Whether a checksum, or compacted commits, have such statistics anywhere; what is no JSON counts as if it had."""
        try:
            return any(self._anywhere(json.loads(line)) for line in content.splitlines())
        except ValueError:
            return True

    def _anywhere(self, value: Any) -> bool:
        if isinstance(value, list):
            return any(map(self._anywhere, value))
        if not isinstance(value, dict):
            return False
        return ("path" in value and self._tells(value)) or any(map(self._anywhere, value.values()))

    def _unfinished(self) -> int:
        """Removes what a crash left of commits of other writers."""
        done = 0
        for name in self._folder.names():
            if not is_unfinished(name):
                continue
            status = self._folder.status(name)
            if status is not None and time.time() - status.modified > _YOUNG_S:
                _remove(self._folder, name)
                done += 1
        return done


def is_unfinished(name: str) -> bool:
    """Whether a file of a log is one of another writer's commits that has not its name yet."""
    return name.endswith(".tmp")


def remove_checkpoints(table: Folder, version: int) -> int:
    """Removes checkpoints of versions before this one, where there is one of it or of a later one: another writer that was making one
    while the log was cleaned may have put it since. How many files went. Raises OSError."""
    folder = table.child(LOG)
    if newest_checkpoint(folder) < version:
        return 0
    versions = ((name, version_of(name)) for name in folder.names() if is_checkpoint(name))
    late = [name for name, its in versions if its is not None and its < version]
    for name in late:
        _remove(folder, name)
    point_to_newest(folder)
    return len(late)


def _remove(folder: Folder, name: str) -> None:
    folder.remove(f".{name}.crc")
    folder.remove(name)
