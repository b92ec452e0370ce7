"""From the start of `lakebroker sql` to its answer: the embedded engine, Spark, and DuckDB on the bare files, in one run.

`python -m benchmarks.interactive_sql [--messages 10000000] [--batch 100000] [--rounds 5] [--engines duckdb,bare,spark]
[--lake FOLDER] [--python FILE] [--record FILE]`

Messages are staged and committed without Spark, then `maintain` puts files together. Each question is a process of its own
for each engine; the median of the rounds counts, Spark's of a third of them. A line of JSON for each question, with the
ratios: the embedded engine's time by Spark's, and by that of the bare files. The bare files are those of the newest versions,
read by `read_parquet`, in a process that imports DuckDB alone. `--python`: of an environment with nothing but `lakebroker[sql]`, for
the embedded engine; one with pandas, which Arrow loads where it is, takes a tenth of a second longer.

| question | asks |
|---|---|
| key | messages by one key, through `message_index` |
| offset | one message by broker, topic, queue and offset |
| trace | what became of the message with an id |
| lag | `consumer_lag` of a group; by the bare files the queues' ends and the newest offsets |
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from deltalake import DeltaTable

from benchmarks import revision
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.gateway import command
from lakebroker_testing.logs import encoded, pending
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.lake import create_tables
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.tables import TABLES

_BROKER, _LOG = "broker-a", "0" * 32
_TOPICS, _QUEUES = 20, 8
_DIGITS = 10
_BODY = b"a body of some length, as an order in JSON has it: " * 4
_BORN_MS = 1_764_000_000_000
_STORED_AT, _OFFSET_AT, _QUEUE_AT, _QUEUE_OFFSET_AT = 56, 28, 12, 20
"""Where in a record with IPv4 hosts (`store/log/record.py`) these fields are, in bytes."""
_PATIENCE_S = 1800.0


def log_of(first: int, count: int, base: int) -> bytes:
    """So many messages in a log that begins at offset `base`, the n-th with id `ID` and key `key` and n; then a record of the
    journal."""
    ready, begun = [], base
    for topic in range(_TOPICS):
        numbers = np.arange(first + topic, first + count, _TOPICS)
        ready.append(_records(topic, numbers, begun))
        begun += len(ready[-1])
    journal, _ = encoded([_journal(first, count)], begun, crc=False)
    return b"".join((*ready, journal))


def _records(topic: int, numbers: np.ndarray[Any, Any], base: int) -> bytes:
    """Records that are alike but for what tells them apart: one is encoded, the others are its copies."""
    zeros = "0" * _DIGITS
    message = pending(f"topic-{topic:02d}", _BODY, TAGS="tag", KEYS=f"key{zeros}", UNIQ_KEY=f"ID{zeros}")
    one, _ = encoded([message], 0, crc=False)
    rows = np.tile(np.frombuffer(one, np.uint8), (len(numbers), 1))
    order = numbers // _TOPICS
    _put(rows, _QUEUE_AT, order % _QUEUES, ">i4")
    _put(rows, _QUEUE_OFFSET_AT, order // _QUEUES, ">i8")
    _put(rows, _OFFSET_AT, base + np.arange(len(numbers)) * len(one), ">i8")
    _put(rows, _STORED_AT, _BORN_MS + numbers // 10, ">i8")
    digits = (numbers[:, None] // 10 ** np.arange(_DIGITS - 1, -1, -1)) % 10 + ord("0")
    for name in (b"key", b"ID"):
        at = one.index(name + zeros.encode()) + len(name)
        rows[:, at : at + _DIGITS] = digits
    return rows.tobytes()


def _put(rows: np.ndarray[Any, Any], at: int, values: np.ndarray[Any, Any], kind: str) -> None:
    width = np.dtype(kind).itemsize
    rows[:, at : at + width] = values.astype(kind).view(np.uint8).reshape(len(rows), width)


def _journal(first: int, count: int) -> Any:
    """A group that has received and settled what came up to here, on every queue; and one message's life."""
    batch = pb.Batch(version=1, timestamp_ms=_BORN_MS + first)
    for topic in range(_TOPICS):
        for queue_id in range(_QUEUES):
            settled = (first + count) // (_TOPICS * _QUEUES)
            queue = batch.queues.add(
                consumer_group="audit",
                topic=f"topic-{topic:02d}",
                queue_id=queue_id,
                has_committed=True,
                committed=settled,
            )
            queue.events.add(
                kind=pb.DELIVERED,
                timestamp_ms=_BORN_MS + first,
                client_id="client",
                queue_offset=[settled],
                attempt=[1],
                message_id=[f"ID{first + topic:0{_DIGITS}d}"],
            )
    return pending(JOURNAL_TOPIC, batch.SerializeToString(), TAGS="events")


def fill(lake: Path, messages: int, batch: int) -> None:
    """A lake of so many messages, in batches, put together."""
    create_tables(str(lake))
    sink, base = DeltaCommitSink(str(lake)), 0
    for first in range(0, messages, batch):
        data = log_of(first, min(batch, messages - first), base)
        end = base + len(data)
        part = LogRange("store:-", _BROKER, _LOG, base, end, end)
        sink.commit([row for each in stage(str(lake), part, [(base, data)]) for row in each.to_pylist()])
        base = end
    for report in maintain(str(lake)):
        assert not report.problems, report.problems


