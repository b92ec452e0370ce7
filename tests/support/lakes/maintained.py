"""Lakes of real logs, made in this process, and what must be the same before and after maintenance."""

from __future__ import annotations

import itertools
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from store.log_source import FolderLog
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.ends import Ends, FollowedEnds
from structured_streaming.commit.sink import AfterStep, no_step
from structured_streaming.commit.table_log import TableLog
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import REPUT_PROGRESS, TABLES
from tests.support.lakes import checks
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.empty import empty_lake


class ReputLake:
    """A store, and a lake that a reput without Spark fills from it, `batch_bytes` at a time; in its middle are `damage` bytes.

    The lake is in `folder`, or at `location`.
    """

    def __init__(self, folder: Path, batch_bytes: int = 20_000, damage: int = 0, location: str = "") -> None:
        self.store, self.lake = folder / "store", folder / "lake"
        self.location = location or str(self.lake)
        self._batch_bytes = batch_bytes
        with LogWriter(self.store) as writer:
            writer.everything()
            if damage:
                writer.raw(b"no record at all".ljust(damage, b"?"))
            writer.everything()
        self.reader = LogReader(self.store)
        empty_lake(self.location)
        self.sink = DeltaCommitSink(self.location)

    def copied(self, folder: Path) -> ReputLake:
        """One in another folder that begins with what this one has."""
        made = copy(self)
        made.store, made.lake = folder / "store", folder / "lake"
        copy_folder(self.store, made.store)
        copy_folder(self.lake, made.lake)
        made.location = str(made.lake)
        made.reader, made.sink = LogReader(made.store), DeltaCommitSink(made.location)
        return made

    def batches(self) -> list[tuple[int, int]]:
        """What is not in the lake yet, in batches."""
        reader = self.reader
        start = ends(self.location).get((reader.broker, reader.log_id), reader.min_offset)
        if start == reader.readable_offset:
            return []
        return list(itertools.pairwise(reader.split(start, reader.readable_offset, self._batch_bytes)))

    def manifest(self, start: int, end: int) -> list[dict[str, Any]]:
        """A batch, staged."""
        reader = self.reader
        part = LogRange("store:x", reader.broker, reader.log_id, start, end, reader.readable_offset)
        chunks = ((offset, data) for offset, data, _ in reader.read_chunks(start, end, 1 << 30))
        return [row for batch in stage(self.location, part, chunks) for row in batch.to_pylist()]

    def fill(self, batches: int | None = None) -> None:
        """Commits so many batches, or all that are left."""
        for start, end in self.batches()[:batches]:
            self.sink.commit(self.manifest(start, end))

    def rows(self) -> dict[str, pa.Table]:
        """Every table as delta-rs reads it, in the order of row keys."""
        return {name: rows_of(self.location, name) for name in TABLES}

    def transactions(self) -> dict[str, list[int | None]]:
        """What each table says that it holds, of the log and of batches."""
        log = f"{self.reader.broker}/{self.reader.log_id}"
        opened = {name: DeltaTable(f"{self.location}/{name}") for name in TABLES}
        return {
            name: [table.transaction_version(log), table.transaction_version("lakebroker-batch")]
            for name, table in opened.items()
        }


def ends(location: str) -> Ends:
    """How far each log is in a lake; none of the other tables is opened."""
    folder = lake_folder(location)
    return FollowedEnds(folder).at(TableLog(folder.child(REPUT_PROGRESS.name)))


def reput(
    store: Path,
    lake: Path | str,
    batch_bytes: int = 1 << 30,
    wanted: Wanted = EVERYTHING,
    after_step: AfterStep = no_step,
) -> None:
    """Commits to a lake, which is made where there is none, what it has not of the log in `store`."""
    location = str(lake)
    empty_lake(location)
    log = FolderLog(store)
    state = log.describe()
    known = ends(location).get((state.broker, state.log_id), state.start)
    if known < state.end:
        sink = DeltaCommitSink(location, after_step, wanted)
        for start, end in itertools.pairwise(log.split(state.log_id, known, state.end, batch_bytes)):
            size = state.segment_size
            part = LogRange("store:x", state.broker, state.log_id, start, end, state.end, segment_size=size)
            part.erased = tuple(each for each in log.erased(state.log_id).tolist() if start <= each < end)
            chunks = log.read(state.log_id, start, end)
            sink.commit([row for batch in stage(location, part, chunks, wanted) for row in batch.to_pylist()])
    log.close()


def rows_of(lake: Path | str, name: str) -> pa.Table:
    """A table's rows in the order of their keys."""
    return checks.rows(lake, name).sort_by([(column, "ascending") for column in TABLES[name].key])


def assert_same(before: dict[str, pa.Table], after: dict[str, pa.Table]) -> None:
    """Row for row."""
    for name, rows in before.items():
        assert after[name].equals(rows), f"rows of {name} changed"
