"""The rows of several files as those of one, in their table's order, with bounded memory whatever they hold.

Files are read once, a row group at a time. As long as their rows fit in `MERGE_BYTES`, they are sorted there. Else every
`MERGE_BYTES` of them become a sorted run: a scratch file in small row groups, of which only what rows are sorted by stays in
memory. Then slices of the result, of that many bytes again, are read of the runs, of each only the row groups with rows of the slice.

| in memory | bytes |
|---|---|
| rows that are being sorted, and their sorted copy | 2 x `MERGE_BYTES` |
| a row group of a file, as its writer made it (the reput's: about 50 MiB) | its own |
| for each row its sort key, weight and place | about 50; a text once, however many rows have it |

On disk, runs take what the files take, until the result is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.maintenance.reading import Part, parts
from structured_streaming.staging.table_file import parquet_writer
from structured_streaming.storage.folder import Folder

MERGE_BYTES = 64 << 20
"""Of rows that are sorted together."""
GROUP_BYTES = 32 << 20
"""Of rows in a row group that is written, as in those of the reput; the row that reaches it is the last."""
_RUN_GROUPS = 32
"""Row groups in a run, about."""
Longs = NDArray[np.int64]


def merged(
    folder: Folder,
    files: Sequence[DataFile],
    schema: pa.Schema,
    order: Sequence[str],
    some_of: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> Iterator[pa.Table]:
    """The rows of all files, `some_of` them, sorted by the columns `order`; a table for each row group to write. Raises FileError,
    OSError."""
    with folder.parent.scratch() as scratch:
        merge = _Merge(scratch, schema, order)
        for part in itertools.chain.from_iterable(parts(folder, file, schema) for file in files):
            merge.add(some_of(part.read()))
        yield from merge.result()


class _Merge:
    """Rows that come in any order; runs are files in `scratch`."""

    def __init__(self, scratch: Folder, schema: pa.Schema, order: Sequence[str]) -> None:
        self._scratch = scratch
        self._schema = schema
        self._key_schema = key_schema(schema, order)
        self._held = [schema.empty_table()]
        self._held_bytes = 0
        self._runs: list[DataFile] = []
        self._keys = [self._key_schema.empty_table()]
        self._weights = [_NONE]

    def add(self, rows: pa.Table) -> None:
        """Takes further rows."""
        if self._held_bytes and self._held_bytes + rows.nbytes > MERGE_BYTES:
            self._end_run()
        self._held.append(rows)
        self._held_bytes += rows.nbytes

    def result(self) -> Iterator[pa.Table]:
        """All rows in their order, in row groups."""
        if not self._runs:
            rows = self._sorted()
            yield from _groups(rows, _weights(rows), GROUP_BYTES)
            return
        self._end_run()
        weights, places = np.concatenate(self._weights), places_of(pa.concat_tables(self._keys))
        self._keys, self._weights = [], []
        ranks = np.empty_like(places)
        ranks[places] = np.arange(len(places))
        weights = weights[places]
        for begin, end in _cuts(weights, MERGE_BYTES):
            yield from _groups(self._slice(ranks, begin, end), weights[begin:end], GROUP_BYTES)

    def _sorted(self) -> pa.Table:
        """What is held, and is not any more then."""
        rows = pa.concat_tables(self._held)
        self._held, self._held_bytes = [self._schema.empty_table()], 0
        return rows.take(pa.array(places_of(rows.select(self._key_schema.names).cast(self._key_schema))))

    def _end_run(self) -> None:
        rows = self._sorted()
        weights = _weights(rows)
        self._keys.append(rows.select(self._key_schema.names).cast(self._key_schema))
        self._weights.append(weights)
        run = DataFile(f"run-{len(self._runs)}.parquet", 0, "", False)
        self._runs.append(run)
        with parquet_writer(self._scratch.open_new(run.name).target, self._schema) as writer:
            for group in _groups(rows, weights, MERGE_BYTES // _RUN_GROUPS):
                writer.write_table(group)

    def _slice(self, ranks: Longs, begin: int, end: int) -> pa.Table:
        """The rows of the places [begin, end) of the result."""
        found, found_ranks, at = [self._schema.empty_table()], [_NONE], 0
        for part in self._run_parts():
            its = ranks[at : at + part.rows]  # ascending
            at += part.rows
            first, behind = np.searchsorted(its, (begin, end)).tolist()
            if first < behind:
                # a copy: a slice would hold the whole row group
                found.append(part.read().take(pa.array(np.arange(first, behind))))
                found_ranks.append(its[first:behind])
        return pa.concat_tables(found).take(pa.array(np.argsort(np.concatenate(found_ranks))))

    def _run_parts(self) -> Iterator[Part]:
        return itertools.chain.from_iterable(parts(self._scratch, run, self._schema) for run in self._runs)


def _groups(rows: pa.Table, weights: Longs, most: int) -> Iterator[pa.Table]:
    """Rows in tables of about `most` bytes."""
    for begin, end in _cuts(weights, most):
        yield rows.slice(begin, end - begin)


def _cuts(weights: Longs, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows; the row with which a range reaches `most` bytes is its last."""
    reached = np.cumsum(weights)
    begin = 0
    while begin < len(weights):
        before = int(reached[begin - 1]) if begin else 0
        end = min(int(np.searchsorted(reached, before + most)) + 1, len(weights))
        yield begin, end
        begin = end


def _weights(rows: pa.Table) -> Longs:
    """Bytes of each row: those of its binary values, and an equal share of the rest, which no record makes large."""
    count = rows.num_rows
    large = [rows[field.name] for field in rows.schema if pa.types.is_binary(field.type)]
    own = np.zeros(count, dtype=np.int64)
    for column in large:
        own += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    rest = max(rows.nbytes - int(own.sum()), 0)
    return own + (rest // count + 1 if count else 0)


def key_schema(schema: pa.Schema, order: Sequence[str]) -> pa.Schema:
    """Texts as dictionaries: most are the same in many rows."""
    fields = (schema.field(name) for name in order)
    return pa.schema(
        [
            (field.name, pa.dictionary(pa.int32(), pa.string()))
            if pa.types.is_string(field.type)
            else (field.name, field.type)
            for field in fields
        ]
    )


def places_of(keys: pa.Table) -> Longs:
    """The rows in their order; equal ones as they came."""
    columns = [_ranks(keys[name]) for name in reversed(keys.column_names)]
    return np.lexsort(columns).astype(np.int64)


def _ranks(column: pa.ChunkedArray) -> Longs:
    """A number for each value, greater for a greater one; null is the greatest."""
    if not pa.types.is_dictionary(column.type):
        numbers: Longs = pc.fill_null(column.cast(pa.int64()), _GREATEST).to_numpy()
        return numbers
    whole = column.unify_dictionaries().combine_chunks()
    chunk = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    order = pc.sort_indices(chunk.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, dtype=np.int64)
    ranks[order] = np.arange(len(order))
    ranks[-1] = len(order)
    found: Longs = ranks[pc.fill_null(chunk.indices, len(order)).to_numpy(zero_copy_only=False)]
    return found


_NONE: Longs = np.empty(0, dtype=np.int64)
_GREATEST = np.iinfo(np.int64).max
