"""Pages ahead of the log's end: which are brought in and how, that nothing is changed by it, warming and locking."""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing import logs
from store.log.flush import FlushMode
from store.log.page_cache import POPULATE_WRITE, WILLNEED, PageCache, advise
from store.log.record import Host, PendingRecord
from store.log.segment import Segment
from tests.support.waiting import LIMIT_S, wait_until

HOST = Host("127.0.0.1", 10911)
PAGE = 4096
STEP = 16 * PAGE
SEGMENT = 100 * PAGE
BUSY = 3600.0
Call = tuple[int, int, int]
CaughtUp = Callable[[], None]


class Calls:
    """Takes the place of madvise; `log` has physical offset, length and advice."""

    def __init__(self, error: int = 0, on: tuple[int, ...] = ()) -> None:
        self.log: list[Call] = []
        self._error, self._on = error, on

    def __call__(self, segment: Segment, position: int, length: int, advice: int) -> None:
        self.log.append((segment.start + position, length, advice))
        if advice in self._on:
            raise OSError(self._error, os.strerror(self._error))


@pytest.fixture
def caught_up(monkeypatch: pytest.MonkeyPatch) -> CaughtUp:
    """Waits until the thread of the newest page cache has done what it was given."""
    threads: list[ThreadPoolExecutor] = []

    def started(**given: Any) -> ThreadPoolExecutor:
        threads.append(ThreadPoolExecutor(**given))
        return threads[-1]

    monkeypatch.setattr("store.log.page_cache.ThreadPoolExecutor", started)
    return lambda: threads[-1].submit(lambda: None).result(LIMIT_S)


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    return [Segment.create(tmp_path, number * SEGMENT, SEGMENT) for number in range(2)]


def written(
    pages: PageCache, segments: list[Segment], calls: Calls, caught_up: CaughtUp, upto: int, by: int
) -> None:
    """As the log does: asks again at the offset it was told; each step ends before the log goes on."""
    again, seen = -1, 0
    for offset in range(0, upto, by):
        if offset <= again:
            continue
        number = offset // SEGMENT
        following = segments[number + 1] if number + 1 < len(segments) else None
        again = pages.reached(segments[number], following, offset)
        assert again > offset
        for begin, length, _ in calls.log[seen:]:
            assert begin + length <= offset + 2 * STEP, "no further ahead"
        seen = len(calls.log)
        caught_up()


def test_every_page_of_a_busy_log_is_brought_in_once_before_the_log_is_there_and_over_the_roll(
    segments: list[Segment],
    caught_up: CaughtUp,
) -> None:
    calls = Calls()
    pages = PageCache(STEP, BUSY, advise=calls)
    written(pages, segments, calls, caught_up, 2 * SEGMENT - 3 * STEP, 1000)
    end = calls.log[0][0]
    assert end < STEP, "nothing is known of the rate at first"
    for begin, length, advice in calls.log:
        assert begin == end
        assert begin % PAGE == 0
        assert advice == POPULATE_WRITE
        end = begin + length
    assert end >= 2 * SEGMENT - 3 * STEP
    assert len(calls.log) <= 2 * SEGMENT // STEP + 2
    pages.close()


@pytest.mark.parametrize("busy_s", [0.0, 1e-12])
def test_a_log_that_flushes_before_it_gets_there_is_left_alone(
    segments: list[Segment], caught_up: CaughtUp, busy_s: float
) -> None:
    calls = Calls()
    pages = PageCache(STEP, busy_s, advise=calls)
    written(pages, segments, calls, caught_up, SEGMENT, PAGE)
    assert calls.log == []
    pages.close()


def test_nothing_when_it_is_off(segments: list[Segment]) -> None:
    calls = Calls()
    pages = PageCache(0, BUSY, advise=calls)
    assert pages.reached(segments[0], segments[1], 0) == SEGMENT
    assert calls.log == []
    pages.close()


def test_no_second_step_while_one_is_under_way(segments: list[Segment]) -> None:
    go = threading.Event()
    began: list[int] = []

    def slow(segment: Segment, position: int, length: int, advice: int) -> None:
        began.append(position)
        go.wait(LIMIT_S)

    pages = PageCache(STEP, BUSY, advise=slow)
    offset = 0
    for _ in range(8):
        offset = pages.reached(segments[0], None, offset)
    wait_until(lambda: bool(began))
    assert len(began) == 1
    go.set()
    pages.close()


def test_an_old_kernel_is_given_hints(segments: list[Segment], caught_up: CaughtUp) -> None:
    calls = Calls(errno.EINVAL, on=(POPULATE_WRITE,))
    pages = PageCache(STEP, BUSY, advise=calls)
    written(pages, segments, calls, caught_up, SEGMENT, PAGE)
    kinds = [advice for _, _, advice in calls.log]
    assert kinds == [POPULATE_WRITE] + [WILLNEED] * (len(kinds) - 1)
    assert len(kinds) > 3
    pages.close()


