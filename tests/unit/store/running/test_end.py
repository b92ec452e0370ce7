"""The end of a log that somebody else writes: what counts, what is waited for, what is passed over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lakebroker_testing.logs import blank
from store.errors import StoreDamagedError
from store.log.segment import list_segments
from store.running.end import File, LogEnd, Served
from store.scan import scan
from tests.support.logs.real_store import SEGMENT, RealStore

BOOT_MS = 500_000
BEFORE_MS, SINCE_MS = 400_000, 600_000


@pytest.fixture
def store(tmp_path: Path) -> RealStore:
    return RealStore(tmp_path / "store")


def files(store: RealStore) -> list[File]:
    return [
        File(start, path.stat().st_size, path)
        for start, path in list_segments(store.root / "commitlog")
        if path.stat().st_size
    ]


def end_of(
    store: RealStore, served: Served | None = None, settle_s: float = 0.0, patience_s: float = 0.0
) -> LogEnd:
    return LogEnd(lambda: files(store), served, BOOT_MS, settle_s, patience_s)


def went_to(end: LogEnd, looks: int = 10) -> int:
    """Where it stands when it does not go on any more."""
    for _ in range(looks):
        end.advance()
    while end.advance():
        pass
    return end.served.end


def test_an_empty_store_and_its_first_records(store: RealStore) -> None:
    end = end_of(store)
    assert went_to(end) == 0
    store.write(0, b"")  # a segment without a record
    assert went_to(end) == 0
    for _ in range(3):
        store.append(stored_ms=SINCE_MS)
        assert went_to(end) == store.end


def test_every_record_and_the_roll_are_followed(store: RealStore) -> None:
    end = end_of(store)
    for _ in range(40):
        store.messages(50, SINCE_MS)
        assert went_to(end) == store.end
    assert len(files(store)) > 5
    assert (end.served.last_offset, end.served.last_size) == store.places[-1]


def test_the_last_record_settles_before_it_counts(store: RealStore) -> None:
    store.messages(5, SINCE_MS)
    end = end_of(store, settle_s=3600)
    assert went_to(end) == store.places[-1][0]
    store.append(stored_ms=SINCE_MS)  # what stands before it is written to its end
    assert went_to(end) == store.places[-1][0]


@pytest.mark.parametrize("length", [4, 8, 20, 60, 95, -1])
def test_a_torn_record_is_waited_for(store: RealStore, length: int) -> None:
    store.messages(10, SINCE_MS)
    end, before = end_of(store, patience_s=3600), store.end
    data = store.encode(b"a body that takes a while" * 10, SINCE_MS)
    store.write(before, data[:length])
    assert went_to(end) == before
    store.write(before, data)
    assert went_to(end) == before + len(data)


def test_a_torn_record_with_nothing_behind_it_is_waited_for_without_end(store: RealStore) -> None:
    store.messages(10, SINCE_MS)
    end, before = end_of(store), store.end
    store.write(before, store.encode(b"torn" * 30, SINCE_MS)[:-9])
    assert went_to(end) == before


def test_damage_is_passed_over_once_the_broker_goes_on_behind_it(store: RealStore) -> None:
    store.messages(20, SINCE_MS)
    end, at = end_of(store), store.append(b"x" * 100, SINCE_MS)
    store.write(at + 4, b"????")
    assert went_to(end) == at
    following = store.append(stored_ms=SINCE_MS)
    assert went_to(end) == store.end
    patient = end_of(store, patience_s=3600)
    assert went_to(patient) == at
    found = scan(store.path(0).read_bytes()[: end.served.end], 0, segment_size=SEGMENT)
    assert list(zip(found.bad_offset.tolist(), found.bad_length.tolist(), strict=True)) == [
        (at, following - at)
    ]


def test_damage_up_to_the_end_of_a_segment_is_passed_over(store: RealStore) -> None:
    store.messages(20, SINCE_MS)
    end, at = end_of(store), store.end
    while store.end < SEGMENT:
        store.append(b"x" * 500, SINCE_MS)
    store.write(at, bytes(SEGMENT - at))  # as if nothing had been written there
    assert went_to(end) == store.end > SEGMENT


def test_what_a_power_cut_left_behind_the_end_is_no_part_of_the_log(store: RealStore) -> None:
    """A torn record, whole ones behind it: the broker cuts the log there and writes over them, one by one."""
    store.messages(10, BEFORE_MS)
    cut = store.end
    sizes = [store.append(b"old" * 10, BEFORE_MS) for _ in range(4)]
    store.write(cut + 4, b"????")
    end = end_of(store)
    assert went_to(end) == cut, "the broker has not started yet"
    store.end = cut
    for at in sizes:
        assert store.append(b"new" * 10, SINCE_MS) == at
        assert went_to(end) == store.end, "the next one is left over"
    store.append(stored_ms=SINCE_MS)
    assert went_to(end) == store.end


def test_a_blank_counts_once_the_log_goes_on_in_the_next_segment(store: RealStore) -> None:
    """Before that it may be left over from before a power cut, and be written over by a record that fits."""
    store.messages(10, SINCE_MS)
    end, at = end_of(store), store.end
    store.write(at, blank(SEGMENT - at)[:8])
    assert went_to(end) == at
    store.messages(10, SINCE_MS)
    assert went_to(end) == store.end < SEGMENT
    last = store.end
    store.write(last, blank(SEGMENT - last)[:8])
    assert went_to(end) == last
    store.end = SEGMENT
    store.write(SEGMENT, b"")  # made ahead
    assert went_to(end) == last
    store.append(stored_ms=SINCE_MS)
    assert went_to(end) == store.end > SEGMENT


def test_a_disk_that_lost_something_is_not_believed_later(
    store: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(store)
    store.messages(10, SINCE_MS)
    went_to(end)
    store.messages(10, SINCE_MS)
    before = end.served

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        with pytest.raises(StoreDamagedError, match="could not be synced"):
            went_to(end)
    with pytest.raises(StoreDamagedError, match="could not be synced"):
        went_to(end)
    assert end.served == before


def test_a_clock_that_was_set_back_hides_nothing(store: RealStore) -> None:
    end = end_of(store)
    for stored in (SINCE_MS + 90_000, SINCE_MS, SINCE_MS + 1):
        store.append(stored_ms=stored)
    assert went_to(end) == store.end


def test_the_oldest_segments_may_go_at_any_time(store: RealStore) -> None:
    store.messages(1000, SINCE_MS)
    end = end_of(store)
    went_to(end)
    begin = store.delete_oldest(2)
    assert begin
    store.messages(100, SINCE_MS)
    assert went_to(end) == store.end
    late = end_of(store, Served(end=10, last_offset=0, last_size=10, last_crc=1))  # below what is left
    assert went_to(late) == store.end


def test_it_goes_on_where_another_process_was(store: RealStore) -> None:
    store.messages(1000, SINCE_MS)
    first = end_of(store)
    went_to(first)
    again = end_of(store, first.served)
    assert again.served == first.served
    assert not again.advance()
    store.messages(10, SINCE_MS)
    assert went_to(again) == store.end


def test_a_log_that_was_cut_is_told(store: RealStore) -> None:
    store.messages(1000, SINCE_MS)
    end = end_of(store)
    went_to(end)
    (last, size) = store.places[-1]
    store.write(last, bytes(size))
    with pytest.raises(
        StoreDamagedError, match=f"served up to {store.end}: another record or none stands at {last}"
    ):
        end.advance()
    newest = files(store)[-1]
    newest.path.unlink()
    with pytest.raises(StoreDamagedError, match=f"it ends at {newest.start}"):
        end.advance()


def test_another_log_in_its_place_is_told(store: RealStore, tmp_path: Path) -> None:
    store.messages(300, SINCE_MS)
    end = end_of(store)
    went_to(end)
    other = RealStore(tmp_path / "other")
    other.messages(400, SINCE_MS + 5)
    with pytest.raises(StoreDamagedError, match="not the log any more"):
        end_of(other, end.served).advance()


def test_what_is_no_log_of_rocketmq_is_refused(store: RealStore) -> None:
    store.write(0, b"DLedger entries!")
    with pytest.raises(StoreDamagedError, match="does not begin with a record of RocketMQ"):
        end_of(store)
