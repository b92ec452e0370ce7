"""What stands in the log of a broker that is stopped."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from store.log.record import Record, decode_record
from store.log_reader import LogReader
from store.scan import scan


def records(store: Path) -> Iterator[Record]:
    """Every record, in order. Nothing in between is damaged."""
    reader = LogReader(store)
    for start, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 16 << 20):
        columns = scan(data, start)
        assert not columns.bad_reason
        for offset in columns.physical_offset.tolist():
            yield decode_record(data, offset - start, offset, verify=False)
    reader.close()


def bodies_of(store: Path, topic: str) -> Counter[bytes]:
    """How often each body stands in a topic."""
    return Counter(bytes(each.body) for each in records(store) if each.topic == topic)


def stored(store: Path) -> Counter[str]:
    """How often each message id stands in the log."""
    found = (each.properties_map().get("UNIQ_KEY") for each in records(store))
    return Counter(each for each in found if each is not None)


Unit = tuple[int, int, int]
"""Of a real broker's consume queue: offset in the log, bytes, hash of the tag."""


def units(root: Path, topic: str, queue_id: int) -> dict[int, Unit]:
    found: dict[int, Unit] = {}
    for path in (root / "consumequeue" / topic / str(queue_id)).iterdir():
        for number, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes())):
            if unit[1]:
                found[int(path.name) // 20 + number] = unit
    return found
