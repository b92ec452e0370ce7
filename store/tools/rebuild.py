"""Writing RocketMQ's `consumequeue/` and `index/` from a log, so that a real broker need not dispatch it again.

New folders are made beside the old ones and take their place when they are complete; then the checkpoint says that
they are. Formats: ConsumeQueue units of 20 bytes (physical offset 8, size 4, tags code 8) in files of
`units_per_file`; index files of a 40-byte header, 4-byte slots and 20-byte entries (hash 4, physical offset 8,
seconds since the first entry 4, entry before it in the slot 4).

A record may stand in further queues: `INNER_MULTI_DISPATCH` names them, divided by commas, and
`INNER_MULTI_QUEUE_OFFSET`, which a broker with `enableLmq` adds, has the offset in each. Whether they are written is up
to that broker's `enableMultiDispatch` and `enableLmq` (`MultiDispatchUtils`, `ConsumeQueue`): the log does not say.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.log.checkpoint import Checkpoint
from store.log.permissions import file_mode, open_new
from store.log.record import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    SYS_ROLLBACK,
    SYS_TRANSACTION_MASK,
)
from store.log.segment import make_folder, sync_folder
from store.log_source import LogSource
from store.scan import Longs, Scan, by_queue, find_properties, scan, split_words, topic_codes
from store.tools.verify import Problem, damage

CHUNK_BYTES = 64 << 20
UNITS_PER_FILE = 300_000
SLOTS, ENTRIES = 5_000_000, 20_000_000
"""maxHashSlotNum and maxIndexNum of RocketMQ."""
_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_HEADER = struct.Struct(">qqqqii")
LMQ_PREFIX = "%LMQ%"
_NO_MULTI_DISPATCH = ("%RETRY%", "rmq_sys_", "SCHEDULE_TOPIC_XXXX")
"""How topics begin whose records stand in their own queue only."""
_MOST_OFFSET = (1 << 63) // 20 - 1
"""Beyond it the position in the file is no 64-bit number."""
_OFFSET = re.compile(r"[0-9]{1,19}")
_BLANK = np.array([(0, 0x7FFFFFFF, 0)], dtype=_UNIT)
"""What the original puts where a queue has no message any more."""


@dataclass(slots=True)
class Rebuilt:
    """What was written; `last_ms` is the store time of the newest record.

    `multi_dispatch` records name further queues; `further_units` of `units` are theirs. `bad` was passed over.
    """

    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    last_ms: int = 0
    multi_dispatch: int = 0
    further_units: int = 0
    bad: list[Problem] = field(default_factory=list)


def rebuild(
    log: LogSource,
    root: Path,
    *,
    units_per_file: int = UNITS_PER_FILE,
    slots: int = SLOTS,
    entries: int = ENTRIES,
    enable_multi_dispatch: bool = False,
    enable_lmq: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Rebuilt:
    """Writes both folders from the whole log; nobody else may have the store. `progress(done, total)` in bytes.

    The two `enable_` options are those of the broker that will have the files.
    Raises OSError; then the old folders are as they were.
    """
    result = Rebuilt()
    state = log.describe()
    start, end = state.start, state.end
    queues = _Queues(
        _fresh(root / "consumequeue.new"), units_per_file, _MultiDispatch(enable_multi_dispatch, enable_lmq)
    )
    index = _Index(_fresh(root / "index.new"), slots, entries)
    for begin, data in log.read(state.log_id, start, end, CHUNK_BYTES):
        found = scan(data, begin, segment_size=state.segment_size)
        result.bad += damage(found)
        if len(found):
            queues.add(found)
            index.add(found)
            result.last_ms = max(result.last_ms, int(found.store_timestamp.max()))
        progress(begin + len(data) - start, end - start)
    index.close()
    result.queues, result.units = queues.count(), queues.units
    result.multi_dispatch, result.further_units = queues.multi.records, queues.further_units
    result.index_files, result.index_entries = index.files, index.entries
    for name in ("consumequeue", "index"):
        _take_place(root / f"{name}.new", root / name)
    checkpoint = Checkpoint(root)
    checkpoint.flushed(result.last_ms, end)
    checkpoint.rebuilt(result.last_ms)
    checkpoint.close()
    return result


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    return folder


def _take_place(new: Path, old: Path) -> None:
    """Puts a folder in another's place; a crash between leaves `.old`, which the next rebuild removes."""
    aside = old.with_suffix(".old")
    shutil.rmtree(aside, ignore_errors=True)
    if old.exists():
        old.rename(aside)
    new.rename(old)
    sync_folder(old.parent)
    shutil.rmtree(aside, ignore_errors=True)


