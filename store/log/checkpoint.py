"""RocketMQ's `checkpoint`: 4 KiB that tell a real broker how far its files are known to be good.

| at | big-endian, 8 bytes each |
|---|---|
| 0 | store time of the newest record on disk, ms |
| 8, 16 | the same for `consumequeue/` and for `index/`, ms |
| 24, 32 | offset flushed by the master; offset confirmed |

We write no queue and index files while we run, so their times stay what they were: those of the last `rebuild`, or of
the broker before us, or 0. From there on a real broker dispatches again.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from store.log.permissions import file_mode
from store.log.segment import sync_folder

CHECKPOINT_FILE = "checkpoint"
_BYTES = 4096
_TIMES = struct.Struct(">5q")
_NEWEST = struct.Struct(">q")


class Checkpoint:
    """The file, mapped. One that a crash left too short is made anew: nothing is known then. Raises OSError."""

    def __init__(self, root: Path) -> None:
        path = root / CHECKPOINT_FILE
        fd = os.open(path, os.O_RDWR | os.O_CREAT, file_mode())
        try:
            if os.fstat(fd).st_size < _BYTES:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, _BYTES)
                os.fsync(fd)
                sync_folder(root)
            self._map = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        times = _TIMES.unpack_from(self._map)
        self.physical_ms, self.queues_ms, self.index_ms = times[0], times[1], times[2]

    def flushed(self, store_timestamp: int, offset: int) -> None:
        """The log is on disk up to `offset`, whose last record has that time, ms."""
        if store_timestamp > self.physical_ms:
            self.physical_ms = store_timestamp
            _NEWEST.pack_into(self._map, 0, store_timestamp)
        _NEWEST.pack_into(self._map, 24, offset)
        _NEWEST.pack_into(self._map, 32, offset)

    def rebuilt(self, store_timestamp: int) -> None:
        """`consumequeue/` and `index/` hold everything up to that time, ms."""
        self.queues_ms = self.index_ms = store_timestamp
        _NEWEST.pack_into(self._map, 8, store_timestamp)
        _NEWEST.pack_into(self._map, 16, store_timestamp)

    def close(self) -> None:
        """To disk, and closed."""
        self._map.flush()
        self._map.close()
