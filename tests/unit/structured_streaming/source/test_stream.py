"""The stream reader over stores by path, called as Spark calls it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lakebroker_testing.logs import LogWriter, pending, written
from store.log.erased import write_erased
from store.log_reader import LogReader
from store.log_source import StoreLog
from store.scan import scan
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.errors import SourceError
from structured_streaming.reput_source import ReputDataSource
from structured_streaming.source import log_watch
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.source.log_range import LogRange
from structured_streaming.tables import DATA_TABLES
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.empty import empty_lake
from tests.support.waiting import wait_until

BATCH = 256 << 10


def reader(*stores: Path, **options: str) -> Any:
    source = (ReputDataSource if "lake" in options else LakebrokerDataSource)(
        {"store": ",".join(map(str, stores)), **options}
    )
    return source.streamReader(source.schema())


def batches(stream: Any, start: dict[str, Any] | None = None) -> Iterator[list[LogRange]]:
    """Partitions of every batch until nothing is new, as Spark asks for them."""
    offset = start if start is not None else stream.initialOffset()
    while (latest := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        yield list(stream.partitions(offset, latest))
        offset = latest


def keys(stream: Any, parts: list[LogRange]) -> Counter[tuple[str, int]]:
    """Row keys that the partitions of a batch hold."""
    found: Counter[tuple[str, int]] = Counter()
    for part in parts:
        for batch in stream.read(part):
            found.update(zip(batch["broker"].to_pylist(), batch["physical_offset"].to_pylist(), strict=True))
    return found


def test_every_batch_has_rows_of_each_broker_with_a_backlog(tmp_path: Path) -> None:
    """Of three, then of two, then of one."""
    stores = [written(tmp_path / f"{n}", f"broker-{n}", 500 * (n + 1)) for n in range(3)]
    stream = reader(*stores, maxBytesPerTrigger=str(BATCH), partitionBytes=str(64 << 10))
    ends = {f"broker-{n}": LogReader(store).readable_offset for n, store in enumerate(stores)}
    done = dict.fromkeys(ends, 0)
    found: Counter[tuple[str, int]] = Counter()
    for number, parts in enumerate(batches(stream)):
        behind = {broker for broker, end in ends.items() if done[broker] < end}
        assert {part.broker for part in parts} == behind, f"batch {number}"
        assert sum(part.end - part.start for part in parts) <= BATCH
        for part in parts:
            assert part.start == done[part.broker]
            done[part.broker] = part.end
        found += keys(stream, parts)
    assert done == ends
    assert len(found) == 500 * (1 + 2 + 3)
    assert set(found.values()) == {1}


def planned(store: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Segments opened and bytes looked at to plan a batch."""
    from store import log_reader
    from store.kernels import walk

    stream = reader(store, maxBytesPerTrigger=str(BATCH), partitionBytes=str(64 << 10))
    opened, looked_at = [], []
    segment, split = log_reader.Segment, walk.split

    def open_segment(path: Path, *arguments: Any, **named: Any) -> Any:
        opened.append(path.name)
        return segment(path, *arguments, **named)

    def split_counted(data: Any, base: int, start: int, most: int, limit: int, size: int) -> Any:
        found = split(data, base, start, most, limit, size)
        looked_at.append(int(found[-1]) if len(found) else 0)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(log_reader, "Segment", open_segment)
        patched.setattr(walk, "split", split_counted)
        start = stream.initialOffset()
        latest = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert stream.partitions(start, latest)
    return len(opened), sum(looked_at)


def test_planning_costs_the_batch_not_the_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = written(tmp_path / "few", "broker-a", 850)
    many = written(tmp_path / "many", "broker-a", 9_130)
    assert [len(LogReader(store).segments()) for store in (few, many)] == [1, 10]
    opened, looked_at = planned(many, monkeypatch)
    assert (opened, looked_at) == planned(few, monkeypatch)
    assert opened == 1
    assert looked_at <= BATCH
    mapped = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if f"{many}/commitlog" in line
    ]
    assert not mapped, "a segment stays mapped that the broker may delete"


def test_a_broker_plans_a_batch_at_the_cost_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    for count in (850, 9_130):
        with LogWriter(tmp_path / str(count), "broker-a", segment_size=1 << 20) as writer:
            for first in range(0, count, 50):
                writer.store.append([pending("t", bytes(1000), n % 4) for n in range(first, first + 50)])
            writer.store.flush()
            log = StoreLog(writer.store)
            state = log.describe()
            runs = type(writer.store.index.runs())
            calls: list[int] = []
            with monkeypatch.context() as patched:
                for name in ("floor", "above"):

                    def look(self: Any, offset: int, real: Any = getattr(runs, name)) -> Any:
                        calls.append(offset)  # noqa: B023
                        return real(self, offset)

                    patched.setattr(runs, name, look)
                cuts = log.split(state.log_id, state.start, state.end, 64 << 10, BATCH)
            assert BATCH - (64 << 10) < cuts[-1] <= BATCH
            searched.append(len(calls))
    assert searched[0] == searched[1] > 0


