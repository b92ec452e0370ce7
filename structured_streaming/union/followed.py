"""A lake in a folder or an object store, followed commit by commit, without Spark."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from structured_streaming.commit.ends import Ends, FollowedEnds
from structured_streaming.commit.erasures_log import Erasures
from structured_streaming.commit.table_log import TableLog, log_error
from structured_streaming.commit.taken_away import emptied
from structured_streaming.commit.typed_declared import left_out, readable, typed_names
from structured_streaming.commit.upkeep_log import read_upkeep
from structured_streaming.erased import Erased
from structured_streaming.storage.delta_names import LOG, SPARK_APPLICATION, commit_name
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, UPKEEP
from structured_streaming.typed.declaration import NAME, Declaration
from structured_streaming.union.instants import Instant
from structured_streaming.upkeep import Upkeep


class FollowedLake:
    """What the logs of a lake's tables say. Calls raise LakeError. `repeats`: what is otherwise said once is said each time."""

    def __init__(self, folder: Folder, *, repeats: bool = False) -> None:
        self.folder = folder
        self._repeats = repeats
        self._logs: dict[str, TableLog] = {}
        self._ends = FollowedEnds(folder)
        self._upkeep: tuple[int, Upkeep] = -1, Upkeep()
        self._told: set[tuple[str, int]] = set()
        self._whole: dict[str, tuple[tuple[Declaration, Any], dict[str, int]]] = {}
        """Up to where typed tables lacked nothing, by their names, and of which declaration and table that was."""
        self._erasures: Erasures | None = None

    def newest(self, tables: Iterable[str]) -> Instant:
        """With the versions of `tables` and of the progress, which is read first."""
        progress = self._followed(REPUT_PROGRESS.name)
        ends, versions = self._ends.at(progress), {REPUT_PROGRESS.name: progress.version}
        for name in tables:
            if name not in versions:
                versions[name] = self._followed(name).version
        return Instant(ends, versions, retired=self.retired(), hidden=self.hidden())

    def emptied(self, tables: Iterable[str]) -> Iterator[str]:
        """What is to be said of tables that others emptied, as of when their logs were read last. Nothing of a lake that Spark's
        writer commits to: there retention and a crash's repair are commits of Spark, too."""
        for name in tables:
            taken = (self._logs.get(name) or self._followed(name)).taken
            told = not self._repeats and taken is not None and (name, taken.version) in self._told
            if taken is None or told or self._is_sparks(name):
                continue
            folder = self.folder.child(name)
            is_empty = emptied(folder, taken)
            self._told.add((name, taken.version))
            if is_empty:
                yield (
                    f"table {folder} lacks rows: version {taken.version} ({taken.how}) took all away that it had; RESTORE TABLE to version "
                    f"{taken.version - 1} brings them back, without what came since, until maintenance removes their files a day later; or "
                    "fill a new lake from the log"
                )

    def _is_sparks(self, name: str) -> bool:
        logs = (self._followed(REPUT_PROGRESS.name), self._logs[name])
        return any(log.transaction_version(SPARK_APPLICATION) is not None for log in logs)

    def retired(self) -> frozenset[str]:
        """Brokers that views and unions leave out, as of now."""
        return frozenset(self._decided().retired)

    def hidden(self) -> Erased:
        """Erased records that tables may have rows of, as of now."""
        return self._named().unsettled(self._decided().settled)

    def unsettled(self, erased: Erased) -> Erased:
        """Of erased records those that tables may have rows of."""
        named = self._named()
        return erased.without(named.every().without(named.unsettled(self._decided().settled)))

    def committed(self) -> datetime.datetime | None:
        """When the newest batch was committed; None where that is not known."""
        return committed(self.folder)

    def typed(self) -> list[Declaration]:
        """Its typed topics whose tables can be read."""
        return readable(self.folder)

    def typed_metadata(self) -> dict[str, dict[str, Any]]:
        """Of the tables with names of typed ones that can be read, as of now. Another look costs the names of the lake's tables and
        what is new in these tables' logs."""
        names = typed_names(self.folder, self._logs)
        for gone in [name for name in self._logs if NAME.fullmatch(name) and name not in names]:
            del self._logs[gone]
        found = {}
        for name in names:
            with left_out(name, lambda problem: None):
                found[name] = self._followed(name).metadata
        return found

    def forget(self) -> None:
        """Reads logs of tables anew: one may have been made again under its name."""
        self._logs.clear()

    def lacks(self, declared: Declaration, ends: Ends) -> int:
        """Bytes of logs below their ends that are in the lake, and not looked at for a typed table."""
        from structured_streaming.commit.typed_fill import lacking  # compiled code: not for tables alone

        log = self._followed(declared.table)
        table = declared, log.metadata.get("id")
        before, whole = self._whole.get(declared.table, (table, {}))
        if before != table:
            whole = {}
        found = lacking(self.folder, log, declared, whole)
        if (
            not found.stretches
        ):  # of a quiet topic, whose table is at no version of late, batches are looked at once
            self._whole[declared.table] = table, {**whole, **found.ends}
        return found.below(ends)

    def _decided(self) -> Upkeep:
        version = self._followed(UPKEEP.name).version
        if version != self._upkeep[0]:
            self._upkeep = version, read_upkeep(self.folder)
        return self._upkeep[1]

    def _named(self) -> Erasures:
        """As `erasures` is now."""
        if self._erasures is None:
            self._erasures = Erasures(self.folder)
        self._erasures.follow()
        return self._erasures

    def _followed(self, name: str) -> TableLog:
        if name in self._logs:
            self._logs[name].follow()
        else:
            self._logs[name] = TableLog(self.folder.child(name), reads=True)
        return self._logs[name]


def committed(folder: Folder) -> datetime.datetime | None:
    """When the newest batch of a lake was committed; None where that is not known. Raises LakeError."""
    progress = folder.child(REPUT_PROGRESS.name)
    version = TableLog(progress, reads=True).version
    times: list[int] = []
    try:
        while not times and version > 0:
            for line in progress.child(LOG).read(commit_name(version)).splitlines():
                if file := json.loads(line).get("add"):
                    rows = pq.ParquetFile(progress.readable(unquote(file["path"])))
                    found = rows.read(columns=["commit_timestamp"])
                    times += [each.value for each in found["commit_timestamp"] if each.is_valid]
            version -= 1
    except FileNotFoundError:  # maintenance has removed what is that old
        return None
    except (OSError, ValueError) as error:
        raise log_error(progress, error) from error
    return datetime.datetime.fromtimestamp(max(times) / 1_000_000, datetime.UTC) if times else None
