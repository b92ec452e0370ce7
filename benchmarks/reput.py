"""Bulk rate of the reput beside three peers; a line of JSON for each size of bodies.

| peer | does |
|---|---|
| `rocketmq` | the real broker rebuilds its ConsumeQueue and Index, which the reput does with `--tables consume_queue,message_index` |
| `one_process` | the reput's scan, rows and files on one thread, without Spark and without commits |
| `per_record` | every record parsed in Python, appended by Spark's Delta writer |

`python -m benchmarks.reput [--log-bytes N] [--passes N]`. Both read the same log, and starting
a JVM, Spark or a broker does not count: rates are from the first batch's commit (or range) to the last one's,
the real broker's that of the records beyond the first tenth, (records - tenth) / (time for all - time for a
tenth). CPU likewise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks import revision
from benchmarks.processes import cpu_s
from lakebroker_testing.gateway import ROOT, ProcessError, command
from lakebroker_testing.logs import LogWriter, pending
from lakebroker_testing.real_rocketmq import MeasuredRocketMQ

console = Console(stderr=True)
_RECORD_BYTES = 230
"""Of a record here, without its body."""


class Spent(NamedTuple):
    """Records, and the seconds of wall clock and CPU they took."""

    records: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.wall_s

    @property
    def cpu_each(self) -> float:
        """CPU seconds a record."""
        return self.cpu_s / self.records


def bulk(records: int, size: int, passes: int) -> dict[str, Any]:
    """A log of `records`, through `reput --once` and into the real broker's indexes, alternating."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        few, many = Path(name, "few"), Path(name, "many")
        for store, count in ((few, records // 10), (many, records)):
            with console.status(f"writing {count:,} records of {size} B"):
                write_store(store, count, size)
        runs = {
            "lakebroker": lambda: reput_once(many),
            "lakebroker_indexes": lambda: reput_once(many, "--tables", "consume_queue,message_index"),
            "one_process": lambda: module_once("benchmarks.one_process", many),
            "per_record": lambda: module_once("benchmarks.per_record", many),
        }
        spent: dict[str, list[Spent]] = {name: [] for name in (*runs, "rocketmq")}
        for number in range(passes):
            for name_of, run in runs.items():
                spent[name_of].append(run())
                console.print(f"pass {number}: {name_of} {spent[name_of][-1].rate:,.0f} records/s")
            start, whole = real_rebuild(few, records // 10), real_rebuild(many, records)
            spent["rocketmq"].append(
                Spent(whole.records - start.records, whole.wall_s - start.wall_s, whole.cpu_s - start.cpu_s)
            )
            console.print(f"pass {number}: rocketmq {spent['rocketmq'][-1].rate:,.0f} records/s")
    best = {name_of: min(each, key=lambda one: one.cpu_each) for name_of, each in spent.items()}
    mine = best["lakebroker"].cpu_each
    return {
        "benchmark": "reput",
        "records": records,
        "bytes": size,
        "records_per_s": {name_of: round(one.rate) for name_of, one in best.items()},
        "cpu_s_per_million": {name_of: round(one.cpu_each * 1e6, 2) for name_of, one in best.items()},
        "cpu_of_lakebroker": {
            f"to_{name_of}": round(mine / best[name_of].cpu_each, 3)
            for name_of in ("one_process", "per_record", "rocketmq")
        },
        "cpu_of_indexes_to_rocketmq": round(
            best["lakebroker_indexes"].cpu_each / best["rocketmq"].cpu_each, 3
        ),
    }


def write_store(folder: Path, records: int, size: int) -> None:
    """A closed store of `records` messages with a key and an id each, over 8 queues."""
    body = os.urandom(size // 2).hex().encode()
    with LogWriter(folder, segment_size=1 << 30) as writer:
        for first in range(0, records, 1000):
            some = range(first, min(first + 1000, records))
            writer.store.append(
                [pending("bench", body, n % 8, KEYS=f"k{n}", UNIQ_KEY=f"{n:032X}") for n in some]
            )


def reput_once(store: Path, *arguments: str) -> Spent:
    """`lakebroker reput --once` into a new lake: from the first batch's commit to the last one's."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as folder:
        given = ["--store", str(store), "--lake", f"{folder}/lake", "--once", "--json", *arguments]
        return between_lines(command("reput", *given), Path(folder, "log"))


def module_once(name: str, store: Path) -> Spent:
    """A peer of ours, into a new lake."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as folder:
        return between_lines([sys.executable, "-m", name, str(store), f"{folder}/lake"], Path(folder, "log"))


def between_lines(arguments: Sequence[str], errors: Path) -> Spent:
    """What a job, which prints the `records` of each batch, spent from its first line to its last one."""
    with errors.open("wb") as log:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdout is not None
        commits = []
        with process.stdout:
            for line in process.stdout:
                batch = json.loads(line)
                commits.append(Spent(batch["records"], time.monotonic(), cpu_s(session=process.pid)))
        if process.wait() or len(commits) < 2:
            raise ProcessError(f"{arguments} made {len(commits)} batches: {errors.read_text()[-2000:]}")
        first, last = commits[0], commits[-1]
        records = sum(commit.records for commit in commits[1:])
        return Spent(records, last.wall_s - first.wall_s, last.cpu_s - first.cpu_s)


def real_rebuild(store: Path, records: int) -> Spent:
    """The real broker's start over the log, which opens its port once ConsumeQueue and Index are built."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as folder:
        for part in ("consumequeue", "index", "config"):
            shutil.rmtree(store / part, ignore_errors=True)
        for part in ("checkpoint", "abort"):
            (store / part).unlink(missing_ok=True)
        peer = MeasuredRocketMQ(
            Path(folder),
            {"bench": (8, "NORMAL")},
            proxy=False,
            storePathRootDir=str(store),
            storePathCommitLog=str(store / "commitlog"),
        )
        with peer:
            spent_s = cpu_s(peer.pid)
            peer.terminate()
        return Spent(records, peer.broker_start_s, spent_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--log-bytes", type=int, default=5 << 28, help="of the logs; a batch reads 256 MiB")
    parser.add_argument("--passes", type=int, default=2)
    chosen = parser.parse_args()
    for size in (100, 1024):
        _tell(bulk(chosen.log_bytes // (size + _RECORD_BYTES), size, chosen.passes))


def _tell(figures: dict[str, Any]) -> None:
    print(json.dumps({"commit": revision.commit(), **figures}), flush=True)


if __name__ == "__main__":
    main()
