"""Writers of logs: what they write is what a reader finds, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebroker_testing.logs import LogWriter, blank, encoded, pending, written
from store.log.record import decode_record
from store.log_reader import LogReader
from store.scan import scan


def found_in(folder: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Offsets of the good records and (offset, length) of the bad stretches, as a reader by path finds them."""
    reader, good, bad = LogReader(folder), [], []
    for offset, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 1 << 30):
        part = scan(data, offset)
        good += part.physical_offset.tolist()
        bad += list(zip(part.bad_offset.tolist(), part.bad_length.tolist(), strict=True))
    reader.close()
    return good, bad


def test_everything_is_good(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        writer.everything()
    good, bad = found_in(tmp_path)
    assert (len(good), bad) == (324, [])


def test_raw_bytes_and_damage_stand_between_good_records(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        first = writer.record("orders", b"one", TAGS="a")
        raw = writer.raw(b"no record".ljust(500, b"?"))
        second = writer.record("orders", b"two")
        damaged = writer.record("orders", b"three")
        writer.overwrite(damaged.physical_offset + 4, b"????")
        last = writer.record("orders", b"four")
        with pytest.raises(ValueError, match="less than a record"):
            writer.raw(b"short")
        with pytest.raises(ValueError, match="beyond the log"):
            writer.overwrite(last.physical_offset, bytes(1000))
    good, bad = found_in(tmp_path)
    assert good == [each.physical_offset for each in (first, second, last)]
    assert sum(length for _, length in bad) == raw.size + damaged.size


def test_bytes_of_a_log_without_a_store() -> None:
    records = [pending("t", b"one", TAGS="a"), pending("u", b"two", 3, born_ms=5)]
    data, starts = encoded(records, base=1 << 20)
    found = decode_record(data, starts[1], (1 << 20) + starts[1])
    assert (found.topic, found.queue_id, bytes(found.body), found.born_timestamp) == ("u", 3, b"two", 5)
    assert scan(data + blank(40), 1 << 20).physical_offset.tolist() == [(1 << 20) + each for each in starts]


def test_so_many_of_a_size(tmp_path: Path) -> None:
    good, bad = found_in(written(tmp_path, "b", 250, body=100))
    assert (len(good), bad) == (250, [])
