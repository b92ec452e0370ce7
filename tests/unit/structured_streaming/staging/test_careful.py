"""A record that ends the process which stages it goes to quarantine, all others have their rows."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.errors import LakeError, StoreAwayError
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging import careful
from structured_streaming.staging.careful import stage_carefully
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from tests.suite.evidence import LONG
from tests.support.lakes.empty import empty_lake
from tests.support.logs.raw import Raw, log_of, message

KILLER = """
import os, signal, sys
if "structured_streaming.staging.careful" in sys.orig_argv:
    from structured_streaming.rows import messages
    made = messages.bodies._slice
    def killed(records, *others):
        if b"deadly" in records.buffer.tobytes():
            os.kill(os.getpid(), signal.SIGKILL)
        return made(records, *others)
    messages.bodies._slice = killed
"""
"""What is imported as each Python starts: staging dies of bodies that say so."""
AWAY = """
import sys
if "structured_streaming.staging.careful" in sys.orig_argv:
    from structured_streaming.errors import StoreAwayError
    from structured_streaming.storage.local import LocalFolder
    def away(*_):
        raise StoreAwayError("it does not answer")
    LocalFolder.open_new = away
"""
DEADLY = Raw(body=b"deadly")
COLUMNS = ["table", "rows", "start", "end", "log_end", "target"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    empty_lake(str(tmp_path / "lake"))
    return tmp_path / "lake"


def part_of(data: bytes, base: int) -> LogRange:
    return LogRange("store:-", "b", "l", base, base + len(data), base + len(data))


@pytest.mark.parametrize("others", [0, pytest.param(1, marks=LONG)])  # in short a longer range is cut below
def test_the_record_that_kills_is_found(
    lake: Path, tmp_path: Path, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range is a process that imports everything; of the last one, the good record is another."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(KILLER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(Path.cwd())]))
    base = 4096
    records = [message(1)] * others + [DEADLY] + [message(2)] * others
    data = log_of(*records, base=base)
    start, cut = (base + len(log_of(*records[:count], base=base)) for count in (others, others + 1))
    chunks = iter([(base, data[: cut - base]), (cut, data[cut - base :])])
    batches = list(stage_carefully(str(lake), part_of(data, base), chunks, EVERYTHING))
    manifest = [row for batch in batches for row in batch.to_pylist()]
    if others:
        last = dataclasses.replace(part_of(data, base), start=cut)
        (usual,) = stage(str(lake), last, iter([(cut, data[cut - base :])]), EVERYTHING)
        assert batches[-1].select(COLUMNS).equals(usual.select(COLUMNS)), (
            "what kills nobody is staged as ever"
        )
    bad = assert_only_the_deadly_one_is_missing(lake, manifest, start, [1, 2] * others)
    assert bad["reason"] == "the process that staged it ended with signal 9"


def assert_only_the_deadly_one_is_missing(
    lake: Path, manifest: list[dict[str, Any]], start: int, good: list[int]
) -> dict[str, Any]:
    """Of what is committed as one batch: all good ones have their rows, the deadly one is in quarantine, whose row is returned."""
    assert DeltaCommitSink(str(lake)).commit(manifest) is not None
    ids = []
    for row in manifest:
        if row["table"] == "messages":
            ids += pq.read_table(lake / "messages" / row["path"])["message_id"].to_pylist()
    assert sorted(ids) == [f"GOOD{number:028d}" for number in good]
    (path,) = (row["path"] for row in manifest if row["table"] == "quarantine")
    (bad,) = pq.read_table(lake / "quarantine" / path).to_pylist()
    assert (bad["physical_offset"], bad["raw"]) == (start, DEADLY.encoded(start))
    found: dict[str, Any] = bad
    return found


def test_halves_are_halved_again_and_good_records_before_the_deadly_one_have_their_rows(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, records = 4096, [message(1), message(2), DEADLY, message(3), message(4)]
    data = log_of(*records, base=base)
    ends = [base + len(log_of(*records[:count], base=base)) for count in range(len(records) + 1)]
    given: list[tuple[int, int]] = []

    def staged_here(lake: str, part: LogRange, chunks: Any, wanted: Wanted) -> pa.RecordBatch:
        if part.start:  # else it is the good record
            given.append((ends.index(part.start), ends.index(part.end)))
        if DEADLY.body in b"".join(each for _, each in chunks):
            raise careful._DiedError("it died")
        return next(stage(lake, part, iter(chunks), wanted))

    monkeypatch.setattr(careful, "_in_child", staged_here)
    batches = stage_carefully(str(lake), part_of(data, base), iter([(base, data)]), EVERYTHING)
    manifest = [row for batch in batches for row in batch.to_pylist()]
    assert given == [(0, 5), (0, 3), (0, 2), (2, 3), (2, 3), (3, 5)]
    bad = assert_only_the_deadly_one_is_missing(lake, manifest, ends[2], [1, 2, 3, 4])
    assert bad["reason"] == "it died"


def test_a_record_is_not_blamed_for_a_death_that_it_does_not_cause_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, deaths = log_of(message(1)), [careful._DiedError("it died")]

    def staged_here(lake: str, part: LogRange, chunks: Any, wanted: Wanted) -> pa.RecordBatch:
        if deaths:
            raise deaths.pop()
        return next(stage(lake, part, iter(chunks), wanted))

    monkeypatch.setattr(careful, "_in_child", staged_here)
    (batch,) = stage_carefully(str(lake), part_of(data, 0), iter([(0, data)]), EVERYTHING)
    staged = [(row["table"], row["path"]) for row in batch.to_pylist() if row["path"]]
    assert "quarantine" not in dict(staged)
    there = [(path.parent.name, path.name) for path in lake.glob("*/*.parquet")]
    assert sorted(there) == sorted(staged), "of the good record nothing is left"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            "kill -KILL $$",
            "signal 9, and so it is with a good record: .* signal 9; give Spark's machine more memory",
        ),
        ("kill -TERM $$", "was ended by SIGTERM; the batch is staged again"),
    ],
)
def test_no_record_is_blamed_where_each_process_ends(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str
) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\n{end}\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    data = log_of(message(1), message(2))
    with pytest.raises(LakeError, match=said):
        list(stage_carefully(str(lake), part_of(data, 0), iter([(0, data)]), EVERYTHING))
    assert not list(lake.glob("quarantine/*.parquet"))


def test_a_store_that_is_away_is_so_in_a_child_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AWAY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    data = log_of(message(1))
    with pytest.raises(StoreAwayError, match="it does not answer"):
        list(stage_carefully(str(tmp_path / "none"), part_of(data, 0), iter([(0, data)]), EVERYTHING))


def test_an_error_that_is_told_is_no_record_s(tmp_path: Path) -> None:
    data = log_of(message(1))
    with pytest.raises(LakeError, match="No such file or directory"):
        list(stage_carefully(str(tmp_path / "none"), part_of(data, 0), iter([(0, data)]), EVERYTHING))


def test_a_range_in_which_nothing_kills_is_one_manifest_of_one_child(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = log_of(message(1), message(2), message(3))
    given: list[LogRange] = []

    def staged_here(lake: str, part: LogRange, chunks: Any, wanted: Wanted) -> pa.RecordBatch:
        given.append(part)
        (batch,) = stage(lake, part, iter(chunks), wanted)
        return batch

    monkeypatch.setattr(careful, "_in_child", staged_here)
    (batch,) = stage_carefully(str(lake), part_of(data, 0), iter([(0, data)]), EVERYTHING)
    assert given == [part_of(data, 0)]
    assert {"messages", "consume_queue"} <= set(batch["table"].to_pylist())