def test_a_record_larger_than_a_share_is_read_all_the_same(tmp_path: Path) -> None:
    stores = [written(tmp_path / f"{n}", f"broker-{n}", 20, body=40_000) for n in range(2)]
    stream = reader(*stores, maxBytesPerTrigger="1024", partitionBytes="1024")
    sizes = [len(keys(stream, parts)) for parts in batches(stream)]
    assert sizes == [2] * 20


def test_a_stream_goes_on_from_spark_s_checkpoint_and_ends_where_it_is_told(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 3000)
    end = LogReader(store).readable_offset
    first = reader(store, maxBytesPerTrigger=str(BATCH))
    start = first.initialOffset()
    middle = first.latestOffset(start, first.getDefaultReadLimit())
    again = reader(store, maxBytesPerTrigger=str(BATCH))
    (part,) = again.partitions(start, middle)
    assert (part.start, part.end) == (0, middle["broker-a"]["offset"])
    rest = [part for parts in batches(again, middle) for part in parts]
    assert (rest[0].start, rest[-1].end) == (part.end, end)
    bounded = reader(store, endingOffsets=json.dumps({"broker-a": part.end}))
    assert [part.end for parts in batches(bounded) for part in parts] == [part.end]


def test_a_log_that_cannot_be_opened_is_left_out_of_a_stream_and_fails_a_batch(tmp_path: Path) -> None:
    store, gone = written(tmp_path / "store", "broker-a", 300), tmp_path / "gone"
    notes = tmp_path / "notes"
    stream = reader(store, gone, notes=str(notes))
    assert len(list(batches(stream))) == 1
    stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    (line,) = notes.read_text().splitlines()
    assert str(gone) in line
    source = LakebrokerDataSource({"store": f"{store},{gone}"})
    with pytest.raises(SourceError, match="gone"):
        source.reader(source.schema()).partitions()
    shutil.rmtree(store)