def test_what_fails_is_said_once_and_tried_at_the_next_step(
    segments: list[Segment], caught_up: CaughtUp, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(errno.EFAULT, on=(POPULATE_WRITE,))
    pages = PageCache(STEP, BUSY, advise=calls)
    written(pages, segments, calls, caught_up, SEGMENT, PAGE)
    assert len(calls.log) > 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Bad address" in record.getMessage()
    pages.close()


def test_a_segment_that_was_deleted_meanwhile_is_left_alone(
    segments: list[Segment], caught_up: CaughtUp, caplog: pytest.LogCaptureFixture
) -> None:
    pages = PageCache(STEP, BUSY, PAGE)
    pages.reached(segments[0], None, 0)
    segments[0].close()
    pages.reached(segments[0], None, STEP)
    pages.made(segments[0])
    caught_up()
    assert pages.steps == {WILLNEED: 0, POPULATE_WRITE: 0}
    assert caplog.records == []
    pages.close()


def faults_of_writing(segment: Segment) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for position in range(0, segment.size, PAGE):
        segment.view[position] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_pages_populated_for_writing_are_written_without_a_fault(tmp_path: Path) -> None:
    size = 1024 * PAGE
    cold, warm = (Segment.create(tmp_path, number * size, size) for number in range(2))
    try:
        advise(warm, 0, size, POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        pytest.skip("the kernel has no MADV_POPULATE_WRITE")
    assert warm.view[:] == bytes(size)
    assert faults_of_writing(warm) < faults_of_writing(cold) // 4
    for segment in (cold, warm):
        segment.close()


open_store = partial(logs.open_store, segment_size=1 << 20, prefault_bytes=STEP, flush_interval_ms=5)


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("warm", [0, 64 * PAGE])
def test_nothing_is_changed_beside_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught_up: CaughtUp, flush: FlushMode, warm: int
) -> None:
    caches: list[PageCache] = []

    def page_cache(*given: Any) -> PageCache:
        caches.append(PageCache(*given))
        return caches[-1]

    monkeypatch.setattr("store.opening.PageCache", page_cache)
    store = open_store(tmp_path, flush=flush, flush_interval_ms=60_000, warm_bytes=warm)
    bodies = [os.urandom(500 + number % 3000) for number in range(4000)]
    placed = []
    for number, body in enumerate(bodies):
        placed += store.append([PendingRecord("t", 0, body, b"", 1, HOST.packed, tags_code=0)])
        if number % 10 == 0:
            caught_up()  # its thread keeps up, however busy the machine is
    (pages,) = caches
    if flush is FlushMode.ASYNC_FLUSH or warm:
        assert sum(pages.steps.values()) > 10
    else:
        assert sum(pages.steps.values()) == 0, "a flush that waits for the disk does not wait for zeros"
    for body, each in zip(bodies, placed, strict=True):
        assert bytes(store.record(each.physical_offset, each.size).body) == body
    assert not any(len(part.bad_reason) for part in store.scan_from(store.min_offset))
    store.close()
    store = open_store(tmp_path)
    assert (store.recovered.records, store.recovered.bad) == (4000, [])
    store.close()


def locked_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmLck:"))


def test_warmed_segments_are_locked_until_the_log_is_behind_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, size = locked_bytes(), 1 << 20
    store = open_store(tmp_path, warm_bytes=16 * PAGE)

    def put(upto: int) -> None:
        while store.max_offset < upto:
            store.append([PendingRecord("t", 0, b"x" * 10_000, b"", 1, HOST.packed)])

    put(1)
    wait_until(lambda: locked_bytes() == before + size)
    put(size * 3 // 4)
    wait_until(lambda: locked_bytes() == before + 2 * size)  # the one made ahead too
    put(size * 5 + size // 4)
    wait_until(lambda: locked_bytes() == before + size)
    store.close()
    assert locked_bytes() == before
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_lock_that_is_refused_names_the_limit_and_stops_nothing(
    segments: list[Segment], caught_up: CaughtUp, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(segment: Segment) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    calls = Calls()
    pages = PageCache(0, warm_bytes=32 * PAGE, advise=calls, lock=refuse)
    pages.made(segments[1])
    caught_up()
    assert [each[1:] for each in calls.log] == [(32 * PAGE, POPULATE_WRITE)] * 3 + [
        (4 * PAGE, POPULATE_WRITE)
    ]
    (text,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert "Cannot allocate memory" in text
    assert "RLIMIT_MEMLOCK is " + ("unlimited" if soft == -1 else f"{soft} bytes") in text
    assert "warmMapedFileEnable=false" in text
    assert str(segments[1].path) in text
    pages.close()


def test_a_store_closes_while_a_segment_is_warmed_and_leaves_none_behind(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=32 << 20, warm_bytes=PAGE)
    store.append([PendingRecord("t", 0, b"x" * 1000, b"", 1, HOST.packed) for _ in range(17_000)])
    assert store.max_offset > 16 << 20
    store.close()
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]
