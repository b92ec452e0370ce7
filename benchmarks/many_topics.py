"""What each step costs for a log of very many topics and keys, beside the same records on few topics.

`python -m benchmarks.many_topics [--topics 100000] [--records 1000000] [--record FILE]`

The log: `--records` messages with an id and a key each, all different, over `--topics` topics, every second one on one hot
queue; some bodies of 4 MiB; the journal's snapshot of all topics. Behind what the reput reads, a thousandth as many again, for
the union read. Steps: `reput --once`, `lake check` against the log, `maintain`, three union reads. A line of JSON for each step:
seconds, CPU seconds, most resident memory of its processes together; then one with the ratios to the log of 10 topics.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import revision
from benchmarks.processes import cpu_s, job, rss_mb
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.gateway import ProcessError, command
from lakebroker_testing.logs import BORN_MS, LogWriter, pending

FEW = 10
_BODY = b"x" * 60
_LARGE = 4 << 20
_LARGE_EVERY = 20_000
"""Records from one body of 4 MiB to the next."""
_TOPICS_EACH = 1000
"""Of a journal record of the snapshot."""
_LOOK_S = 0.2


def write(store: Path, topics: int, records: int, first: int = 0) -> None:
    """Adds to a store, and closes it."""
    with LogWriter(store, segment_size=1 << 28) as writer:
        if not first:
            for begin in range(0, topics, _TOPICS_EACH):
                batch = pb.Batch(version=1, timestamp_ms=BORN_MS)
                batch.snapshot.snapshot_id = "first"
                for number in range(begin, min(begin + _TOPICS_EACH, topics)):
                    batch.topics.add(topic=_topic(number), read_queues=8, write_queues=8, permission=6)
                writer.record(JOURNAL_TOPIC, batch.SerializeToString(), TAGS="snapshot")
        for begin in range(first, first + records, 1000):
            writer.store.append(
                [_message(n, topics) for n in range(begin, min(begin + 1000, first + records))]
            )


def _message(number: int, topics: int) -> Any:
    body = bytes(_LARGE) if number % _LARGE_EVERY == _LARGE_EVERY - 1 else _BODY
    topic, queue = (0, 0) if number % 2 else (number // 2 % topics, number // 2 // topics % 8)
    return pending(_topic(topic), body, queue, KEYS=f"key-{number}", UNIQ_KEY=f"{number:032X}")


def _topic(number: int) -> str:
    return f"topic-{number:06d}"


def steps(topics: int, records: int) -> dict[str, dict[str, Any]]:
    """Every step on a log of its own."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        folder = Path(name)
        store, lake = folder / "store", folder / "lake"

        def run(step: str, *arguments: str, program: Callable[..., list[str]] = command) -> None:
            found[step] = _spent(folder, step, program(*arguments))
            _tell({"topics": topics, "records": records, "step": step, **found[step]})

        write(store, topics, records)
        run("reput", "reput", "--store", str(store), "--lake", str(lake), "--once", "--json")
        run("check", "lake", "check", "--lake", str(lake), "--store", str(store), "--json")
        run("maintain", "maintain", "--lake", str(lake), "--json")
        write(store, topics, records // 1000, first=records)
        logs = json.dumps({"store": str(store)})
        run("union", "benchmarks.union_reads", str(lake), logs, "0", "3", program=_module)
        answers = [json.loads(line) for line in (folder / "union.jsonl").read_text().splitlines()]
        if answers[-1]["messages"] != records + records // 1000:
            raise ProcessError(
                f"the union has {answers[-1]['messages']:,} messages, {records:,} were written"
            )
        found["union"]["answer_s"] = answers[-1]["took_s"]
    return found


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _spent(folder: Path, step: str, arguments: list[str]) -> dict[str, Any]:
    """Of a job, to its end. Raises ProcessError."""
    began_s, used_s, most_mb = time.monotonic(), 0.0, 0
    with job(arguments, folder, step, ends=True) as process:
        while process.poll() is None:
            used_s = max(used_s, cpu_s(session=process.pid))
            most_mb = max(most_mb, sum(rss_mb(process.pid).values()))
            time.sleep(_LOOK_S)
        if process.returncode:
            said = (folder / f"{step}.log").read_text() + (folder / f"{step}.jsonl").read_text()
            raise ProcessError(f"{step} ended with {process.returncode}: {said[-2000:]}")
    return {"s": round(time.monotonic() - began_s, 1), "cpu_s": round(used_s, 1), "rss_mb": most_mb}


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record", type=Path, help="a file to which the last line is added too")
    chosen = parser.parse_args()
    many, few = (steps(topics, chosen.records) for topics in (chosen.topics, FEW))
    line = {
        "commit": revision.commit(),
        "benchmark": "many_topics",
        "topics": chosen.topics,
        "records": chosen.records,
        "steps": many,
        f"steps_of_{FEW}_topics": few,
        "cpu_ratio": {step: round(many[step]["cpu_s"] / few[step]["cpu_s"], 2) for step in many},
        "rss_ratio": {step: round(many[step]["rss_mb"] / few[step]["rss_mb"], 2) for step in many},
    }
    _tell(line)
    if chosen.record:
        with chosen.record.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