@pytest.mark.parametrize(
    "wrong", [{"startingOffsets": "sometimes"}, {"endingOffsets": "1"}, {"maxBytesPerTrigger": "²"}]
)
def test_a_wrong_option_is_named(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(SourceError, match=next(iter(wrong))):
        reader(tmp_path, **wrong)


_DATA = {table.name for table in DATA_TABLES}


def reput(lake: Path, *stores: Path, crash_after: int = 1 << 30) -> list[set[str]]:
    """A run over the stores that answer, which dies after so many commits of tables; brokers of each batch."""
    commits: list[str] = []

    def count(step: str) -> None:
        if step in _DATA:
            commits.append(step)
            if len(commits) == crash_after:
                raise KeyboardInterrupt

    stream, sink = reader(*stores, lake=str(lake)), DeltaCommitSink(str(lake), count)
    read = []
    for parts in batches(stream):
        read.append({part.broker for part in parts})
        sink.commit([row for part in parts for batch in stream.read(part) for row in batch.to_pylist()])
    return read


def test_logs_that_come_and_go_between_crashes_catch_up(tmp_path: Path) -> None:
    a, b, c = (written(tmp_path / name, f"broker-{name}", 20) for name in "abc")
    lake = empty_lake(str(tmp_path / "lake")).path
    with pytest.raises(KeyboardInterrupt):
        reput(lake, a, b, c, crash_after=1)
    for stores in ((a,), (a, c)):  # b is silent; each run dies while it catches up
        with pytest.raises(KeyboardInterrupt):
            reput(lake, *stores, crash_after=1)
    assert any(len(LakeProgress(str(lake)).stops(broker, log_id)) for broker, log_id in logs(a, b, c))
    caught_up = reput(lake, a, b, c)
    assert caught_up
    assert all(len(batch) == 1 for batch in caught_up), "a batch that catches up holds one log"
    assert_exact(lake, a, b, c)
    assert reput(lake, a, b, c) == []


def logs(*stores: Path) -> list[tuple[str, str]]:
    return [(log.broker, log.log_id) for log in map(LogReader, stores)]


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the time go by that logs are left alone for."""
    now = [0.0]

    def go_by() -> None:
        now[0] += log_watch.SHORTEST_REST_S

    monkeypatch.setattr(log_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return go_by


def test_a_log_of_which_a_batch_read_a_part_is_not_left_alone_longer_each_time(
    tmp_path: Path, rested: Callable[[], None]
) -> None:
    store = written(tmp_path / "store", "broker-a", 40, body=1000)
    lake = empty_lake(str(tmp_path / "lake")).path
    stream, sink = reader(store, lake=str(lake), partitionBytes="2000"), DeltaCommitSink(str(lake))
    latest = stream.initialOffset()

    def planned() -> list[LogRange]:
        nonlocal latest
        offset, latest = latest, next_offset(stream, latest)
        return list(stream.partitions(offset, latest))

    for _ in range(3):
        part, *_others = wait_until(planned, "it is read again")
        sink.commit([row for batch in stream.read(part) for row in batch.to_pylist()])
        assert not planned(), "it is left alone"
        rested()


def test_a_log_of_whose_first_batch_nothing_was_read_is_read_from_its_beginning(
    tmp_path: Path, rested: Callable[[], None]
) -> None:
    """Its broker died meanwhile. Spark's offset has what was planned, and the lake nothing."""
    store = written(tmp_path / "store", "broker-a", 40, body=1000)
    lake = empty_lake(str(tmp_path / "lake")).path
    stream, sink = reader(store, lake=str(lake), maxBytesPerTrigger="20000"), DeltaCommitSink(str(lake))
    offset = stream.initialOffset()
    latest = next_offset(stream, offset)
    assert list(stream.partitions(offset, latest))
    for _ in range(2):
        offset, latest = latest, next_offset(stream, latest)
        assert list(stream.partitions(offset, latest)) == [], "it is left alone for 5 s"
    rested()
    while latest["broker-a"]["offset"] < LogReader(store).readable_offset:
        offset, latest = latest, next_offset(stream, latest)
        parts = stream.partitions(offset, latest)
        sink.commit([row for part in parts for batch in stream.read(part) for row in batch.to_pylist()])
    assert_exact(lake, store)


def test_a_log_that_was_too_slow_to_be_looked_at_for_spark_s_first_batch_is_not_left_alone(
    tmp_path: Path,
) -> None:
    """Spark makes that batch all the same, from where the log begins to there: it needs no log."""
    store, notes = written(tmp_path / "store", "broker-a", 40), tmp_path / "notes"
    lake = str(empty_lake(str(tmp_path / "lake")).path)
    stream = reader(store, lake=lake, notes=str(notes))
    offset = stream.initialOffset()
    assert list(reader(tmp_path / "away", lake=lake).partitions(offset, offset)) == []
    assert list(stream.partitions(offset, offset)) == []
    assert list(stream.partitions(offset, next_offset(stream, offset)))
    assert not notes.exists()


def next_offset(stream: Any, offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = stream.latestOffset(offset, stream.getDefaultReadLimit())
    return found


def test_a_reput_that_goes_on_is_told_once_that_it_is_up_to_date(tmp_path: Path) -> None:
    store, lake, notes = written(tmp_path / "store", "broker-a", 100), tmp_path / "lake", tmp_path / "notes"
    empty_lake(str(lake))
    sink = DeltaCommitSink(str(lake))
    stream = reader(store, lake=str(lake), notes=str(notes))
    offset = stream.initialOffset()
    latest = stream.latestOffset(offset, stream.getDefaultReadLimit())
    parts = stream.partitions(offset, latest)
    assert not notes.exists()
    sink.commit([row for part in parts for batch in stream.read(part) for row in batch.to_pylist()])
    for _ in range(2):
        assert stream.latestOffset(latest, stream.getDefaultReadLimit()) == latest
    assert notes.read_text() == "the lake is up to date; waiting for more\n"

    others = tmp_path / "others"
    others.touch()
    away = reader(store, tmp_path / "away", lake=str(lake), notes=str(others))
    assert away.latestOffset(away.initialOffset(), away.getDefaultReadLimit()) == latest
    assert "up to date" not in others.read_text(), "one log was not asked"

    stream = reader(store, lake=str(lake), notes=str(notes), endingOffsets='{"broker-a": 1000000}')
    stream.latestOffset(latest, stream.getDefaultReadLimit())
    assert len(notes.read_text().splitlines()) == 1, "a run that ends by itself says it at its end"


def test_erased_records_are_left_out_of_what_is_planned_from_then_on(tmp_path: Path) -> None:
    store = written(tmp_path / "s", "broker-a", 1200)
    log = LogReader(store)
    offsets = [
        int(each)
        for offset, data, _ in log.read_chunks(log.min_offset, log.readable_offset, 1 << 30)
        for each in scan(data, offset, segment_size=log.segment_size).physical_offset
    ]
    stream = reader(store, maxBytesPerTrigger=str(BATCH), partitionBytes=str(64 << 10))
    whole: Counter[tuple[str, int]] = Counter()
    gone: set[int] = set()
    for number, parts in enumerate(batches(stream)):
        found = keys(stream, parts)
        whole += found
        later = [offset for offset in offsets if offset >= parts[-1].end]
        if number == 0:
            assert not any(part.erased for part in parts)
            write_erased(store, log.log_id, np.array([offsets[0], later[0], later[1]], np.int64))
            gone = {later[0], later[1]}
        elif number == 1:
            assert {offset for part in parts for offset in part.erased} == gone
            assert all(part.start <= offset < part.end for part in parts for offset in part.erased)
            write_erased(store, log.log_id, np.array([offsets[0], *sorted(gone), later[-1]], np.int64))
            gone.add(later[-1])
    assert {offset for _, offset in whole} == set(offsets) - gone
    assert len(gone) == 3
    begun = reader(store)
    state = begun.initialOffset()
    parts = begun.partitions(state, begun.latestOffset(state, begun.getDefaultReadLimit()))
    assert [offset for part in parts for offset in part.erased] == sorted(gone | {offsets[0]})
