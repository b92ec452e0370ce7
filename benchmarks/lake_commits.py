"""What a reput's commit costs as the lake grows, without Spark; a line of JSON for each point and one for the ratios.

`python -m benchmarks.lake_commits [--batches 900] [--around 100]`. Each batch adds one small file to every table.
Counted is the process's CPU in `commit`, checkpoints included, as the mean of the `--around` batches up to the point;
and that of opening a lake: its progress and the sink, as each start does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.lake import create_tables
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import manifest
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES

BATCH_BYTES = 1000


def staged(lake: Path, number: int) -> list[dict[str, Any]]:
    """A batch of one row in every table."""
    start = number * BATCH_BYTES
    row = {"broker": "b", "log_id": "l", "physical_offset": start, "topic": f"topic-{number % 7}"}
    files = [
        (table.name, write_file(LocalFolder(lake), table, pa.Table.from_pylist([row], table.schema)))
        for table in DATA_TABLES
    ]
    end = start + BATCH_BYTES
    return manifest(LogRange("store:x", "b", "l", start, end, end), 1, files).to_pylist()


def measure(batches: int, around: int) -> dict[str, Any]:
    """CPU of a commit at the first `around` batches, a third of the way, and the end; in ms."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        lake = Path(name, "lake")
        create_tables(str(lake))
        sink = DeltaCommitSink(str(lake))
        opened_first_s = opened(lake)
        spent_s: list[float] = []
        for number in range(batches):
            batch = staged(lake, number)
            began_s = time.process_time()
            sink.commit(batch)
            spent_s.append(time.process_time() - began_s)
        points = {}
        for at in (around, batches // 3, batches):
            points[at] = round(sum(spent_s[at - around : at]) / around * 1000, 2)
            print(json.dumps({"batch": at, "cpu_ms_per_commit": points[at]}), flush=True)
        first, last = points[around], points[batches]
        return {
            "benchmark": "lake_commits",
            "batches": batches,
            "ratio_last_to_first": round(last / first, 2),
            "open_cpu_ms_empty": round(opened_first_s * 1000, 1),
            "open_cpu_ms_full": round(opened(lake) * 1000, 1),
        }


def opened(lake: Path) -> float:
    """CPU seconds of a start's look into the lake, the least of three."""
    spent_s = []
    for _ in range(3):
        began_s = time.process_time()
        LakeProgress(str(lake))
        DeltaCommitSink(str(lake))
        spent_s.append(time.process_time() - began_s)
    return min(spent_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=900)
    parser.add_argument("--around", type=int, default=100)
    chosen = parser.parse_args()
    print(json.dumps(measure(chosen.batches, chosen.around)), flush=True)


if __name__ == "__main__":
    main()
