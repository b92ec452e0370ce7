"""A real broker's log beside the broker: its identity, ranges of it, and that nothing is written into the store."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_testing.logs import blank, written
from store.errors import OffsetOutOfRangeError, OtherLogError, StoreDamagedError
from store.running.identity import STATE_FILE
from store.running.log import RunningLog
from store.scan import scan
from tests.support.logs.real_store import RealStore
from tests.support.waiting import LIMIT_S


@pytest.fixture
def store(tmp_path: Path) -> RealStore:
    made = RealStore(tmp_path / "store")
    made.messages(1000)
    return made


@pytest.fixture
def log(store: RealStore, tmp_path: Path) -> Iterator[RunningLog]:
    opened = opened_log(store.root, tmp_path / "state")
    yield opened
    opened.close()


def opened_log(root: Path, state: Path, broker: str = "broker-a") -> RunningLog:
    return RunningLog(root, state, broker, "DefaultCluster", delay_levels=(1000,))


def settled(log: RunningLog, end: int) -> int:
    """Its readable end, once that is `end`."""
    return log.describe(30_000, end - 1).end


def test_a_log_keeps_its_id_and_goes_on_where_it_was(store: RealStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = opened_log(store.root, state)
    assert log.is_new
    assert settled(log, store.end) == store.end
    found = log.describe()
    assert (found.broker, found.start, found.delay_levels, found.segment_size) == (
        "broker-a",
        0,
        (1000,),
        store.segment,
    )
    log.close()
    assert json.loads((state / STATE_FILE).read_text())["served"]["end"] == store.end
    again = opened_log(store.root, state)
    assert (again.is_new, again.log_id) == (False, log.log_id)
    assert again.max_offset == store.end
    again.close()
    other = opened_log(store.root, tmp_path / "another")
    assert other.log_id != log.log_id
    other.close()


def test_a_description_has_the_last_record(store: RealStore, log: RunningLog) -> None:
    settled(log, store.end)
    for _ in range(3):
        store.messages(2, 1_000_000)
        assert log.describe().end == store.end


def test_ranges_hold_every_record_once(store: RealStore, log: RunningLog) -> None:
    end = settled(log, store.end)
    cuts = log.split(log.log_id, 0, end, 10_000)
    assert (cuts[0], cuts[-1]) == (0, end)
    data = bytearray()
    for begin, stop in itertools.pairwise(cuts):
        for offset, chunk in log.read(log.log_id, begin, stop, 4096):
            assert offset == len(data)
            data += chunk
    raw = b"".join(path.read_bytes() for path in sorted((store.root / "commitlog").iterdir()))
    assert bytes(data) == raw[:end]


def test_ranges_may_begin_and_end_at_a_blank(store: RealStore, log: RunningLog) -> None:
    end = settled(log, store.end)
    room = store.segment - end % store.segment
    store.write(end, blank(room)[:8])
    assert log.describe().end == end
    store.end += room
    store.messages(5)
    after = settled(log, store.end)
    assert log.split(log.log_id, end, after, 1 << 20) == [end, end + room, after]
    parts = [scan(data, at, segment_size=store.segment) for at, data in log.read(log.log_id, end, after)]
    assert sum(len(found) for found in parts) == 5
    assert not any(len(found.bad_offset) for found in parts)


def test_ranges_that_are_none_are_refused(store: RealStore, log: RunningLog) -> None:
    end, begin = settled(log, store.end), store.delete_oldest(1)
    within = next(offset for offset, _ in store.places if offset > begin) + 7
    for start, stop in ((0, end), (begin, end + 1), (within, end), (begin, within), (end, begin)):
        with pytest.raises(OffsetOutOfRangeError):
            log.split(log.log_id, start, stop, 1 << 20)
        with pytest.raises(OffsetOutOfRangeError):
            next(log.read(log.log_id, start, stop))
    with pytest.raises(OtherLogError):
        log.split("another", begin, end, 1 << 20)
    with pytest.raises(OtherLogError):
        log.report("another", 0)
    assert log.describe().start == begin


def test_a_segment_that_is_deleted_while_it_is_read_is_read_to_its_end(
    store: RealStore, log: RunningLog
) -> None:
    settled(log, store.end)
    chunks = log.read(log.log_id, 0, log.split(log.log_id, 0, store.segment, 1 << 30)[1], 4096)
    next(chunks)
    store.delete_oldest(1)
    assert sum(len(chunk) for _, chunk in chunks) > 0


def test_damage_within_a_range_is_no_boundary_that_is_refused(store: RealStore, log: RunningLog) -> None:
    end = settled(log, store.end)
    at, size = store.places[10]
    store.write(at, b"?" * size)
    assert log.split(log.log_id, at + 5, end, 1 << 30)[0] == at + 5


def test_nothing_is_written_into_the_store(store: RealStore, tmp_path: Path) -> None:
    def all_of_it() -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (
                path.stat().st_mtime_ns,
                path.stat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in [store.root, *store.root.rglob("*")]
        }

    before = all_of_it()
    log = opened_log(store.root, tmp_path / "state")
    settled(log, store.end)
    list(log.read(log.log_id, 0, store.end))
    log.close()
    assert all_of_it() == before


def test_readers_at_once_see_one_log(store: RealStore, log: RunningLog) -> None:
    failed: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                state = log.describe()
                cuts = log.split(log.log_id, state.start, state.end, 5000)
                assert cuts[-1] == state.end
                assert (
                    sum(len(data) for _, data in log.read(log.log_id, cuts[0], cuts[-1], 4096)) == state.end
                )
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        store.messages(20)
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failed
    assert settled(log, store.end) == store.end


def test_what_is_not_served(store: RealStore, tmp_path: Path) -> None:
    ours = written(tmp_path / "ours", "broker-a", 10)
    with pytest.raises(StoreDamagedError, match="is a store of lakebroker"):
        opened_log(ours, tmp_path / "state of ours")
    with pytest.raises(StoreDamagedError, match="is in the broker's store"):
        opened_log(store.root, store.root / "state")
    with pytest.raises(StoreDamagedError, match="is no store of a RocketMQ broker"):
        opened_log(tmp_path, tmp_path / "state")
    (dledger := RealStore(tmp_path / "dledger")).write(0, b"something else")
    with pytest.raises(StoreDamagedError, match="does not begin with a record"):
        opened_log(dledger.root, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_state_that_is_another_brokers_or_damaged_is_refused(store: RealStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    opened_log(store.root, state).close()
    with pytest.raises(StoreDamagedError, match="was served as broker 'broker-a', not 'broker-b'"):
        opened_log(store.root, state, "broker-b")
    for text in ("{", json.dumps({**json.loads((state / STATE_FILE).read_text()), "log_id": "other"})):
        (state / STATE_FILE).write_text(text)
        with pytest.raises(StoreDamagedError, match="cannot be read"):
            opened_log(store.root, state)
    opened_log(store.root, tmp_path / "new").close()  # the lock of the refused ones is free


def test_another_log_in_the_stores_place_is_not_served(store: RealStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = opened_log(store.root, state)
    settled(log, store.end)
    log.close()
    other = RealStore(tmp_path / "other")
    other.messages(100)
    with pytest.raises(StoreDamagedError, match="not the log any more that was served"):
        opened_log(other.root, state)
