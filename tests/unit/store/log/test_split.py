"""How a log is cut into ranges for readers: at records, bounded in bytes whatever the log holds, in steps."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebroker_testing.logs import HOST, written
from store.log_reader import LogReader
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.scan import scan

MAX_BYTES = 64 << 10


def damage(store: Path, kind: str) -> None:
    """Damages a store of one segment and some 7 MB."""
    at, noise = 300_000, bytes(range(1, 251)) * 36
    if kind == "overwritten":
        overwrite(store, at, noise)
    elif kind == "zeros":
        overwrite(store, at, bytes(9000))
    elif kind == "large":
        overwrite(store, at, noise * 100)
    elif kind == "scattered":
        for each in range(at, at + 3_000_000, 10_000):
            overwrite(store, each, noise[:200])
    else:
        overwrite(store, at, noise * 700)


KINDS = ["overwritten", "zeros", "large", "scattered", "to the end"]


def overwrite(store: Path, offset: int, data: bytes) -> None:
    """Puts bytes into a store of one segment."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(offset)
        log.write(data)


def whole(store: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Record starts, and (start, end) of what is none, by a scan of the whole log."""
    reader = LogReader(store)
    ((offset, data, _),) = list(reader.read_chunks(0, reader.readable_offset, 1 << 40))
    found = scan(data, offset)
    bad = list(zip(found.bad_offset.tolist(), (found.bad_offset + found.bad_length).tolist(), strict=True))
    starts = found.physical_offset.tolist()
    reader.close()
    return starts, bad


def pieces(
    chunks: Callable[[int, int, int], Iterator[tuple[int, memoryview, int]]], cuts: list[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """What `whole` gives, by scans of the ranges between cuts; damage that goes on over a cut is one piece."""
    starts: list[int] = []
    bad: list[tuple[int, int]] = []
    for a, b in itertools.pairwise(cuts):
        for offset, data, _ in chunks(a, b, 1 << 20):
            found = scan(data, offset)
            starts += found.physical_offset.tolist()
            for begin, length in zip(found.bad_offset.tolist(), found.bad_length.tolist(), strict=True):
                if bad and bad[-1][1] == begin:
                    bad[-1] = (bad[-1][0], begin + length)
                else:
                    bad.append((begin, begin + length))
    return starts, bad


def assert_bounded(cuts: list[int], end: int) -> None:
    assert (cuts[0], cuts[-1]) == (0, end)
    sizes = [b - a for a, b in itertools.pairwise(cuts)]
    assert min(sizes) > 0
    assert max(sizes) <= MAX_BYTES, f"a range of {max(sizes)} bytes where {MAX_BYTES} were asked for"
    assert len(sizes) <= 2 * end // MAX_BYTES + 2


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_by_path_are_bounded_whatever_the_log_holds(tmp_path: Path, kind: str) -> None:
    store = written(tmp_path, "broker-a", 6000, segment_size=8 << 20)
    damage(store, kind)
    reader = LogReader(store)
    end = reader.readable_offset
    cuts = reader.split(0, end, MAX_BYTES)
    assert_bounded(cuts, end)
    assert pieces(reader.read_chunks, cuts) == whole(store), "the ranges hold something else than the log"
    reader.close()


@pytest.mark.parametrize("indexed", ["before the damage", "after it"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_of_a_broker_are_bounded_whatever_the_log_holds(
    tmp_path: Path, kind: str, indexed: str
) -> None:
    path = written(tmp_path, "broker-a", 6000, segment_size=8 << 20)
    damage(path, kind)
    if indexed == "after it":
        shutil.rmtree(path / "lakeindex")
    store = MessageStore.open(
        path, StoreOptions(broker="broker-a", cluster="c", store_host=HOST, segment_size=8 << 20)
    )
    end = store.flushed_offset
    cuts = store.split(0, end, MAX_BYTES)
    assert_bounded(cuts, end)
    assert all(store.is_boundary(cut) for cut in cuts)
    sizes = [len(data) for a, b in itertools.pairwise(cuts) for _, data, _ in store.read_chunks(a, b, 4096)]
    assert max(sizes) <= 4096
    assert pieces(store.read_chunks, cuts) == whole(path), "the ranges hold something else than the log"
    store.close()


def test_a_limit_ends_the_ranges_and_the_next_go_on_from_there(tmp_path: Path) -> None:
    path = written(tmp_path, "broker-a", 6000)
    damage_at = 2_500_000 % (1 << 20)
    with (path / "commitlog" / f"{2 << 20:020d}").open("r+b") as log:
        log.seek(damage_at)
        log.write(b"\1" * 300_000)
    reader = LogReader(path)
    store = MessageStore.open(
        path, StoreOptions(broker="broker-a", cluster="c", store_host=HOST, segment_size=1 << 20)
    )
    end = reader.readable_offset
    for split in (reader.split, store.split):
        for limit in (200_000, 1 << 20, 3 << 20):
            cuts = [0]
            while cuts[-1] < end:
                part = split(cuts[-1], end, MAX_BYTES, limit)
                assert len(part) > 1
                assert part[0] == cuts[-1]
                assert part[-1] - part[0] <= limit
                assert part[-1] == end or part[-1] - part[0] > limit - MAX_BYTES - 2000
                cuts += part[1:]
            assert pieces(reader.read_chunks, cuts) == pieces(reader.read_chunks, [0, end])
        assert len(split(0, end, MAX_BYTES, 10)) == 2, "there is always one range"
    reader.close()
    store.close()