class _Queues:
    """Files of queues, written as the log is read."""

    def __init__(self, folder: Path, units_per_file: int, multi: _MultiDispatch) -> None:
        self._folder = folder
        self.multi = multi
        self.further_units = 0
        self._file_units = units_per_file
        self._next: dict[tuple[str, int], int] = {}
        self.units = 0

    def count(self) -> int:
        return len(self._next)

    def add(self, found: Scan) -> None:
        rows, queues = by_queue(found)
        units = np.empty(len(rows), dtype=_UNIT)
        units["offset"], units["size"] = found.physical_offset[rows], found.size[rows]
        units["tags"] = found.tags_code[rows]
        positions = found.queue_offset[rows]
        for key, begin, end in queues:
            self._append(key, positions[begin:end], units[begin:end])
        before = self.units
        for key, some, offsets in self.multi.queues(found, rows):
            self._append(key, offsets, units[some], further=True)
        self.further_units += self.units - before

    def _append(
        self, key: tuple[str, int], positions: Longs, units: NDArray[Any], *, further: bool = False
    ) -> None:
        """Consecutive pieces of a queue's records; what is missing between them becomes blank.

        An offset that has a unit already begins the queue anew, in a `further` one it is passed over.
        """
        ends = np.flatnonzero(np.diff(positions) != 1) + 1
        for begin, end in zip([0, *ends.tolist()], [*ends.tolist(), len(positions)], strict=True):
            first = int(positions[begin])
            following = self._next.get(key)
            if further and following is not None and first < following:
                begin += following - first
                first = following
                if begin >= end:
                    continue
            if following is not None and first < following:  # the topic was made again
                shutil.rmtree(self._folder / key[0] / str(key[1]), ignore_errors=True)
                following = None
            if following is None:
                following = first - first % self._file_units
            if first > following:
                self._write(key, following, np.repeat(_BLANK, first - following))
            self._write(key, first, units[begin:end])
            self._next[key] = first + end - begin
            self.units += end - begin

    def _write(self, key: tuple[str, int], first: int, units: NDArray[Any]) -> None:
        folder = self._folder / key[0] / str(key[1])
        make_folder(folder)
        while len(units):
            inside = first % self._file_units
            some = units[: self._file_units - inside]
            path = folder / f"{(first - inside) * _UNIT.itemsize:020d}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT, file_mode())
            try:
                if os.fstat(fd).st_size == 0:
                    os.ftruncate(fd, self._file_units * _UNIT.itemsize)
                os.pwrite(fd, some.tobytes(), inside * _UNIT.itemsize)
            finally:
                os.close(fd)
            first, units = first + len(some), units[len(some) :]


class _MultiDispatch:
    """Which records stand in further queues, and where."""

    def __init__(self, enabled: bool, lmq: bool) -> None:
        self._enabled = enabled
        self._lmq = lmq
        self.records = 0

    def queues(self, found: Scan, rows: Longs) -> Iterator[tuple[tuple[str, int], Longs, Longs]]:
        """Every further queue of the records `rows`: which of these, in log order, and their offsets in it."""
        names = find_properties(
            found,
            [PROPERTY_INNER_MULTI_DISPATCH.encode(), PROPERTY_INNER_MULTI_QUEUE_OFFSET.encode()],
        )
        listed = np.flatnonzero((names[0][0][rows] >= 0) & (names[1][0][rows] >= 0))
        if not len(listed):
            return
        codes, topics = topic_codes(found)
        places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for number in listed[np.argsort(rows[listed], kind="stable")].tolist():
            row = int(rows[number])
            if topics[codes[row]].startswith(_NO_MULTI_DISPATCH):
                continue
            texts = [
                bytes(found.buffer[start[row] : start[row] + length[row]]).decode("utf-8", "replace")
                for start, length in names
            ]
            wanted = further_queues(texts[0], texts[1], int(found.queue_id[row]), self._lmq)
            self.records += bool(wanted)
            if self._enabled:
                for key, offset in wanted:
                    places.setdefault(key, []).append((number, offset))
        for key, some in places.items():
            columns = np.array(some, dtype=np.int64)
            yield key, columns[:, 0], columns[:, 1]


def further_queues(names: str, offsets: str, queue_id: int, lmq: bool) -> list[tuple[tuple[str, int], int]]:
    """The further queues of a record in its own queue `queue_id`, and its offset in each.

    As in the original, names and offsets must be of one number. A name with a `/` is left out, and with it what
    is no name of a folder or has no offset.
    """
    queues, positions = _split(names), _split(offsets)
    if len(queues) != len(positions):
        return []
    found = []
    for name, position in zip(queues, positions, strict=True):
        if "/" in name or "\0" in name or name.strip() in ("", ".", "..") or not _OFFSET.fullmatch(position):
            continue
        if (offset := int(position)) <= _MOST_OFFSET:
            found.append(((name, 0 if lmq and name.startswith(LMQ_PREFIX) else queue_id), offset))
    return found


def _split(text: str) -> list[str]:
    """The parts between commas without the empty ones at the end, which is how Java's `split` has them."""
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


