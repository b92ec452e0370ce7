"""Files of the queue index: their layout, and the mapping of those that were looked at last.

A file is named by the first physical offset of its run (`store/index_run.py`) in 20 digits and holds, little-endian:

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
next record gets: the newest file alone restores those. A page of the columns is checked when it is first read, so
that neither a start nor a look-up reads them all.
"""

from __future__ import annotations

import bisect
import hashlib
import mmap
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from store.index_run import FileRun

Longs = NDArray[np.int64]
Key = tuple[str, int]
"""Topic and queue id."""
MOST_MAPPED = 64
"""Files of runs that are mapped, and open, at a time."""
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
PIECE_BYTES = 1 << 20
PAGE_BYTES = 1 << 16
"""Of the columns, that are checked together."""
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


class Mapped:
    """A run's file in memory. The mapping goes with the last array made of it."""

    __slots__ = (
        "_names_at",
        "_queues",
        "checks",
        "codes",
        "data",
        "directory",
        "offsets",
        "places",
        "sizes",
        "starts",
    )

    def __init__(
        self, path: Path, queues: int, columns_at: int, records: int, entries: int, pages: int
    ) -> None:
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.data.madvise(mmap.MADV_RANDOM)  # a page that is wanted is read, and nothing around it
        self._queues = queues
        self._names_at = HEADER.size + DIRECTORY.itemsize * queues
        self.directory = np.frombuffer(self.data, dtype=DIRECTORY, count=queues, offset=HEADER.size)
        columns = columns_of(columns_at, records, entries)
        self.starts, self.offsets, self.sizes, self.codes = (
            np.frombuffer(self.data, dtype=kind, count=count, offset=at) for kind, at, count in columns
        )
        self.places = tuple(at - columns_at for _, at, _ in columns)
        """Where starts, offsets, sizes and codes begin in the columns."""
        end = columns[-1][1] + 8 * entries
        self.checks = np.frombuffer(self.data, dtype="<u4", count=pages, offset=end)

    def expect(self, begin: int, end: int) -> None:
        """Has the bytes [begin, end) of the file read, in one go."""
        if begin < end:
            begin -= begin % mmap.PAGESIZE
            self.data.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def row(self, key: Key) -> Row | None:
        """The directory's row of a queue."""
        wanted, data = key_hash(key), self.data
        at = bisect.bisect_left(
            range(self._queues),
            wanted,
            key=lambda row: int(HASH.unpack_from(data, HEADER.size + row * ROW.size)[0]),
        )
        topic = key[0].encode()
        while at < self._queues:
            found = ROW.unpack_from(data, HEADER.size + at * ROW.size)
            hashed, name, length, queue_id, entries, base, first, following = found
            if hashed > wanted:
                return None
            if hashed == wanted and queue_id == key[1]:
                start = self._names_at + name
                if data[start : start + length] == topic:
                    return Row(base, entries, first, following)
            at += 1
        return None

    def keys(self, rows: NDArray[Any] | None = None) -> Iterator[Key]:
        """Of the directory's rows, of some or all."""
        directory = self.directory if rows is None else self.directory[rows]
        topics: dict[int, str] = {}
        for start, length, queue_id in zip(
            directory["name_start"].tolist(),
            directory["name_length"].tolist(),
            directory["queue_id"].tolist(),
            strict=True,
        ):
            topic = topics.get(start)
            if topic is None:
                at = self._names_at + start
                topic = topics[start] = self.data[at : at + length].decode("utf-8", "replace")
            yield topic, queue_id


class MappedRuns:
    """The files that were looked at last, on any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mapped: OrderedDict[int, tuple[FileRun, Mapped]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: FileRun) -> Mapped:
        """The file of a run. Raises FileNotFoundError once it was deleted."""
        with self._lock:
            known = self._mapped.get(id(run))
            if known is not None:
                self._mapped.move_to_end(id(run))
                return known[1]
        mapped = run.map()
        with self._lock:
            self._mapped[id(run)] = (run, mapped)
            if len(self._mapped) > self._most:
                self._mapped.popitem(last=False)
        return mapped

    def forget(self, run: FileRun) -> None:
        """Unmaps the file of a run that was deleted."""
        with self._lock:
            self._mapped.pop(id(run), None)


MAPPED = MappedRuns(MOST_MAPPED)


def list_runs(folder: Path) -> list[Path]:
    """Files of runs, ascending by start."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if len(path.name) == 20 and path.name.isdigit())