class Question:
    """What is asked, of the lake's views and of bare files. `{…}` in the latter stands for a table's files."""

    def __init__(self, name: str, of_views: str, of_files: str, rows: int) -> None:
        self.name = name
        self.of_views = of_views
        self.of_files = of_files
        self.rows = rows
        """How many it is to have."""


def questions(messages: int) -> list[Question]:
    wanted = messages // 2 // _TOPICS * _TOPICS
    number = f"{wanted:0{_DIGITS}d}"
    queue = "topic = 'topic-00' AND queue_id = 1 AND queue_offset = 5"
    key = (
        "SELECT m.message_id, m.store_timestamp, m.body FROM {messages} m JOIN {message_index} i ON m.broker = i.broker AND "
        "m.log_id = i.log_id AND m.physical_offset = i.physical_offset AND m.topic = i.topic "
        f"WHERE i.topic = 'topic-00' AND i.key = 'key{number}'"
    )
    offset = (
        f"SELECT message_id, store_timestamp, body FROM {{messages}} WHERE broker = '{_BROKER}' AND {queue}"
    )
    events = f"SELECT * FROM {{delivery_events}} WHERE topic = 'topic-00' AND message_id = 'ID{number}'"
    ends = (
        "SELECT o.queue_id, e.ends - o.committed AS lag FROM "
        "(SELECT topic, queue_id, max(committed_offset) AS committed FROM {consumer_offsets} WHERE consumer_group = 'audit' "
        "AND topic = 'topic-00' GROUP BY topic, queue_id) o JOIN (SELECT topic, queue_id, max(queue_offset) + 1 AS ends FROM "
        "{consume_queue} WHERE topic = 'topic-00' GROUP BY topic, queue_id) e ON o.topic = e.topic AND o.queue_id = e.queue_id"
    )
    plain = {name: name for name in TABLES}
    return [
        Question("key", key.format(**plain), key, 1),
        Question("offset", offset.format(**plain), offset, 1),
        Question(
            "trace",
            f"SELECT * FROM message_trace WHERE topic = 'topic-00' AND message_id = 'ID{number}'",
            events,
            0,
        ),
        Question(
            "lag",
            "SELECT queue_id, lag FROM consumer_lag WHERE consumer_group = 'audit' AND topic = 'topic-00'",
            ends,
            _QUEUES,
        ),
    ]


_BARE = """
import json, sys
import duckdb
files, statement = json.loads(sys.argv[1]), sys.argv[2]
print(len(duckdb.execute(statement.format(**{name: f"read_parquet({each})" for name, each in files.items()})).fetchall()))
"""


def bare(lake: Path) -> dict[str, list[str]]:
    """The files of each table's newest version."""
    return {name: DeltaTable(str(lake / name)).file_uris() for name in TABLES}


def asked(arguments: list[str]) -> tuple[float, str]:
    """Seconds from the start of a process to its end, and what it printed. Modules are compiled, as an installation has them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.monotonic()
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env=environment
    )
    took = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{arguments[:8]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return took, done.stdout


def measure(lake: Path, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A point for each question. Raises RuntimeError for an answer that is not as expected."""
    files = json.dumps(bare(lake))
    for question in questions(chosen.messages):
        took: dict[str, list[float]] = {}
        for engine in chosen.engines.split(","):
            shell = command(
                "sql", "--engine", engine, "--lake", str(lake), "--format", "json", question.of_views
            )
            if engine == "duckdb":
                shell[0] = chosen.python
            given = [sys.executable, "-c", _BARE, files, question.of_files] if engine == "bare" else shell
            asked(given)  # what is read, and compiled, is in memory then
            for _ in range(max(chosen.rounds // 3, 1) if engine == "spark" else chosen.rounds):
                seconds, printed = asked(given)
                rows = int(printed) if engine == "bare" else len(json.loads(printed))
                if rows != question.rows and not (question.name == "trace" and rows):
                    raise RuntimeError(f"{question.name} by {engine}: {rows} rows, expected {question.rows}")
                took.setdefault(engine, []).append(seconds)
        medians = {engine: statistics.median(each) for engine, each in took.items()}
        point: dict[str, Any] = {
            "benchmark": "interactive_sql",
            "messages": chosen.messages,
            "question": question.name,
            "seconds": {engine: round(each, 3) for engine, each in medians.items()},
        }
        for other in medians.keys() - {"duckdb"}:
            if "duckdb" in medians:
                point[f"ratio_to_{other}"] = round(medians["duckdb"] / medians[other], 3)
        yield point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default="duckdb,bare,spark")
    parser.add_argument("--lake", type=Path, help="made there, or used as it is there; else a temporary one")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the embedded engine")
    parser.add_argument("--record", type=Path, help="a file to which the lines are added, with the revision")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        lake = chosen.lake or Path(name, "lake")
        if not lake.exists():
            fill(lake, chosen.messages, chosen.batch)
        for point in measure(lake, chosen):
            sys.stdout.write(json.dumps(point) + "\n")
            sys.stdout.flush()
            if chosen.record:
                with chosen.record.open("a") as file:
                    file.write(json.dumps({"commit": revision.commit(), **point}) + "\n")


if __name__ == "__main__":
    main()
