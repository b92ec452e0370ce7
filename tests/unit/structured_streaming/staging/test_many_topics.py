"""What a batch costs does not grow with the topics in it: calls are counted, from the bytes of the log to the lake's progress."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from lakebroker_testing.logs import encoded, pending
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.empty import empty_lake

MANY = 100_000 if EVIDENCE else 6_000
BODY = b"x" * 60


class Calls:
    """Counts the calls of functions, in Python and built in, by name."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self.by_name[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            self.by_name[called.__qualname__] += 1


def log_of(topics: int, base: int) -> bytes:
    """A log of `MANY` records that begins at `base`, keys and ids all different, over so many topics of one length."""
    records = (
        pending(f"topic-{n % topics:06d}", BODY, KEYS=f"key-{n}", UNIQ_KEY=f"{n:032X}") for n in range(MANY)
    )
    return encoded(records, base)[0]


def counted(lake: Path, topics: int) -> tuple[Calls, list[dict[str, Any]]]:
    """The calls of a batch from staging to its commit, and its manifest."""
    empty_lake(str(lake))
    sink = DeltaCommitSink(str(lake))
    end = 0
    for _ in range(2):  # what is loaded once is by the first
        start, data = end, log_of(topics, end)
        end += len(data)
        with Calls() as calls:
            (manifest,) = stage(str(lake), LogRange("store:-", "b", "l", start, end, end), [(start, data)])
            rows = manifest.to_pylist()
            sink.commit(rows)
    return calls, rows


def test_a_batch_of_many_topics_makes_no_more_calls_than_one_of_few(tmp_path: Path) -> None:
    few, few_rows = counted(tmp_path / "few", 10)
    many, many_rows = counted(tmp_path / "many", MANY)
    assert [row["table"] for row in many_rows] == [row["table"] for row in few_rows], (
        "files of one table each"
    )
    more = {name: count - few.by_name[name] for name, count in many.by_name.items()}
    grown = {name: count for name, count in more.items() if count > MANY // 100}
    assert not grown
    assert sum(row["rows"] for row in many_rows) == sum(row["rows"] for row in few_rows)
    assert len(str(many_rows)) <= len(str(few_rows)) + 100, "statistics name two topics, not all"
