"""What is in memory, or open, of the files of the queue index: those that were looked at last, on any thread."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

MOST_OPEN = 64
"""Files of runs that are open at a time."""
KEPT_BYTES = 16 << 20
"""Of checked pages that are kept in memory, of all files."""


class OpenFile:
    """A file that is closed when nobody has it any more."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # what is wanted is read, and nothing around it
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is gone when Python ends
        if self._fd >= 0:
            close(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, at: int, size: int) -> bytes:
        """Fewer bytes where the file ends."""
        data = os.pread(self._fd, size, at)
        while len(data) < size and (more := os.pread(self._fd, size - len(data), at + len(data))):
            data += more
        return data

    def expect(self, at: int, size: int) -> None:
        """Has a part of the file read, in one go."""
        os.posix_fadvise(self._fd, at, size, os.POSIX_FADV_WILLNEED)


class OpenFiles:
    """The files that were looked at last, open, on any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, owner: Hashable, path: Path) -> OpenFile:
        """The file as `owner` opened it. Raises FileNotFoundError once it was deleted."""
        with self._lock:
            known = self._open.get(owner)
            if known is not None:
                self._open.move_to_end(owner)
                return known
        file = OpenFile(path)
        with self._lock:
            self._open[owner] = file
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        return file

    def forget(self, owner: Hashable) -> None:
        """Closes a file that was deleted or made anew."""
        with self._lock:
            self._open.pop(owner, None)


class Pages:
    """The checked pages of files that were looked at last, on any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            data = self._pages.get(key)
            if data is not None:
                self._pages.move_to_end(key)
            return data

    def put(self, key: Hashable, data: bytes) -> None:
        with self._lock:
            if key in self._pages:
                return
            self._pages[key] = data
            self._bytes += len(data)
            while self._bytes > self._most:
                self._bytes -= len(self._pages.popitem(last=False)[1])


OPEN = OpenFiles(MOST_OPEN)
PAGES = Pages(KEPT_BYTES)