class _Index:
    """Index files, one behind the other."""

    def __init__(self, folder: Path, slots: int, entries: int) -> None:
        self._folder = folder
        self._slots = slots
        self._most = entries
        self._map: mmap.mmap | None = None
        self._table: NDArray[Any] = np.empty(0)
        self._rows: NDArray[Any] = np.empty(0)
        self._count = 1
        self._bounds = [0, 0, 0, 0]
        self.files = 0
        self.entries = 0

    def add(self, found: Scan) -> None:
        rows, hashes = _keys(found)
        self.entries += len(rows)
        while len(rows):
            if self._map is None or self._count >= self._most:
                self._begin(int(found.store_timestamp[rows[0]]))
            room = self._most - self._count
            self._put(hashes[:room], found.physical_offset[rows[:room]], found.store_timestamp[rows[:room]])
            rows, hashes = rows[room:], hashes[room:]

    def close(self) -> None:
        """Writes the last file's header."""
        if self._map is None:
            return
        used = int(np.count_nonzero(self._table))
        _HEADER.pack_into(self._map, 0, *self._bounds, used, self._count)
        self._table, self._rows = np.empty(0), np.empty(0)
        self._map.flush()
        self._map.close()
        self._map = None

    def _begin(self, first_ms: int) -> None:
        self.close()
        name = datetime.fromtimestamp(first_ms / 1000, UTC).astimezone().strftime("%Y%m%d%H%M%S")
        number = first_ms % 1000
        while (path := self._folder / f"{name}{number:03d}").exists():
            number += 1
        size = _HEADER.size + 4 * self._slots + _ENTRY.itemsize * self._most
        with open_new(path, "w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._table = np.frombuffer(self._map, dtype=">i4", count=self._slots, offset=_HEADER.size)
        self._rows = np.frombuffer(
            self._map, dtype=_ENTRY, count=self._most, offset=_HEADER.size + 4 * self._slots
        )
        self._count, self._bounds = 1, [0, 0, 0, 0]
        self.files += 1

    def _put(self, hashes: Longs, offsets: Longs, times: Longs) -> None:
        if self._count == 1:
            self._bounds[0], self._bounds[2] = int(times[0]), int(offsets[0])
        self._bounds[1], self._bounds[3] = int(times[-1]), int(offsets[-1])
        numbers = np.arange(self._count, self._count + len(hashes))
        slots = hashes % self._slots
        order = np.argsort(slots, kind="stable")
        sorted_slots, sorted_numbers = slots[order], numbers[order]
        fresh = np.concatenate(([True], sorted_slots[1:] != sorted_slots[:-1]))
        before = np.concatenate(([0], sorted_numbers[:-1]))
        before[fresh] = self._table[sorted_slots[fresh]]
        previous = np.empty(len(hashes), dtype=np.int64)
        previous[order] = before
        rows = self._rows[self._count : self._count + len(hashes)]
        rows["hash"], rows["offset"], rows["previous"] = hashes, offsets, previous
        rows["seconds"] = np.clip((times - self._bounds[0]) // 1000, 0, 0x7FFFFFFF)
        last = np.concatenate((fresh[1:], [True]))
        self._table[sorted_slots[last]] = sorted_numbers[last]
        self._count += len(hashes)


def _keys(found: Scan) -> tuple[Longs, Longs]:
    """Row and hash of every index entry, in log order: UNIQ_KEY, each of KEYS, and the tag as `T#tag`."""
    from store.kernels import walk  # compiled: loaded by who scans

    wanted = np.flatnonzero((found.sys_flag & SYS_TRANSACTION_MASK) != SYS_ROLLBACK)
    (unique, unique_length), (keys, keys_length), (tags, tags_length) = find_properties(
        found, [b"UNIQ_KEY", b"KEYS", b"TAGS"]
    )
    words, word_start, word_length = split_words(found.buffer, keys, keys_length)
    word_rows = np.repeat(np.arange(len(found)), np.diff(words))
    listed = np.zeros(len(found), dtype=bool)
    listed[wanted] = True
    parts = []
    for kind, rows, start, length, between in (
        (0, np.flatnonzero(unique >= 0), unique[unique >= 0], unique_length[unique >= 0], b"#"),
        (1, word_rows, word_start, word_length, b"#"),
        (2, np.flatnonzero(tags_length > 0), tags[tags_length > 0], tags_length[tags_length > 0], b"#T#"),
    ):
        hashes = walk.key_hashes(
            found.buffer,
            rows,
            np.ascontiguousarray(found.topic_start),
            np.ascontiguousarray(found.topic_length),
            np.ascontiguousarray(start),
            np.ascontiguousarray(length),
            np.frombuffer(between, dtype=np.uint8),
        )
        keep = listed[rows]
        parts.append((rows[keep], np.full(int(keep.sum()), kind), hashes[keep]))
    rows, kinds, hashes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((kinds, rows))
    return rows[order], hashes[order]
