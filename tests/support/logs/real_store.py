"""A store as a real broker writes one: preallocated segments, records without a CRC property, blanks; no side files."""

from __future__ import annotations

from pathlib import Path

from lakebroker_testing.logs import HOST, blank, pending
from store.log.record import encode_record

SEGMENT = 1 << 16


class RealStore:
    """Writes record by record, as a broker does that a reader stands beside."""

    def __init__(self, root: Path, segment: int = SEGMENT) -> None:
        self.root, self.segment = root, segment
        self.end = 0
        self.count = 0
        self.places: list[tuple[int, int]] = []
        """Offset and bytes of each record."""
        (root / "commitlog").mkdir(parents=True)

    def path(self, offset: int) -> Path:
        return self.root / "commitlog" / f"{offset // self.segment * self.segment:020d}"

    def encode(self, body: bytes, stored_ms: int, topic: str = "orders") -> bytes:
        """The next record."""
        record = pending(topic, body, self.count % 4, UNIQ_KEY=f"ID{self.count:08d}", TAGS="a")
        return b"".join(encode_record(record, self.count, self.end, stored_ms, HOST.packed, append_crc=False))

    def append(self, body: bytes = b"body", stored_ms: int = 1_000_000, topic: str = "orders") -> int:
        """Returns the record's offset."""
        data = self.encode(body, stored_ms, topic)
        room = self.segment - self.end % self.segment
        if len(data) + 8 > room:
            self.write(self.end, blank(room)[:8])
            self.end += room
            data = self.encode(body, stored_ms, topic)
        offset = self.end
        self.write(offset, data)
        self.end += len(data)
        self.count += 1
        self.places.append((offset, len(data)))
        return offset

    def messages(self, count: int, stored_ms: int = 1_000_000) -> None:
        for _ in range(count):
            self.append(b"%d " % self.count * (self.count % 40 + 1), stored_ms, f"topic-{self.count % 3}")

    def write(self, offset: int, data: bytes) -> None:
        """Bytes in place; a segment is made whole when it is first written to."""
        path = self.path(offset)
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(self.segment)
        with path.open("r+b") as file:
            file.seek(offset % self.segment)
            file.write(data)

    def delete_oldest(self, segments: int) -> int:
        """As retention does; returns where the log begins then."""
        found = sorted((self.root / "commitlog").iterdir())
        for path in found[:segments]:
            path.unlink()
        return int(found[segments].name)
