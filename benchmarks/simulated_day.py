"""A day of batches beside maintenance: files, bytes, log and query times of a lake at its start, its end, and after retention.

`python -m benchmarks.simulated_day [--batches 20000] [--start 2000] [--job 200] [--record FILE]`

The first and last `--job` batches go through the job, Spark included; those between are staged and committed without Spark, as
fast as they go. Their messages are stored one simulated day long. Maintenance runs beside without a pause, and is killed now and
then. What a real day keeps for a day, a lake's log and replaced files with their names, is kept here for `--kept` seconds.

A line of JSON for each point: behind the first `--start` batches, at the end, and after half of the topics lost their messages
to retention; then the ratios of the later points to the first one. Of tables that grow, bytes are counted by row.

| question | asks |
|---|---|
| key | messages by one key, through `message_index` |
| trace | what became of the message with an id |
| lag | `consumer_lag` of a group |
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks import revision
from benchmarks.processes import cpu_by_process, job
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.gateway import ROOT, ProcessError, command
from lakebroker_testing.logs import LogWriter, pending
from store.log_source import FolderLog
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.lake import create_tables
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.tables import TABLES

_TOPICS, _QUEUES, _MESSAGES = 10, 4, 10
"""Messages of a batch, one of each topic."""
_DAY_S = 86_400
_AGE_S = 4 * _DAY_S
"""How long ago the day began: its messages are older than a rule of one day keeps."""
_BODY = b"a body of some length, as an order in JSON has it: " * 4
_JOB_BODY = _BODY * 50
_WARM = 100
"""Batches of the job that are not counted: the JVM compiles its code then."""
_A_STRETCH = 500
_TARGET = 8 << 20
_GROUP = "audit"
_FULL = 1000
"""Rows of a table from which on bytes of a row say something."""


class _Day:
    """The log of a day, written some batches ahead of who reads it."""

    def __init__(self, folder: Path, batches: int) -> None:
        self._began_ns = time.time_ns() - _AGE_S * 1_000_000_000
        self._step_ns = _DAY_S * 1_000_000_000 // batches
        self._now_ns = self._began_ns
        self._number = 0
        self._settled = 0
        self.writer = LogWriter(folder, segment_size=1 << 26, time_ns=lambda: self._now_ns)
        self.ends = [self.writer.store.max_offset]

    def write(self, batches: int, body: bytes = _BODY, least: int = 0) -> None:
        """So many batches, of at least so many bytes each."""
        for _ in range(batches):
            self._now_ns += self._step_ns
            begun = self.writer.store.max_offset
            while True:
                self.writer.store.append([self._message(body) for _ in range(_MESSAGES)])
                if self.writer.store.max_offset - begun >= least:
                    break
            self.writer.store.append([self._journal()])
            self.ends.append(self.writer.store.max_offset)
        self.writer.store.request_flush()
        self.writer.store.flush()

    def _message(self, body: bytes) -> Any:
        n = self._number
        self._number += 1
        order = n // _TOPICS
        key, name = f"key{n:09d}", f"ID{n:09d}"
        return pending(f"topic-{n % _TOPICS}", body, order % _QUEUES, TAGS="tag", KEYS=key, UNIQ_KEY=name)

    def _journal(self) -> Any:
        """A group has received and settled what there was on one topic."""
        self._settled += 1
        batch = pb.Batch(version=1, timestamp_ms=self._now_ns // 1_000_000)
        ends = self._number // _TOPICS // _QUEUES
        for queue_id in range(_QUEUES):
            queue = batch.queues.add(
                consumer_group=_GROUP,
                topic=f"topic-{self._settled % _TOPICS}",
                queue_id=queue_id,
                has_committed=True,
                committed=ends,
            )
            queue.events.add(
                kind=pb.DELIVERED,
                timestamp_ms=self._now_ns // 1_000_000,
                client_id="client",
                queue_offset=[ends],
                attempt=[1],
                message_id=[f"ID{self._number - 1:09d}"],
            )
        return pending(JOURNAL_TOPIC, batch.SerializeToString(), TAGS="events")


def by_job(store: Path, lake: Path, folder: Path, counted: int) -> dict[str, Any]:
    """CPU and time of a batch of the job, which reads what there is: `counted` batches behind the first hundred."""
    given = ["--store", str(store), "--lake", str(lake), "--json", "--once", "--batch-bytes", str(1 << 20)]
    with job(command("reput", *given), folder, "reput", piped=True, ends=True) as reput:
        assert reput.stdout is not None
        number, began_s, before = 0, 0.0, dict[str, float]()
        point: dict[str, Any] = {}
        for number, _ in enumerate(reput.stdout, 1):
            if number == _WARM:
                began_s, before = time.monotonic(), cpu_by_process(reput.pid)
            if number == _WARM + counted:
                spent = cpu_by_process(reput.pid)
                took_s = time.monotonic() - began_s
                cpu_s = sum(spent.values()) - sum(before.values())
                point = {"ms": round(took_s / counted * 1000, 1), "cpu_ms": round(cpu_s / counted * 1000, 1)}
        if reput.wait() or not point:
            raise ProcessError(f"the job made {number} batches: {(folder / 'reput.log').read_text()[-2000:]}")
    return point


def without_spark(day: _Day, log: FolderLog, lake: Path, batches: int) -> float:
    """Stages and commits so many batches more; CPU milliseconds of one, of the last thousand."""
    state = log.describe()
    sink, known = DeltaCommitSink(str(lake)), LakeProgress(str(lake)).offsets[state.broker, state.log_id]
    spent: list[float] = []
    for done in range(0, batches, _A_STRETCH):
        day.write(min(_A_STRETCH, batches - done))
        state = log.describe()
        for start, end in itertools.pairwise(each for each in day.ends if each >= known):
            began_s = time.thread_time()
            size = state.segment_size
            part = LogRange("store:x", state.broker, state.log_id, start, end, state.end, segment_size=size)
            chunks = log.read(state.log_id, start, end)
            sink.commit([row for each in stage(str(lake), part, chunks) for row in each.to_pylist()])
            spent.append(time.thread_time() - began_s)
        known = day.ends[-1]
    return round(statistics.fmean(spent[-1000:]) * 1000, 2)


class _Maintaining(threading.Thread):
    """Runs of maintenance one after another, each a process; one of `often` is killed somewhere."""

    def __init__(self, lake: Path, kept_s: float, often: int = 5) -> None:
        super().__init__(name="maintaining")
        self._lake, self._kept_s, self._often = lake, kept_s, often
        self._ends = threading.Event()
        self._random = random.Random(1)
        self.runs = self.killed = 0
        self.problem = ""

    def run(self) -> None:
        took_s = 1.0
        while not self._ends.is_set() and not self.problem:
            began_s = time.monotonic()
            process = _maintenance(self._lake, self._kept_s)
            self.runs += 1
            if self.runs % self._often == 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._random.uniform(0.3, took_s))
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    self.killed += 1
                process.communicate()
                continue
            _, errors = process.communicate()
            took_s = time.monotonic() - began_s
            if process.returncode:
                self.problem = errors.decode(errors="replace")[-2000:]

    def stop(self) -> None:
        self._ends.set()
        self.join()
        if self.problem:
            raise ProcessError(f"maintenance failed: {self.problem}")


def _maintenance(lake: Path, kept_s: float) -> subprocess.Popen[bytes]:
    given = ["--maintain", str(lake), "--kept", str(kept_s)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.simulated_day", *given],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def maintained(lake: Path, kept_s: float) -> None:
    """One run. Raises ProcessError for what could not be done."""
    for report in maintain(str(lake), _TARGET, kept_s):
        if report.problems:
            raise ProcessError("; ".join(report.problems))


@contextlib.contextmanager
def beside(lake: Path, kept_s: float) -> Iterator[_Maintaining]:
    """Maintenance goes on within; the last run of it is whole."""
    running = _Maintaining(lake, kept_s)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def keep_log_shortly(lake: Path, kept_s: float) -> None:
    """A table's log stays for a day, and so does the name of a file that went; here for the time that stands for it."""
    kept = f"interval {round(kept_s)} seconds"
    for name in TABLES:
        table = DeltaTable(str(lake / name))
        table.alter.set_table_properties(
            {"delta.logRetentionDuration": kept, "delta.deletedFileRetentionDuration": kept}
        )


