"""What can go wrong under a broker, at a place that the test names: a call on the store that fails, a damaged file."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from store.columns import PendingColumns
from store.log.record import PendingRecord, Record
from store.message_store import Appended, MessageStore

CALLS = ("append", "append_columns", "read", "record", "request_flush", "wait_flushed")
"""Calls on a store that can be made to fail."""


def flip_byte(path: Path, position: int, mask: int = 0xFF) -> None:
    """Damages one byte of a file, also one that a running broker has mapped; a negative position counts from the end.

    Raises ValueError when the file has no such byte.
    """
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        at = position if position >= 0 else size + position
        if not 0 <= at < size:
            raise ValueError(f"{path} has {size} bytes and none at {position}")
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([before ^ mask]))


class FaultyStore(MessageStore):
    """A real store whose calls fail when the test says so, before they change anything."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._faults: dict[tuple[str, int], Exception] = {}
        self.calls: Counter[str] = Counter()
        """How many there were of each since the store was opened."""
        self._lock = threading.Lock()
        self._waiting = 0

    def inject(self, call: str, error: Exception, *, after: int = 0) -> None:
        """Lets a call raise `error` once: the next one, or the one behind so many more. Raises ValueError."""
        if call not in CALLS:
            raise ValueError(f"a store's call {call!r} cannot be made to fail; use one of {', '.join(CALLS)}")
        self._faults[call, self.calls[call] + after] = error

    def heal(self) -> None:
        """What was injected and did not happen yet does not happen."""
        self._faults.clear()

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        """No call within fails or counts: a test looks at what there is."""
        faults, self._faults = self._faults, {}
        calls = Counter(self.calls)
        try:
            yield
        finally:
            self._faults, self.calls = faults, calls

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for a flush: the flushing thread is going to call back."""
        with self._lock:
            return self._waiting > 0

    def append(self, records: Sequence[PendingRecord]) -> list[Appended]:
        self._meet("append")
        return super().append(records)

    def append_columns(self, batches: Sequence[PendingColumns]) -> list[int]:
        self._meet("append_columns")
        return super().append_columns(batches)

    def read(self, offset: int, size: int) -> memoryview:
        self._meet("read")
        return super().read(offset, size)

    def record(self, offset: int, size: int) -> Record:
        self._meet("record")
        return super().record(offset, size)

    def request_flush(self) -> None:
        self._meet("request_flush")
        super().request_flush()

    def wait_flushed(self, offset: int, callback: Callable[[BaseException | None], None]) -> None:
        self._meet("wait_flushed")

        def flushed(error: BaseException | None) -> None:
            try:
                callback(error)
            finally:
                with self._lock:
                    self._waiting -= 1

        with self._lock:
            self._waiting += 1
        super().wait_flushed(offset, flushed)

    def _meet(self, call: str) -> None:
        number = self.calls[call]
        self.calls[call] += 1
        error = self._faults.pop((call, number), None)
        if error is not None:
            raise error
