"""Logs whose oldest segments went before they were read: the run stops, or the gap is a row of quarantine, once."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.errors import GapError, LostDataError, SourceError
from structured_streaming.maintenance.copying import copy_lake
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_source import ReputDataSource
from structured_streaming.tables import DATA_TABLES, QUARANTINE
from tests.support.lakes.checks import expected_keys, rows
from tests.support.lakes.empty import empty_lake

SEGMENT = 1 << 16


def store_with_damage(folder: Path, broker: str, count: int = 700) -> Path:
    """Many segments, each with messages and something that is no record."""
    with LogWriter(folder, broker, segment_size=SEGMENT) as writer:
        for _ in range(count // 20):
            writer.messages(20)
            writer.raw(b"no record at all".ljust(500, b"?"))
    return folder


def lose(store: Path, segments: int) -> int:
    """Removes the oldest segments; returns where the log begins then."""
    for path in sorted((store / "commitlog").iterdir())[:segments]:
        path.unlink()
    return LogReader(store).min_offset


def reput(
    lake: Path,
    *stores: Path,
    batches: int = 1 << 30,
    after_table: Callable[[str], None] = lambda table: None,
    on_gap: str = "stop",
    notes: Path | None = None,
) -> list[set[str]]:
    """Batches until nothing is new, as Spark asks for them, or so many; the brokers of each."""
    options = ReputOptions(
        str(lake), ",".join(map(str, stores)), max_bytes=50_000, target_freshness_s=0.0, on_gap=on_gap
    )
    source = ReputDataSource(options.source() | ({"notes": str(notes)} if notes else {}))
    stream: Any = source.streamReader(source.schema())
    sink, offset = DeltaCommitSink(str(lake), after_table), stream.initialOffset()
    found: list[set[str]] = []
    while len(found) < batches:
        latest = stream.latestOffset(offset, stream.getDefaultReadLimit())
        if latest == offset:
            break
        parts = list(stream.partitions(offset, latest))
        found.append({part.broker for part in parts})
        sink.commit([row for part in parts for batch in stream.read(part) for row in batch.to_pylist()])
        offset = latest
    return found


def test_a_log_that_the_lake_is_ahead_of_delays_only_itself(tmp_path: Path) -> None:
    lake, kept, lost = tmp_path / "lake", tmp_path / "kept", tmp_path / "lost"
    empty_lake(str(lake))
    store_with_damage(kept, "broker-a", 100)
    store_with_damage(lost, "broker-b", 100)
    shutil.copytree(lost, tmp_path / "copy")
    for store in (kept, lost):
        with LogWriter(store, LogReader(store).broker, segment_size=SEGMENT) as writer:
            writer.messages(20)
    reput(lake, kept, lost)
    reached = position(lake, lost)
    shutil.rmtree(lost)
    (tmp_path / "copy").rename(lost)
    with LogWriter(kept, "broker-a", segment_size=SEGMENT) as writer:
        writer.messages(20)
    before, notes = LogReader(lost).readable_offset, tmp_path / "notes"
    assert reput(lake, kept, lost, notes=notes) == [{"broker-a"}]
    assert position(lake, kept) == LogReader(kept).readable_offset
    assert position(lake, lost) == reached > before
    assert f"holds broker broker-b up to offset {reached}, its log" in notes.read_text()
    assert "the other logs are read on" in notes.read_text()
    with pytest.raises(LostDataError, match=f"ends at {before}: data were lost"):
        reput(lake, lost)


def position(lake: Path, store: Path) -> int:
    log = LogReader(store)
    return LakeProgress(str(lake)).offsets[log.broker, log.log_id]


def assert_all_but(
    lake: Path, expected: dict[str, Counter[tuple[Any, ...]]], gaps: list[tuple[int, int]]
) -> None:
    """Rows of one log: each one outside of the gaps once, and one of quarantine for each gap."""
    for table in DATA_TABLES:
        found = rows(lake, table.name)
        actual = Counter(zip(*(found[column].to_pylist() for column in table.key), strict=True))
        wanted = Counter(
            {key: 1 for key in expected[table.name] if not any(begin <= key[2] < end for begin, end in gaps)}
        )
        if table is QUARANTINE:
            assert any(wanted.values()), "there is damage to tell from gaps"
            missing = [row for row in found.to_pylist() if row["reason"] == "missing"]
            assert sorted((row["physical_offset"], row["length"], row["raw"]) for row in missing) == [
                (begin, end - begin, b"") for begin, end in gaps
            ]
            wanted += Counter((row["broker"], row["log_id"], row["physical_offset"]) for row in missing)
        assert actual == wanted, table.name
    progress = sorted(
        (row["start_offset"], row["end_offset"]) for row in rows(lake, "reput_progress").to_pylist()
    )
    assert all(before[1] == after[0] for before, after in itertools.pairwise(progress))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    empty_lake(str(tmp_path / "lake"))
    return tmp_path / "lake"


def test_a_gap_stops_the_run_and_is_named(tmp_path: Path, lake: Path) -> None:
    store = store_with_damage(tmp_path / "store", "broker-a")
    reput(lake, store, batches=1)
    reached, begin, log_id = position(lake, store), lose(store, 3), LogReader(store).log_id
    for on_gap in ("", "stop"):
        with pytest.raises(GapError) as raised:
            reput(lake, store, on_gap=on_gap)
        for part in ("broker-a", log_id, str(reached), str(begin), str(begin - reached), "--on-gap continue"):
            assert part in str(raised.value)
    assert position(lake, store) == reached
    with pytest.raises(SourceError, match="onGap=maybe: give stop or continue"):
        reput(lake, store, on_gap="maybe")


def test_a_copy_of_the_lake_that_is_older_than_the_log_has_a_gap(tmp_path: Path, lake: Path) -> None:
    store, copy = store_with_damage(tmp_path / "store", "broker-a"), tmp_path / "copy"
    expected = expected_keys(store)
    reput(lake, store, batches=1)
    copy_lake(str(lake), str(copy))
    reput(lake, store)
    reached, begin = position(copy, store), lose(store, 3)
    with pytest.raises(GapError, match=f"{reached}.*{begin}"):
        reput(copy, store)
    reput(copy, store, on_gap="continue")
    assert_all_but(copy, expected, [(reached, begin)])


def test_a_gap_is_a_row_of_quarantine_and_the_run_goes_on(tmp_path: Path, lake: Path) -> None:
    store = store_with_damage(tmp_path / "store", "broker-a")
    expected = expected_keys(store)
    reput(lake, store, batches=1)
    reached, begin = position(lake, store), lose(store, 3)
    notes = tmp_path / "notes"
    reput(lake, store, on_gap="continue", notes=notes)
    assert_all_but(lake, expected, [(reached, begin)])
    assert str(begin - reached) in notes.read_text()
    assert reput(lake, store, on_gap="continue") == []
    assert_all_but(lake, expected, [(reached, begin)])


def test_other_logs_go_on_beside_a_gap(tmp_path: Path, lake: Path) -> None:
    a, b = (store_with_damage(tmp_path / name, f"broker-{name}") for name in "ab")
    reput(lake, a, b, batches=1)
    lose(a, 3)
    found = reput(lake, a, b, on_gap="continue")
    assert found[0] == {"broker-a"}
    assert {"broker-a", "broker-b"} in found
    for store in (a, b):
        assert position(lake, store) == LogReader(store).readable_offset
    assert rows(lake, "quarantine")["reason"].to_pylist().count("missing") == 1


def dies_after(table: str) -> Callable[[str], None]:
    def after(committed: str) -> None:
        if committed == table:
            raise KeyboardInterrupt

    return after


def test_a_crash_behind_the_row_of_a_gap_that_grows_meanwhile(tmp_path: Path, lake: Path) -> None:
    store = store_with_damage(tmp_path / "store", "broker-a")
    expected = expected_keys(store)
    reput(lake, store, batches=1)
    reached, first = position(lake, store), lose(store, 2)
    with pytest.raises(KeyboardInterrupt):
        reput(lake, store, on_gap="continue", after_table=dies_after("quarantine"))
    assert position(lake, store) == reached
    second = lose(store, 2)
    reput(lake, store, on_gap="continue")
    assert_all_but(lake, expected, [(reached, first), (first, second)])


@pytest.mark.parametrize("table", ["consume_queue", "quarantine"])
def test_a_crash_within_a_batch_whose_segments_go(tmp_path: Path, lake: Path, table: str) -> None:
    """Tables that had committed the batch keep its rows; the others lack them, which a row of quarantine says."""
    store = store_with_damage(tmp_path / "store", "broker-a")
    expected = expected_keys(store)
    reput(lake, store, batches=1)
    reached = position(lake, store)
    with pytest.raises(KeyboardInterrupt):
        reput(lake, store, after_table=dies_after(table))
    log = LogReader(store)
    (ahead,) = set(LakeProgress(str(lake)).stops(log.broker, log.log_id))
    begin = lose(store, 3)
    assert reached < ahead < begin
    reput(lake, store, on_gap="continue")
    gaps = [(reached, ahead), (ahead, begin)] if table == "consume_queue" else [(ahead, begin)]
    if table == "consume_queue":
        kept = {key for key in expected["consume_queue"] if reached <= key[2] < ahead}
        found = rows(lake, "consume_queue")
        keys = set(
            zip(
                found["broker"].to_pylist(),
                found["log_id"].to_pylist(),
                found["physical_offset"].to_pylist(),
                strict=True,
            )
        )
        assert kept, "the batch had rows"
        assert kept <= keys
        missing = [row for row in rows(lake, "quarantine").to_pylist() if row["reason"] == "missing"]
        assert sorted((row["physical_offset"], row["length"]) for row in missing) == [
            (start, end - start) for start, end in gaps
        ]
    else:
        assert_all_but(lake, expected, gaps)