def look(lake: Path, known: int, topic: str) -> dict[str, Any]:
    """How a lake is: files, bytes, log by table; and how long the questions take about a message that is in it."""
    tables = {}
    for name in TABLES:
        folder = lake / name
        table = DeltaTable(str(folder))
        actions = table.get_add_actions(flatten=True)
        sizes, counts = (actions[column].to_pylist() for column in ("size_bytes", "num_records"))
        log = [each.stat().st_size for each in (folder / "_delta_log").iterdir() if each.is_file()]
        rows = sum(counts)
        tables[name] = {
            "rows": rows,
            "files": len(sizes),
            "bytes_a_row": round(sum(sizes) / max(rows, 1), 2),
            "folder_files": sum(1 for _ in folder.glob("*.parquet")),
            "log_files": len(log),
            "log_bytes": sum(log),
        }
    asked = {
        "key": f"SELECT m.* FROM messages m JOIN message_index i USING (broker, log_id, physical_offset, topic) WHERE i.topic = '{topic}' AND i.key = 'key{known:09d}'",
        "trace": f"SELECT * FROM message_trace WHERE topic = '{topic}' AND message_id = 'ID{known:09d}'",
        "lag": f"SELECT * FROM consumer_lag WHERE consumer_group = '{_GROUP}'",
    }
    took: dict[str, float] = {}
    with EmbeddedEngine.open(str(lake)) as engine:
        for name, statement in asked.items():
            times = []
            for _ in range(9):
                began_s = time.monotonic()
                rows = engine.query(statement).read_all().num_rows
                times.append(time.monotonic() - began_s)
                if not rows:
                    raise ProcessError(f"no answer to {statement}")
            took[name] = round(statistics.median(times) * 1000, 1)
    return {"tables": tables, "query_ms": took}


