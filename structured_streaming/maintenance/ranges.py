"""Files of a window of time become others that each have a range of their own of the table's order.

| step | reads | in memory |
|---|---|---|
| where the ranges end: quantiles of a sample | the order's columns | `_SAMPLE` rows of these |
| rows to scratch files, one for each range | all | a row group |
| each of these, sorted (`merge.py`) | them | as `merge.py` says |

On disk, scratch files take what the window takes, until the last range is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.maintenance.merge import key_schema, merged, places_of
from structured_streaming.maintenance.reading import parts
from structured_streaming.staging.table_file import parquet_writer
from structured_streaming.storage.folder import Folder

_SAMPLE = 200_000


def ranged(
    folder: Folder, files: Sequence[DataFile], schema: pa.Schema, order: Sequence[str], count: int
) -> Iterator[Iterator[pa.Table]]:
    """The rows of all files in about `count` ranges of about as many bytes, each sorted: a table for each row group to write; to be
    taken one after the other. Raises FileError, OSError."""
    ends = _ends(folder, files, schema, order, count)
    with folder.parent.scratch() as scratch:
        window = scratch.child("window")
        window.make()
        with contextlib.ExitStack() as opened:
            writers: dict[int, pq.ParquetWriter] = {}
            for file in files:
                for part in parts(folder, file, schema):
                    rows = part.read()
                    numbers = _numbers(rows, ends)
                    for number in np.unique(numbers).tolist():
                        if number not in writers:
                            target = window.open_new(_name(number)).target
                            writers[number] = opened.enter_context(parquet_writer(target, schema))
                        writers[number].write_table(rows.filter(pa.array(numbers == number)))
        for number in sorted(writers):
            its = DataFile(_name(number), 0, "", False)
            yield merged(window, [its], schema, order)
            window.remove(its.name)


def _ends(
    folder: Folder, files: Sequence[DataFile], schema: pa.Schema, order: Sequence[str], count: int
) -> pa.Table:
    """Keys at which a range ends and the next one begins, ascending, each once."""
    keys = key_schema(schema, order)
    stated = sum(int(file.statistics.get("numRecords", 0)) for file in files)
    every = max(stated // _SAMPLE, 1)
    found, weights = [keys.empty_table()], [np.empty(0)]
    for file in files:
        rows = max(int(file.statistics.get("numRecords", 0)), 1)
        for part in parts(folder, file, schema):
            its = part.read(order).take(pa.array(np.arange(0, part.rows, every)))
            found.append(its.cast(keys))
            weights.append(np.full(len(its), file.size / rows))
    sample = pa.concat_tables(found)
    places = places_of(sample)
    reached = np.cumsum(np.concatenate(weights)[places])
    if not len(reached):
        return sample
    at = np.searchsorted(reached, reached[-1] * np.arange(1, count) / count)
    ends = sample.take(pa.array(places[np.unique(at)]))
    return ends.group_by(list(order), use_threads=False).aggregate([]).select(list(order)).cast(keys)


def _numbers(rows: pa.Table, ends: pa.Table) -> NDArray[np.int64]:
    """The range of each row: how many ends are not greater."""
    both = pa.concat_tables([ends, rows.select(ends.column_names).cast(ends.schema)])
    places = places_of(both)
    passed = np.cumsum(places < len(ends))
    numbers = np.empty(len(both), dtype=np.int64)
    numbers[places] = passed
    return numbers[len(ends) :]


def _name(number: int) -> str:
    return f"range-{number}.parquet"
