"""The longest stretch that one call holds the event loop, where stores are long: `python -m benchmarks.loop_stretch CASE`.

Each case prints a line of JSON: `longest_ms` and `median_ms`, of the calling thread's own processor time, so that other
processes do not count. A case is a function in `CASES`: it makes its store in a folder, and yields the calls to measure.

| case | what |
|---|---|
| lookup | least offset, entries and searches by time of queues that are busy, or seldom used, over 4,000 runs of the index |
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store.index_run import FileRun, Key, LiveRun
from store.queue_index import QueueIndex
from store.time_search import BoundaryType

Calls = Iterator[tuple[str, Callable[[], object]]]
"""What a call is, to be measured apart from others, and the call."""
RUN_BYTES = 256 << 20
BUSY, SELDOM, EVERY = 32, 32, 100
"""Queues with entries in each run, and in one of so many."""
PER_RUN = 8


def lookup(folder: Path, runs: int) -> Calls:
    """Of the queue index alone."""
    index, last = QueueIndex(), runs * PER_RUN
    for run in _files(folder, runs):
        index.load(run)
    chosen = random.Random(1)
    busy = [("busy", number) for number in range(BUSY)]
    seldom = [("seldom", number) for number in range(SELDOM)]
    for topic, queue_id in busy + seldom:
        yield "min_offset", lambda topic=topic, queue_id=queue_id: index.min_offset(topic, queue_id)
    for number in range(500):
        topic, queue_id = chosen.choice(busy)
        start = chosen.randrange(last - 64)
        yield (
            "entries",
            lambda topic=topic, queue_id=queue_id, start=start: index.entries(topic, queue_id, start, 32),
        )
        topic, queue_id = chosen.choice(seldom)
        start = chosen.randrange(index.max_offset(topic, queue_id) - 1)
        yield (
            "entries",
            lambda topic=topic, queue_id=queue_id, start=start: index.entries(topic, queue_id, start, 1),
        )
        if number % 25 == 0:
            wanted = chosen.randrange(runs * RUN_BYTES)
            search = index.at_time(topic, queue_id, lambda offset, size: offset)
            yield "at_time", lambda search=search, wanted=wanted: search(wanted, BoundaryType.LOWER)


def _files(folder: Path, runs: int) -> Iterator[FileRun]:
    following: dict[Key, int] = {}
    for number in range(runs):
        run = LiveRun(number * RUN_BYTES)
        queues = [("busy", queue) for queue in range(BUSY)]
        queues += [("seldom", queue) for queue in range(SELDOM) if (number + queue) % EVERY == 0]
        for position in range(PER_RUN):
            for place, key in enumerate(queues):
                at = following.get(key, 0)
                offset = run.start + (position * len(queues) + place) * 1000
                run.entry(key, at, run.put(offset, 1000, 7))
                following[key] = at + 1
        run.end = run.start + RUN_BYTES
        yield run.write(folder, "0" * 32, following)


CASES: dict[str, Callable[[Path, int], Calls]] = {"lookup": lookup}
DEFAULT_SIZE = {"lookup": 4000}
"""Runs of the index."""


def measure(calls: Calls) -> dict[str, dict[str, float]]:
    """Milliseconds by kind of call."""
    spent: dict[str, list[float]] = {}
    for name, call in calls:
        began = time.thread_time_ns()
        call()
        spent.setdefault(name, []).append((time.thread_time_ns() - began) / 1e6)
    return {
        name: {"longest_ms": round(max(each), 3), "median_ms": round(statistics.median(each), 3)}
        for name, each in spent.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--size", type=int, help="other than the case's own")
    options = parser.parse_args()
    for case in options.case:
        size = options.size or DEFAULT_SIZE[case]
        with tempfile.TemporaryDirectory(prefix="lakebroker-") as folder:
            found = measure(CASES[case](Path(folder), size))
        longest = max(each["longest_ms"] for each in found.values())
        print(json.dumps({"case": case, "size": size, "longest_ms": longest, "calls": found}), flush=True)


if __name__ == "__main__":
    main()