def ratios(first: dict[str, Any], later: dict[str, Any]) -> dict[str, float]:
    """Of all tables together, how many times the first value the later one is; of bytes of a row and of questions, the worst."""
    found = {}
    for what in ("files", "folder_files", "log_files", "log_bytes"):
        before, after = (sum(table[what] for table in each["tables"].values()) for each in (first, later))
        found[what] = after / before
    full = [name for name, table in first["tables"].items() if table["rows"] >= _FULL]
    found["bytes_a_row"] = max(
        later["tables"][name]["bytes_a_row"] / first["tables"][name]["bytes_a_row"] for name in full
    )
    found["query_ms"] = max(later["query_ms"][name] / first["query_ms"][name] for name in later["query_ms"])
    return {what: round(ratio, 2) for what, ratio in found.items()}


def measure(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The points, then the ratios. Raises ProcessError."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        folder = Path(name)
        store, lake = folder / "store", folder / "lake"
        create_tables(str(lake))
        keep_log_shortly(lake, chosen.kept)
        through_job = _WARM + chosen.job + 10
        day = _Day(store, chosen.batches)
        day.write(through_job, _JOB_BODY, 1 << 20)
        points: list[dict[str, Any]] = []

        def point(at: str, **more: Any) -> dict[str, Any]:
            maintained(lake, chosen.kept)
            known = 7 + 10 * through_job
            points.append({"benchmark": "simulated_day", "at": at, **look(lake, known, "topic-7"), **more})
            return points[-1]

        with contextlib.closing(FolderLog(store)) as log:
            with beside(lake, chosen.kept) as running:
                first_job = by_job(store, lake, folder, chosen.job)
                cpu_ms = without_spark(day, log, lake, chosen.start)
            yield point("start", job=first_job, cpu_ms_a_batch=cpu_ms)
            rest = chosen.batches - chosen.start - 2 * through_job
            with beside(lake, chosen.kept) as again:
                cpu_ms = without_spark(day, log, lake, rest)
                day.write(through_job, _JOB_BODY, 1 << 20)
                last_job = by_job(store, lake, folder, chosen.job)
            runs, killed = (running.runs + again.runs, running.killed + again.killed)
            yield point("end", job=last_job, cpu_ms_a_batch=cpu_ms, maintained=runs, killed=killed)
        rules = ",".join(f"topic-{n}=1d" for n in range(_TOPICS // 2))
        subprocess.run(
            command("lake", "retention", rules, "--lake", str(lake)),
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        yield point("after retention")
        day.writer.close()
        check = subprocess.run(
            command("lake", "check", "--lake", str(lake), "--store", str(store)),
            cwd=ROOT,
            check=False,
            capture_output=True,
        )
        if check.returncode:
            raise ProcessError(f"lake check: {check.stdout.decode()[-2000:]} {check.stderr.decode()[-2000:]}")
        start, end, after = points
        yield {
            "benchmark": "simulated_day",
            "batches": chosen.batches,
            "end_to_start": ratios(start, end),
            "after_retention_to_start": ratios(start, after),
            "job_cpu_last_to_first": round(last_job["cpu_ms"] / first_job["cpu_ms"], 2),
            "commit_cpu_last_to_first": round(end["cpu_ms_a_batch"] / start["cpu_ms_a_batch"], 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=2_000, help="batches before the first point")
    parser.add_argument("--job", type=int, default=200, help="batches through Spark that count, at each end")
    parser.add_argument("--kept", type=float, default=45.0, help="seconds that stand for a day")
    parser.add_argument("--maintain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help="a file to which the lines are added, with the revision")
    chosen = parser.parse_args()
    if chosen.maintain:
        maintained(chosen.maintain, chosen.kept)
        return
    for point in measure(chosen):
        sys.stdout.write(json.dumps(point) + "\n")
        sys.stdout.flush()
        if chosen.record:
            with chosen.record.open("a") as file:
                file.write(json.dumps({"commit": revision.commit(), **point}) + "\n")


if __name__ == "__main__":
    main()
