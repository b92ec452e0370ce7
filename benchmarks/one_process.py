"""The reput's work without Spark and without commits: from the scan of a log to the Parquet files of all tables, on one thread.

`python -m benchmarks.one_process STORE LAKE` prints a line of JSON for each range: the records in it.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pyarrow as pa

from store.log_reader import LogReader
from structured_streaming.lake import create_tables
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage

_RANGE_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


def main(store: Path, lake: Path) -> None:
    """Stages the whole log, a range at a time."""
    pa.set_cpu_count(1)
    create_tables(str(lake))
    reader = LogReader(store)
    end = reader.readable_offset
    for first, last in itertools.pairwise(reader.split(reader.min_offset, end, _RANGE_BYTES)):
        part = LogRange(f"store:{store}", reader.broker, reader.log_id, first, last, end)
        chunks = ((offset, data) for offset, data, _ in reader.read_chunks(first, last, _CHUNK_BYTES))
        rows = [row for batch in stage(str(lake), part, chunks) for row in batch.to_pylist()]
        print(json.dumps({"records": sum(row["rows"] for row in rows if not row["table"])}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
