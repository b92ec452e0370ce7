"""The log of a real broker that goes on running, as a `LogSource`; calls may come from any thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from store.errors import OffsetOutOfRangeError, OtherLogError, StoreDamagedError
from store.index.queue_index import NO_LIMIT
from store.log.erased import NOTHING, Offsets
from store.log.recovery import COMMIT_LOG_FOLDER, IDENTITY_FILE
from store.log.segment import list_segments
from store.log_reader import LogReader
from store.log_source import CHUNK_BYTES, LogState
from store.running.end import SETTLE_S, File, LogEnd, check_segments, first_walked
from store.running.identity import SidecarState
from store.scan import as_bytes, scan, warm

_STEPS = 16
"""Of `LogEnd.advance`: a description that finds a longer way to go answers with what it has come to by then."""
_POLL_S = 0.05
_SAVE_S = 5.0
_LISTINGS = 5


class RunningLog:
    """The log of broker `broker` in its folder `root`, or in `folders`; `state` has its identity, outside of the store.

    Raises StoreError for what is no store of a real broker, or not the log any more that the state knows; OSError.
    """

    def __init__(
        self,
        root: Path,
        state: Path,
        broker: str,
        cluster: str,
        folders: Sequence[Path] = (),
        delay_levels: tuple[int, ...] | None = None,
        since_ms: int | None = None,
    ) -> None:
        self.address = str(root)
        self.cluster = cluster
        self._root, self._broker, self._delay_levels = root, broker, delay_levels
        self._folders = list(folders) or [root / COMMIT_LOG_FOLDER]
        _check_store(root, self._folders, state)
        first_walked(self._files())  # what is no log of a real broker gets no state
        self._state = SidecarState(state, broker)
        self._lock = threading.Lock()
        self._saved = time.monotonic()
        try:
            self._end = LogEnd(self._files, self._state.served, since_ms)
            self._look()
        except BaseException:
            self._state.close()
            raise
        warm()  # here, so that no later call takes the time

    @property
    def log_id(self) -> str:
        return self._state.log_id

    @property
    def is_new(self) -> bool:
        """Whether the log got its id now."""
        return self._state.is_new

    @property
    def max_offset(self) -> int:
        """The end for readers, as it was described last: nobody knows of more."""
        return self._end.served.end

    def request_flush(self) -> None:
        """Each description syncs what it tells of."""

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        until = time.monotonic() + wait_ms / 1000
        while (state := self._look()).end <= after and time.monotonic() < until:
            time.sleep(_POLL_S)
        return state

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        with self._reader(log_id, start, end) as reader:
            return reader.split(start, end, max_bytes, limit_bytes or NO_LIMIT)

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        with self._reader(log_id, start, end) as reader:
            for offset, data, _ in reader.read_chunks(start, end, chunk_bytes):
                yield offset, bytes(data)

    def erased(self, log_id: str) -> Offsets:
        """Nothing: a real broker erases no record. Raises OtherLogError."""
        self._check_log(log_id)
        return NOTHING

    def report(self, log_id: str, offset: int) -> None:
        """Nobody to tell: the broker's retention is its own. Raises OtherLogError."""
        self._check_log(log_id)

    def close(self) -> None:
        """Keeps how far it was served. Raises OSError."""
        with self._lock:
            try:
                self._state.save(self._end.served)
            finally:
                self._state.close()

    def _look(self) -> LogState:
        """The log as it is now, with a last record that stands there already."""
        with self._lock:
            self._advance()
            settles = self._end.settles
        if settles:
            time.sleep(SETTLE_S)
        with self._lock:
            if settles:
                self._advance()
            if time.monotonic() - self._saved >= _SAVE_S:
                self._state.save(self._end.served)
                self._saved = time.monotonic()
            files, end = self._files(), self._end.served.end
        start = min(files[0].start, end) if files else end
        size = files[0].size if files else None
        return LogState(self._broker, self.log_id, start, end, self._delay_levels, size)

    def _advance(self) -> None:
        # a file that the broker deletes meanwhile: the next look sees what is left
        with contextlib.suppress(FileNotFoundError):
            for _ in range(_STEPS):
                if not self._end.advance():
                    return

    def _files(self) -> list[File]:
        """The segments there are; one that the broker is about to make has no bytes yet. Raises FileNotFoundError when the
        broker deletes faster than they are listed."""
        for left in reversed(range(_LISTINGS)):
            named = sorted(each for folder in self._folders for each in list_segments(folder))
            try:
                found = [File(start, path.stat().st_size, path) for start, path in named]
                break
            except FileNotFoundError:  # listed, and deleted since
                if not left:
                    raise
        found = [file for file in found if file.size]
        check_segments(found, self._root)
        return found

    @contextlib.contextmanager
    def _reader(self, log_id: str, start: int, end: int) -> Iterator[LogReader]:
        """A reader of [start, end), which is readable and does not begin or end within a record."""
        self._check_log(log_id)
        files, readable = self._files(), self._end.served.end
        first = files[0].start if files else readable
        if not first <= start <= end <= readable:
            raise OffsetOutOfRangeError(
                f"range {start} to {end} is outside of the readable log, {first} to {readable}"
            )
        reader = LogReader(self._root, broker=self._broker, log_id=log_id, folders=self._folders)
        try:
            for offset in (start, end):
                if offset != readable:
                    _check_boundary(reader, offset)
            yield reader
        finally:
            reader.close()

    def _check_log(self, log_id: str) -> None:
        if log_id != self.log_id:
            raise OtherLogError(f"log {log_id[:64]!r} is not here; broker {self._broker} has {self.log_id}")


def _check_store(root: Path, folders: Sequence[Path], state: Path) -> None:
    """Raises StoreDamagedError."""
    if (root / IDENTITY_FILE).exists():
        raise StoreDamagedError(
            f"{root} is a store of lakebroker, whose gateway serves its log: give the gateway's address to `lakebroker reput "
            "--brokers`, or the folder to --store"
        )
    for folder in folders:
        if not folder.is_dir():
            raise StoreDamagedError(
                f"{root} is no store of a RocketMQ broker: it has no folder {folder}; give the broker's storePathRootDir, "
                "and with --config its file where the log is elsewhere (storePathCommitLog)"
            )
        if any(state.resolve().is_relative_to(each.resolve()) for each in (root, folder)):
            raise StoreDamagedError(
                f"the state folder {state} is in the broker's store, where nothing is written; give another with --state"
            )
    if not os.access(folders[0], os.R_OK | os.X_OK):
        raise StoreDamagedError(f"{folders[0]} cannot be read; run the sidecar as the broker's user")


def _check_boundary(reader: LogReader, offset: int) -> None:
    """Raises OffsetOutOfRangeError for an offset within a record."""
    from store.kernels import walk  # compiled: loaded by who scans

    start, view = reader.from_segment(offset)
    size, at = len(view), offset - start
    data = as_bytes(view[at:])
    _, count, stopped, _ = walk.walk(data, offset, 0, 1, size)
    if count or stopped:  # a record or a blank
        return
    found = scan(view, start, verify_crc=False, segment_size=size)
    number = int(np.searchsorted(found.physical_offset, offset, side="right")) - 1
    if number >= 0 and offset < int(found.physical_offset[number] + found.size[number]):
        raise OffsetOutOfRangeError(f"physical offset {offset} is within a record; give where one begins")
