"""What must hold of a lake's tables and a log: each record has exactly the rows that the reput makes of it.

Compared are row keys, over the part of the log that the lake says it holds, less what its progress says a table was left
out of, what is erased, and what retention may have removed, a bounded number of rows at a time. Of quarantine
it is the bytes that its rows stand for: where damage is long, a batch may have ended in the middle of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.counting import counted
from store.log_source import LogSource, LogState
from store.scan import scan
from structured_streaming.erased import NOTHING_ERASED, Erased, hides
from structured_streaming.maintenance.age import LONG_AGO, bounds_of, stored_before, us
from structured_streaming.maintenance.check_progress import Progress
from structured_streaming.maintenance.check_table import CheckedTable, counted_problem
from structured_streaming.maintenance.windows import OffsetFiles
from structured_streaming.retention_rules import Bounds, latest
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.pieces import Piece, taken
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records, Rejected
from structured_streaming.tables import CONSUME_QUEUE, MESSAGE_INDEX, MESSAGES, QUARANTINE, Table

WINDOW_ROWS = 1_000_000
"""Of all tables that are expected at a time, beside those of one chunk of the log."""
_MAY_LACK = "may_lack"
"""Beside row keys: that retention may have removed the row."""
_WITH_MESSAGES = (CONSUME_QUEUE.name, MESSAGE_INDEX.name, MESSAGES.name)
_Keys = dict[str, list[pa.Table]]
_Extents = list[tuple[int, int]]
"""Of bytes of the log: begin and end."""


class LogCheck:
    """A log against the tables; `topics` are those of typed ones, by their names."""

    def __init__(
        self,
        log: LogSource,
        progress: Progress,
        tables: Sequence[CheckedTable],
        topics: Mapping[str, str] = MappingProxyType({}),
        gone: Sequence[Bounds] = (),
        erased: Erased = NOTHING_ERASED,
    ) -> None:
        """`gone`: bounds of retention; what is older may be missing. `erased`: records that the lake says are; those that the log
        lists come to them."""
        self._log = log
        self._progress = progress
        self._gone = gone
        self._erased = erased
        self._left = 0
        self._files = {each.table.name: each.offset_files() for each in tables}
        self._tables = [each.table for each in tables if each.table is not QUARANTINE]
        self._topics = topics
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
        if state.erased_version:
            its = Erased({(state.broker, state.log_id): self._log.erased(state.log_id)})
            self._erased = self._erased.together(its)
        self._compare(state, first, end)
        if self._left:
            one = self._left == 1
            yield (
                f"{counted(self._left, 'row')} of erased records {'is' if one else 'are'} there; `lakebroker maintain` removes "
                f"{'it' if one else 'them'}"
            )
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
            there = self._without_erased(table, there)
            there = there.append_column(_MAY_LACK, pa.repeat(pa.scalar(False), there.num_rows))
            wanted = pa.concat_tables([there.schema.empty_table(), *expected[table.name]])
            wanted = wanted.filter(pa.array(~self._erased.rows(wanted)))  # ends of queues
            both = pa.concat_tables([_weighed(wanted, 1), _weighed(there, -1)])
            sums = both.group_by(key, use_threads=False).aggregate([("weight", "sum"), (_MAY_LACK, "any")])
            lacking = pc.and_not(pc.greater(sums["weight_sum"], 0), sums[f"{_MAY_LACK}_any"])
            missing = sums.filter(lacking).select(key)
            covered = self._progress.covers(table.name, missing)
            self._missing[table.name].append(missing.filter(pa.array(covered)))
            self._extra[table.name].append(sums.filter(pc.less(sums["weight_sum"], 0)).select(key))

    def _keys(
        self, state: LogState, offset: int, data: bytes | memoryview
    ) -> Iterator[tuple[Table, pa.Table]]:
        """Row keys that a chunk of the log leads to; notes what goes to quarantine."""
        found = scan(data, offset, segment_size=state.segment_size)
        erased = self._erased.of((state.broker, state.log_id))
        piece = Piece(state.broker, state.log_id, state.delay_levels, found, erased)
        rejected: list[Rejected] = []
        for result in taken(piece, self._keys_of, self._keys_of):
            if isinstance(result, Rejected):
                rejected.append(result)
            else:
                keys, its = result
                rejected += its
                yield from keys
        self._bad += _extents(quarantine(state.broker, state.log_id, found, rejected))

    def _keys_of(self, records: Records) -> tuple[list[tuple[Table, pa.Table]], list[Rejected]]:
        keys = [
            (table, _key_columns(table, rows).append_column(_MAY_LACK, self._may_lack(table, rows)))
            for table, parts in rows_of(records)
            for rows in parts
        ]
        for table in self._tables:
            if table.name in self._topics:
                of_topic = np.flatnonzero(records.rows_on(self._topics[table.name]))
                its = _key_columns(table, pa.table(records.place(of_topic)))
                bound = us(latest(self._gone, self._topics[table.name]), LONG_AGO)
                old = pa.array(records.scan.store_timestamp[of_topic] < bound // 1000)
                keys.append((table, its.append_column(_MAY_LACK, old)))
        return keys, records.rejected

    def _without_erased(self, table: Table, rows: pa.Table) -> pa.Table:
        """Rows that are not of erased records; others are counted where none is to be."""
        mask = self._erased.rows(rows)
        if hides(table.name):
            self._left += int(mask.sum())
        return rows.filter(pa.array(~mask)) if mask.any() else rows

    def _may_lack(self, table: Table, rows: pa.Table) -> pa.Array:
        """Which rows retention may have removed."""
        if table.name not in _WITH_MESSAGES or not self._gone:
            return _none(rows)
        return pa.array(stored_before(rows, bounds_of(rows, partial(latest, self._gone))))

    def _quarantined(self, files: OffsetFiles, state: LogState, first: int, end: int) -> Iterator[str]:
        rows = _of_log(files.between(["broker", "log_id", "length"], first, end), state)
        there, expected = set(_joined(_extents(rows))), set(_joined(self._bad))
        offsets = self._erased.of((state.broker, state.log_id))
        expected = {
            (begin, behind)
            for begin, behind in expected
            if (begin, behind) in there or np.searchsorted(offsets, begin) == np.searchsorted(offsets, behind)
        }
        for what, extents in (("missing", expected - there), ("there, but not bad", there - expected)):
            if extents:
                begin, behind = min(extents)
                yield f"{QUARANTINE.name}: {len(extents):,} damaged extents are {what}, such as {begin:,} to {behind:,}"

    def _nothing(self) -> _Keys:
        return {table.name: [] for table in self._tables}


def _none(rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(False), rows.num_rows)


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
