"""What a task of the reput takes of memory, and a record of the lake: to size executors and disks by.

`python -m benchmarks.partition_memory [--range-bytes N]` prints a line of JSON for each size of bodies. A process of its own stages one
range of a log (all tables, without Spark), as a Python worker of an executor does. `worker_mb` is the most that it had resident in MB,
`loaded_mb` what it had before it began, its modules' and libraries' share; `lake_bytes` are those of the files, for each record. Bodies
are JSON of random numbers, each another one; those of others are smaller or larger in the lake.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks import revision
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import LogWriter, pending
from store.log_reader import LogReader
from structured_streaming.lake import create_tables
from structured_streaming.source.log_range import LogRange
from structured_streaming.source.options import PARTITION_BYTES
from structured_streaming.staging.stage import stage

_SIZES = (100, 1024, 10240)
_CHUNK_BYTES = 4 << 20
_RECORD_BYTES = 230
"""Of a record here, without its body."""


def main(range_bytes: int) -> None:
    """A line for each size."""
    for size in _SIZES:
        with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
            store, lake = Path(name, "store"), Path(name, "lake")
            write_store(store, 2 * range_bytes // (size + _RECORD_BYTES), size)
            create_tables(str(lake))
            command = [sys.executable, "-m", "benchmarks.partition_memory", "--stage", str(store), str(lake)]
            done = subprocess.run(
                [*command, "--range-bytes", str(range_bytes)], cwd=ROOT, capture_output=True, check=True
            )
            found = json.loads(done.stdout)
            written = sum(each.stat().st_size for each in lake.rglob("*.parquet"))
            found["lake_bytes"] = round(written / found["records"], 1)
            line = {"commit": revision.commit(), "benchmark": "partition_memory", "bytes": size, **found}
            print(json.dumps(line), flush=True)


def write_store(folder: Path, records: int, size: int) -> None:
    """A closed store of messages with a key and an id each, over 8 queues."""
    drawn = random.Random(size)
    with LogWriter(folder, segment_size=1 << 30) as writer:
        for first in range(0, records, 1000):
            some = range(first, min(first + 1000, records))
            writer.store.append(
                [
                    pending("orders", body(drawn, size), n % 8, KEYS=f"k{n}", UNIQ_KEY=f"{n:032X}")
                    for n in some
                ]
            )


def body(drawn: random.Random, size: int) -> bytes:
    """JSON of about that size, up to 60 bytes more."""
    parts, length = [], 0
    while length < size:
        parts.append(
            f'{{"article":{drawn.randrange(100_000)},"count":{drawn.randrange(1, 9)},"price":{drawn.randrange(10_000) / 100}}}'
        )
        length += len(parts[-1]) + 1
    return f"[{','.join(parts)}]".encode()


def stage_one(store: Path, lake: Path, range_bytes: int) -> None:
    """Stages the first range of a log; prints what that took."""
    pa.set_cpu_count(1)
    reader = LogReader(store)
    end = reader.readable_offset
    first, last, *_ = reader.split(reader.min_offset, end, range_bytes)
    before = _most_mb()
    part = LogRange(f"store:{store}", reader.broker, reader.log_id, first, last, end)
    chunks = ((offset, data) for offset, data, _ in reader.read_chunks(first, last, _CHUNK_BYTES))
    rows = [row for batch in stage(str(lake), part, chunks) for row in batch.to_pylist()]
    records = sum(row["rows"] for row in rows if not row["table"])
    found = {"range_bytes": last - first, "records": records, "loaded_mb": before, "worker_mb": _most_mb()}
    print(json.dumps(found))


def _most_mb() -> int:
    """The most that this process had resident so far."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--range-bytes", type=int, default=PARTITION_BYTES, help="of log in a task")
    parser.add_argument("--stage", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stage:
        stage_one(*asked.stage, asked.range_bytes)
    else:
        main(asked.range_bytes)
