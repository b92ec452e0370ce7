"""A run as a file: read where it is mapped, mended when it is damaged."""

from __future__ import annotations

import bisect
import functools
import logging
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np

from store.errors import StoreDamagedError, StoreError
from store.index.checked_pages import OPEN
from store.index.live_run import Entries, LiveRun, QueueRows
from store.index.run_file import (
    HOLE,
    PAGE_BYTES,
    Directory,
    IndexFile,
    Key,
    Longs,
)
from store.log.segment import sync_folder

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_MENDING = threading.RLock()
_MOST_REMADE = 3
"""Times that a file is made anew before its disk is given up."""


def mended(look: Callable[Concatenate[FileRun, P], T]) -> Callable[Concatenate[FileRun, P], T]:
    """A look at a run's file that is repeated on a new one when it finds damage."""

    @functools.wraps(look)
    def call(run: FileRun, /, *args: P.args, **kwargs: P.kwargs) -> T:
        file = run.file
        try:
            return look(run, *args, **kwargs)
        except FileNotFoundError:
            if run.deleted:
                raise
            run.mend(file, f"{run.path} is gone")
        except StoreDamagedError as error:
            run.mend(file, str(error))
        return look(run, *args, **kwargs)

    return call


class FileRun:
    """A run in a file: see `store/index/run_file.py` for what of it is in memory.

    What is damaged is made anew by `remake`, where there is one, before the look goes on; else the file is removed.
    Raises StoreDamagedError; FileNotFoundError once it was deleted.
    """

    __slots__ = ("_remade", "deleted", "end", "file", "last", "log_id", "path", "remake", "start")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deleted = False
        self.file = IndexFile(path)
        self.start, self.end, self.log_id = int(self.file.start), int(self.file.end), self.file.log_id
        self.last = self.file.last
        """The last record, unchecked."""
        self.remake: Callable[[FileRun], None] | None = None
        """Writes the file anew from the log. Raises StoreError, OSError."""
        self._remade = 0

    def __len__(self) -> int:
        return self.file.counts[0]

    def check(self) -> None:
        """Raises StoreDamagedError when the columns are damaged."""
        self.file.check()

    def mend(self, file: IndexFile, reason: str) -> None:
        """Makes the file anew, unless another thread did, after a look at `file` found it damaged.

        Raises StoreDamagedError when it cannot; it is removed then, so that the next start makes it anew.
        """
        with _MENDING:
            if self.file is not file:
                return
            if self.deleted:
                raise FileNotFoundError(self.path)
            error = StoreDamagedError(f"{reason}; restart the broker: it is made anew from the log")
            if self.remake is None or self._remade >= _MOST_REMADE:
                if self._remade == _MOST_REMADE:
                    log.error("%s; mend its disk: it was made anew %d times", error, self._remade)
                    self._remade += 1
                self._give_up(error)
            self._remade += 1
            try:
                self.remake(self)
                self.file = IndexFile(self.path)
            except (StoreError, OSError, ValueError) as failed:  # ValueError: the segment was closed
                if self.deleted:
                    raise FileNotFoundError(self.path) from failed
                log.error("%s: now it cannot be (%s)", error, failed)
                self._remade = _MOST_REMADE + 1
                self._give_up(error)
            OPEN.forget(file)
        log.warning("%s: it was made anew from the log", reason)

    def _give_up(self, error: StoreDamagedError) -> NoReturn:
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        raise error

    @mended
    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        if self.deleted:
            return None
        row = self.file.row(key)
        return (row.base, row.entries) if row is not None and row.entries else None

    @mended
    def following(self, key: Key) -> int:
        """The offset that the queue's next record got when the run ended; 0 for one that was not known."""
        if self.deleted:  # by another thread than the one that looks: as if it were older than the log
            return 0
        row = self.file.row(key)
        return row.following if row is not None else 0

    @mended
    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        file = self.file
        if self.deleted:
            raise FileNotFoundError(self.path)
        row = file.row(key)
        if row is None:
            raise KeyError(key)
        low, high = row.first + low, row.first + min(high, row.entries)
        _, offsets_at, sizes_at, codes_at = file.places
        sizes = np.frombuffer(file.columns(sizes_at + 4 * low, sizes_at + 4 * high), "<i4").astype(np.int32)
        offsets = np.frombuffer(file.columns(offsets_at + 4 * low, offsets_at + 4 * high), "<u4").astype(
            np.int64
        )
        offsets += self.start
        offsets[sizes == 0] = 0
        codes = np.frombuffer(file.columns(codes_at + 8 * low, codes_at + 8 * high), "<i8")
        return Entries(offsets, sizes, codes.astype(np.int64))

    @mended
    def directory(self) -> Directory:
        """A copy of the directory and the names."""
        return self.file.directory()

    def next_offsets(self) -> Iterator[tuple[Key, int]]:
        """For every queue known when the run ended: the offset that its next record gets."""
        directory = self.directory()
        return zip(directory.keys(), directory.rows["next"].tolist(), strict=True)

    def bases(self) -> Iterator[tuple[Key, int]]:
        """For every queue with entries here: the first one's offset."""
        directory = self.directory()
        held = np.flatnonzero(directory.rows["entries"])
        return zip(directory.keys(held), directory.rows["base"][held].tolist(), strict=True)

    def changes_since(self, before: FileRun) -> tuple[list[tuple[Key, int]], dict[Key, int]]:
        """Queues that began again, at an offset below where the run before left them; the next offsets it alone knew."""
        directory, old = self.directory(), before.directory()
        rows, hashes, known = directory.rows, directory.rows["hash"], np.ascontiguousarray(old.rows["hash"])
        gone = np.flatnonzero(~np.isin(known, hashes))
        forgotten = dict(zip(old.keys(gone), old.rows["next"][gone].tolist(), strict=True))
        held = np.flatnonzero(rows["entries"])
        if not len(known) or not len(held):
            return [], forgotten
        there = np.minimum(np.searchsorted(known, hashes[held]), len(known) - 1)
        lower = rows["base"][held] < old.rows["next"][there]
        again = held[lower & (known[there] == hashes[held])]
        return list(zip(directory.keys(again), rows["base"][again].tolist(), strict=True)), forgotten

    @mended
    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        starts: Longs = np.frombuffer(self.file.columns(0, 4 * len(self)), "<u4").astype(np.int64)
        return starts + self.start

    @mended
    def count_from(self, offset: int) -> int:
        """How many records start at or behind `offset`."""
        return len(self) - self._behind(offset - 1)

    @mended
    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        position = self._behind(offset)
        return self._start_at(position - 1) + self.start if position else None

    @mended
    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        position = self._behind(offset)
        return self._start_at(position) + self.start if position < len(self) else None

    @mended
    def live(self) -> LiveRun:
        """The run in memory again, to go on growing."""
        run, file = LiveRun(self.start), self.file
        directory, entries = file.directory(), file.counts[1]
        _, offsets_at, sizes_at, codes_at = file.places
        offsets = (
            np.frombuffer(file.columns(offsets_at, offsets_at + 4 * entries), "<u4").astype(np.int64)
            + self.start
        )
        sizes_there = np.frombuffer(file.columns(sizes_at, sizes_at + 4 * entries), "<i4")
        codes_there = np.frombuffer(file.columns(codes_at, codes_at + 8 * entries), "<i8")
        starts = self.starts()
        rows = np.searchsorted(starts, offsets)
        sizes = np.zeros(len(starts), dtype=np.int64)
        codes = np.zeros(len(starts), dtype=np.int64)
        whole = sizes_there > 0
        sizes[rows[whole]], codes[rows[whole]] = sizes_there[whole], codes_there[whole]
        if len(starts):
            run.extend(starts, sizes, codes)
        rows = np.where(whole, rows, HOLE).astype(np.uint32)
        for key, first, count, base in zip(
            directory.keys(),
            directory.rows["first"].tolist(),
            directory.rows["entries"].tolist(),
            directory.rows["base"].tolist(),
            strict=True,
        ):
            if count:
                queue = run.queues[key] = QueueRows(base, 0)
                queue.rows = array("I", rows[first : first + count].tobytes())
        run.end = self.end
        return run

    def delete(self) -> None:
        """Removes the file; who still looks finds nothing in it."""
        self.deleted = True
        OPEN.forget(self.file)
        self.path.unlink(missing_ok=True)

    def _start_at(self, record: int) -> int:
        """Where a record starts, from the run's start on."""
        return int.from_bytes(self.file.columns(4 * record, 4 * record + 4), "little")

    def _behind(self, offset: int) -> int:
        """How many records start at or before `offset`; looks into few pages."""
        relative = min(offset - self.start, 0xFFFFFFFF)
        firsts = range(0, len(self), PAGE_BYTES // 4)
        page = bisect.bisect_right(firsts, relative, key=self._start_at) - 1
        if page < 0:
            return 0
        first = firsts[page]
        some = self.file.columns(4 * first, 4 * min(first + PAGE_BYTES // 4, len(self)))
        return first + int(np.searchsorted(np.frombuffer(some, "<u4"), np.uint32(relative), side="right"))


Run = LiveRun | FileRun
