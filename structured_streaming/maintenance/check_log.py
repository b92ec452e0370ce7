"""What must hold of a lake's tables and a log: each record has exactly the rows that the reput makes of it.

Compared are row keys, over the part of the log that the lake says it holds, less what its progress says a table was left
out of, a bounded number of rows at a time. Of quarantine
it is the bytes that its rows stand for: where damage is long, a batch may have ended in the middle of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.log_source import LogSource, LogState
from store.scan import scan
from structured_streaming.maintenance.check_progress import Progress
from structured_streaming.maintenance.check_table import CheckedTable, counted_problem
from structured_streaming.maintenance.windows import OffsetFiles
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.pieces import Piece, taken
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records, Rejected
from structured_streaming.tables import QUARANTINE, Table

WINDOW_ROWS = 1_000_000
"""Of all tables that are expected at a time, beside those of one chunk of the log."""
_Keys = dict[str, list[pa.Table]]
_Extents = list[tuple[int, int]]
"""Of bytes of the log: begin and end."""


class LogCheck:
    """A log against the tables."""

    def __init__(self, log: LogSource, progress: Progress, tables: Sequence[CheckedTable]) -> None:
        self._log = log
        self._progress = progress
        self._files = {each.table.name: each.offset_files() for each in tables}
        self._tables = [each.table for each in tables if each.table is not QUARANTINE]
        self._missing = self._nothing()
        self._extra = self._nothing()
        self._bad: _Extents = []

    def problems(self) -> Iterator[str]:
        """What is wrong with the log, and with rows of tables. Raises SourceError, FileError."""
        state = self._log.describe()
        name = f"{state.broker}/{state.log_id}"
        held = self._progress.ends.get((state.broker, state.log_id))
        if held is None:
            if state.start < state.end:
                yield f"the lake holds nothing of {name}"
            return
        if held > state.end:
            yield f"the lake holds {name} up to {held:,}, the log ends at {state.end:,}"
        first = max(self._progress.starts[state.broker, state.log_id], state.start)
        end = min(held, state.end)
        if first >= end:
            return
        self._compare(state, first, end)
        for table in self._missing:
            for problem in (
                *counted_problem("missing: the log has their records", self._missing[table]),
                *counted_problem("there once too often, or of no record of the log", self._extra[table]),
            ):
                yield f"{table}: {problem}"
        if QUARANTINE.name in self._files:
            yield from self._quarantined(self._files[QUARANTINE.name], state, first, end)

    def _compare(self, state: LogState, first: int, end: int) -> None:
        expected, count, begin = self._nothing(), 0, first
        for offset, data in self._log.read(state.log_id, first, end):
            if count >= WINDOW_ROWS:
                self._compare_window(state, expected, begin, offset)
                expected, count, begin = self._nothing(), 0, offset
            for table, keys in self._keys(state, offset, data):
                if table.name in expected:
                    expected[table.name].append(keys)
                    count += keys.num_rows
        self._compare_window(state, expected, begin, end)

    def _compare_window(self, state: LogState, expected: _Keys, begin: int, end: int) -> None:
        for table in self._tables:
            key = list(table.key)
            there = _of_log(self._files[table.name].between(key, begin, end), state).select(key)
            wanted = pa.concat_tables([there.schema.empty_table(), *expected[table.name]])
            both = pa.concat_tables([_weighed(wanted, 1), _weighed(there, -1)])
            sums = both.group_by(key, use_threads=False).aggregate([("weight", "sum")])
            missing = sums.filter(pc.greater(sums["weight_sum"], 0)).select(key)
            self._missing[table.name].append(self._filled(table, state, missing))
            self._extra[table.name].append(sums.filter(pc.less(sums["weight_sum"], 0)).select(key))

    def _filled(self, table: Table, state: LogState, keys: pa.Table) -> pa.Table:
        """Those of the parts of the log that the table has rows of."""
        parts = self._progress.filled.get(((state.broker, state.log_id), table.name), [])
        begins, ends = (np.array([part[at] for part in parts], dtype=np.int64) for at in (0, 1))
        offsets = keys["physical_offset"].to_numpy()
        at = np.searchsorted(begins, offsets, side="right") - 1
        within = np.zeros(len(offsets), dtype=bool)
        within[at >= 0] = offsets[at >= 0] < ends[at[at >= 0]]
        return keys.filter(pa.array(within))

    def _keys(
        self, state: LogState, offset: int, data: bytes | memoryview
    ) -> Iterator[tuple[Table, pa.Table]]:
        """Row keys that a chunk of the log leads to; notes what goes to quarantine."""
        found = scan(data, offset, segment_size=state.segment_size)
        piece = Piece(state.broker, state.log_id, state.delay_levels, found)
        rejected: list[Rejected] = []
        for result in taken(piece, _keys_of, _keys_of):
            if isinstance(result, Rejected):
                rejected.append(result)
            else:
                keys, its = result
                rejected += its
                yield from keys
        self._bad += _extents(quarantine(state.broker, state.log_id, found, rejected))

    def _quarantined(self, files: OffsetFiles, state: LogState, first: int, end: int) -> Iterator[str]:
        rows = _of_log(files.between(["broker", "log_id", "length"], first, end), state)
        there, expected = set(_joined(_extents(rows))), set(_joined(self._bad))
        for what, extents in (("missing", expected - there), ("there, but not bad", there - expected)):
            if extents:
                begin, behind = min(extents)
                yield f"{QUARANTINE.name}: {len(extents):,} damaged extents are {what}, such as {begin:,} to {behind:,}"

    def _nothing(self) -> _Keys:
        return {table.name: [] for table in self._tables}


def _keys_of(records: Records) -> tuple[list[tuple[Table, pa.Table]], list[Rejected]]:
    keys = [(table, _key_columns(table, rows)) for table, parts in rows_of(records) for rows in parts]
    return keys, records.rejected


def _key_columns(table: Table, rows: pa.Table) -> pa.Table:
    schema = pa.schema([table.schema.field(name).remove_metadata() for name in table.key])
    return rows.select(table.key).cast(schema)


def _of_log(rows: pa.Table, state: LogState) -> pa.Table:
    return rows.filter(
        pc.and_(pc.equal(rows["broker"], state.broker), pc.equal(rows["log_id"], state.log_id))
    )


def _weighed(keys: pa.Table, weight: int) -> pa.Table:
    return keys.append_column("weight", pa.repeat(pa.scalar(weight, pa.int64()), keys.num_rows))


def _extents(rows: pa.Table) -> _Extents:
    """Of the bytes that rows of quarantine stand for, which are few."""
    starts, lengths = rows["physical_offset"].to_pylist(), rows["length"].to_pylist()
    return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]


def _joined(extents: Iterable[tuple[int, int]]) -> _Extents:
    """Those that touch as one."""
    joined: _Extents = []
    for begin, end in sorted(extents):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
