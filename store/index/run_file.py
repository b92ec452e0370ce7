"""Files of the queue index: their layout, and reading them.

A file is named by the first physical offset of its run (`store/index/live_run.py`) in 20 digits and holds, little-endian:

| section | per | columns |
|---|---|---|
| header | file | magic, version, log id, start, end, records, entries, queues, bytes of names, CRC-32 of the checks, CRC-32 of header, directory and names |
| directory | queue, by (hash, queue id) | hash of topic and queue id, topic (where in the names, length), queue id, first queue offset, first entry, entries, next queue offset |
| names | topic | UTF-8 |
| starts | record | physical offset - start (u4) |
| offsets, sizes, codes | entry, by queue | physical offset - start (u4), size (i4; 0: cannot be read), tags code (i8) |
| checks | page of 64 KiB of starts to codes | CRC-32 (u4) |

Files of version 2, of earlier releases, are read too: they have no checks, and their header a CRC-32 of the columns.

The directory names every queue the log knew, also those without an entry in the run, with the offset that their
next record gets: the newest file alone restores those. Nothing is told that was not checked: what a look-up needs is
read as pages, each is checked, and what is told is of the copy in memory. Neither a start nor a look-up reads all.
"""

from __future__ import annotations

import bisect
import hashlib
import struct
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.index.checked_pages import OPEN, PAGES, OpenFile

Longs = NDArray[np.int64]
Key = tuple[str, int]
"""Topic and queue id."""
MAGIC = b"LKINDEX1"
VERSION = 3
WITHOUT_CHECKS = 2
HEADER = struct.Struct("<8sI4x32sqqqqqqII")
DIRECTORY = np.dtype(
    [
        ("hash", "<u8"),
        ("name_start", "<u4"),
        ("name_length", "<u2"),
        ("pad", "<u2"),
        ("queue_id", "<i4"),
        ("entries", "<u4"),
        ("base", "<i8"),
        ("first", "<i8"),
        ("next", "<i8"),
    ]
)
ROW = struct.Struct("<QIH2xiIqqq")
"""A row of the directory."""
HASH = struct.Struct("<Q")
PAGE_BYTES = 1 << 16
"""Of the columns, that are checked together."""
PAGE_ROWS = 64
FRONT_BYTES = PAGE_ROWS * ROW.size
"""Of the directory and the names, that are checked together."""
PIECE_BYTES = 256 * FRONT_BYTES
HOLE = 0xFFFFFFFF


@lru_cache(maxsize=1 << 14)
def key_hash(key: Key) -> int:
    """64 bits of topic and queue id, the same in every process."""
    topic, queue_id = key
    digest = hashlib.blake2b(topic.encode() + queue_id.to_bytes(4, "little", signed=True), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def columns_of(at: int, records: int, entries: int) -> list[tuple[str, int, int]]:
    """Type, place and length of starts, offsets, sizes, codes."""
    found = []
    for kind, count in (("<u4", records), ("<u4", entries), ("<i4", entries), ("<i8", entries)):
        at += -at % 8
        found.append((kind, at, count))
        at += count * np.dtype(kind).itemsize
    return found


def checks_of(columns: memoryview) -> bytes:
    """CRC-32 of each page of the columns."""
    pages = (columns[at : at + PAGE_BYTES] for at in range(0, len(columns), PAGE_BYTES))
    return b"".join(zlib_ng.crc32(page).to_bytes(4, "little") for page in pages)


class Row(NamedTuple):
    """What the directory says of a queue: see the module."""

    base: int
    entries: int
    first: int
    following: int


class Directory(NamedTuple):
    """A copy of all rows of a file's directory, and of the names."""

    rows: NDArray[np.void]
    names: bytes

    def keys(self, some: NDArray[Any] | None = None) -> Iterator[Key]:
        """Of some rows or all."""
        rows = self.rows if some is None else self.rows[some]
        topics: dict[int, str] = {}
        for start, length, queue_id in zip(
            rows["name_start"].tolist(), rows["name_length"].tolist(), rows["queue_id"].tolist(), strict=True
        ):
            topic = topics.get(start)
            if topic is None:
                topic = topics[start] = self.names[start : start + length].decode("utf-8", "replace")
            yield topic, queue_id


class IndexFile:
    """A run's file as it was written. In memory are the bounds of the run and a CRC of each page of 3 KiB of the
    directory with its first hash; everything else is read, and checked, when it is wanted.

    Raises StoreDamagedError, when made and by each look, FileNotFoundError, OSError.
    """

    __slots__ = (
        "_check",
        "_checks",
        "_checks_check",
        "_columns_at",
        "_front_checks",
        "_hashes",
        "_seed",
        "counts",
        "end",
        "last",
        "log_id",
        "names_bytes",
        "path",
        "places",
        "start",
        "version",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        file = OpenFile(path)
        head, size = file.read(0, HEADER.size), file.size()
        if len(head) < HEADER.size:
            raise StoreDamagedError(f"{path} has {size} bytes and is no index of the log")
        magic, self.version, log_id, *numbers, names, self._checks_check, self._check = HEADER.unpack(head)
        if magic != MAGIC or self.version not in (VERSION, WITHOUT_CHECKS):
            raise StoreDamagedError(f"{path} is no index of the log of version {VERSION}")
        self.start, self.end, *counts = map(int, numbers)
        self.log_id = log_id.decode("ascii", "replace")
        self.counts: tuple[int, int, int] = (counts[0], counts[1], counts[2])
        self.names_bytes = int(names)
        self._checks: array[int] | None = None
        if min(names, *counts) < 0:
            raise StoreDamagedError(f"{path} is shorter than its header says")
        front = int(DIRECTORY.itemsize * counts[2] + names)
        self._columns_at = HEADER.size + front + -(HEADER.size + front) % 8
        columns = columns_of(self._columns_at, counts[0], counts[1])
        self.places: tuple[int, ...] = tuple(at - self._columns_at for _, at, _ in columns)
        """Where starts, offsets, sizes and codes begin in the columns."""
        if self._end_of_columns() + (4 * self._pages() if self.version != WITHOUT_CHECKS else 0) > size:
            raise StoreDamagedError(f"{path} is shorter than its header says")
        self._seed = zlib_ng.crc32(head[:-4])
        self._read_front(file, front)
        self.last: int | None = None
        """The last record, unchecked."""
        if counts[0]:
            last = file.read(self._columns_at + 4 * (counts[0] - 1), 4)
            self.last = int.from_bytes(last, "little") + self.start

    def row(self, key: Key) -> Row | None:
        """The directory's row of a queue."""
        wanted, hashes = key_hash(key), self._hashes
        page = max(bisect.bisect_left(hashes, wanted) - 1, 0)
        while page < len(hashes) and hashes[page] <= wanted:
            data = self._page(HEADER.size, FRONT_BYTES, page)
            count = min(PAGE_ROWS, self.counts[2] - page * PAGE_ROWS)
            for at in range(
                bisect.bisect_left(
                    range(count), wanted, key=lambda row: HASH.unpack_from(data, row * ROW.size)[0]
                ),
                count,
            ):
                found = ROW.unpack_from(data, at * ROW.size)
                hashed, name, length, queue_id, entries, base, first, following = found
                if hashed > wanted:
                    return None
                if queue_id == key[1] and self._name(name, length) == key[0].encode():
                    return Row(base, entries, first, following)
            page += 1
        return None

    def directory(self) -> Directory:
        """All of it."""
        size = DIRECTORY.itemsize * self.counts[2]
        data = OPEN.of(self, self.path).read(HEADER.size, size + self.names_bytes)
        if zlib_ng.crc32(data, self._seed) != self._check:
            raise self._damaged()
        return Directory(np.frombuffer(data, dtype=DIRECTORY, count=self.counts[2]), data[size:])

    def columns(self, begin: int, end: int) -> bytes | memoryview:
        """The bytes [begin, end) of the columns."""
        return self._range(self._columns_at, PAGE_BYTES, begin, end)

    def check(self) -> None:
        """Looks at all of the columns."""
        OPEN.of(self, self.path).expect(self._columns_at, self._end_of_columns() - self._columns_at)
        for page in range(self._pages()):
            self._read_page(self._columns_at, PAGE_BYTES, page)

    def _name(self, start: int, length: int) -> bytes | memoryview:
        begin = DIRECTORY.itemsize * self.counts[2] + start
        return self._range(HEADER.size, FRONT_BYTES, begin, begin + length)

    def _range(self, region: int, page_bytes: int, begin: int, end: int) -> bytes | memoryview:
        """Bytes of the front or of the columns, which begin at `region`; checked."""
        if begin >= end:
            return b""
        first, last = begin // page_bytes, (end - 1) // page_bytes
        skipped = first * page_bytes
        if first == last:
            return memoryview(self._page(region, page_bytes, first))[begin - skipped : end - skipped]
        if last - first > _FEW_PAGES:
            OPEN.of(self, self.path).expect(region + begin, end - begin)
            pages = [self._read_page(region, page_bytes, page) for page in range(first, last + 1)]
        else:
            pages = [self._page(region, page_bytes, page) for page in range(first, last + 1)]
        return memoryview(b"".join(pages))[begin - skipped : end - skipped]

    def _page(self, region: int, page_bytes: int, page: int) -> bytes:
        """A checked page, kept for later looks."""
        key = (self, region + page * page_bytes)
        data = PAGES.get(key)
        if data is None:
            data = self._read_page(region, page_bytes, page)
            PAGES.put(key, data)
        return data

    def _read_page(self, region: int, page_bytes: int, page: int) -> bytes:
        checks = self._front_checks
        end = HEADER.size + DIRECTORY.itemsize * self.counts[2] + self.names_bytes
        if page_bytes == PAGE_BYTES:
            checks, end = self._column_checks(), self._end_of_columns()
        at = region + page * page_bytes
        size = min(page_bytes, end - at)
        data = OPEN.of(self, self.path).read(at, size)
        if len(data) < size or zlib_ng.crc32(data) != checks[page]:
            raise self._damaged()
        return data

    def _read_front(self, file: OpenFile, size: int) -> None:
        """Checks directory and names, and keeps what later looks are checked by."""
        self._hashes, self._front_checks = array("Q"), array("I")
        seen, rows_end = self._seed, DIRECTORY.itemsize * self.counts[2]
        for begin in range(0, size, PIECE_BYTES):
            piece = file.read(HEADER.size + begin, min(PIECE_BYTES, size - begin))
            seen = zlib_ng.crc32(piece, seen)
            for at in range(0, len(piece), FRONT_BYTES):
                self._front_checks.append(zlib_ng.crc32(piece[at : at + FRONT_BYTES]))
                if begin + at < rows_end and len(piece) >= at + HASH.size:
                    self._hashes.append(HASH.unpack_from(piece, at)[0])
        if seen != self._check:
            raise StoreDamagedError(f"the header or directory of {self.path} is damaged")

    def _column_checks(self) -> array[int]:
        """CRC-32 of each page of the columns; those of version 2 are made when they are first wanted."""
        checks = self._checks
        if checks is not None:
            return checks
        file, begin, end = OPEN.of(self, self.path), self._columns_at, self._end_of_columns()
        checks = array("I")
        if self.version != WITHOUT_CHECKS:
            data = file.read(end, 4 * self._pages())
            if zlib_ng.crc32(data) != self._checks_check or len(data) < 4 * self._pages():
                raise self._damaged()
            checks.frombytes(data)
        else:
            seen = 0
            file.expect(begin, end - begin)
            for at in range(begin, end, PAGE_BYTES):
                page = file.read(at, min(PAGE_BYTES, end - at))
                seen = zlib_ng.crc32(page, seen)
                checks.append(zlib_ng.crc32(page))
            if seen != self._checks_check:
                raise self._damaged()
        self._checks = checks
        return checks

    def _damaged(self) -> StoreDamagedError:
        return StoreDamagedError(f"{self.path} is damaged")

    def _pages(self) -> int:
        """Of the columns."""
        return -(-(self._end_of_columns() - self._columns_at) // PAGE_BYTES)

    def _end_of_columns(self) -> int:
        return self._columns_at + self.places[3] + 8 * self.counts[1]


_FEW_PAGES = 16
"""More than these are read without being kept."""


def list_runs(folder: Path) -> list[Path]:
    """Files of runs, ascending by start."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if len(path.name) == 20 and path.name.isdigit())
