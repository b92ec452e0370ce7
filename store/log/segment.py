"""One preallocated, memory-mapped file of the commit log, named by its first offset in 20 digits."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from store.errors import StoreDamagedError
from store.log.permissions import file_mode, folder_mode

_RELEASED = memoryview(b"")
_RELEASED.release()


class Segment:
    """`size` bytes from `start` on. Once closed, it is mapped only as long as views of it, or arrays over them, are held:
    those stay good. One that is only read holds no descriptor but the mapping's own.
    """

    def __init__(self, path: Path, start: int, size: int, *, writable: bool) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            actual = os.fstat(self.fd).st_size
            if actual != size:
                raise StoreDamagedError(
                    f"segment {path} has {actual} bytes, expected {size}; restore the file"
                )
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map: mmap.mmap | None = mmap.mmap(self.fd, size, access=access)
        except BaseException:
            os.close(self.fd)
            raise
        if not writable:
            os.close(self.fd)
            self.fd = -1
        self.view = memoryview(self._map)

    @property
    def end(self) -> int:
        return self.start + self.size

    @classmethod
    def create(cls, folder: Path, start: int, size: int) -> Segment:
        """Preallocates a new file; OSError (disk full) leaves none behind. The folder is fsynced."""
        path = folder / f"{start:020d}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode())
        try:
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(fd)
        sync_folder(folder)
        return cls(path, start, size, writable=True)

    def zero_from(self, position: int) -> None:
        """Makes every byte from `position` on zero, on disk too."""
        if position >= self.size:
            return
        # only what holds anything is written: an untouched tail stays unread pages of zeros
        for begin in range(position, self.size, 1 << 20):
            end = min(begin + (1 << 20), self.size)
            if self.view[begin:end] != bytes(end - begin):
                self.view[begin:end] = bytes(end - begin)
        os.fdatasync(self.fd)

    def sync(self) -> None:
        """fdatasync; releases the GIL, unlike mmap.flush."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Closes the file and unmaps it, if need be when the last view is gone; `view` raises ValueError from here on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        view, mapped = self.view, self._map
        self.view, self._map = _RELEASED, None  # whoever keeps the segment does not keep it mapped
        with contextlib.suppress(BufferError):  # a reader holds a view
            view.release()
        if mapped is not None:
            with contextlib.suppress(BufferError):
                mapped.close()


def sync_folder(folder: Path) -> None:
    """fsyncs a directory, so that names in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Makes a directory and those above it that are missing, for the store's user; their names survive a power cut."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=folder_mode(), exist_ok=True)
        sync_folder(each.parent)


def only_zeros(path: Path) -> bool:
    """Whether a file holds nothing else."""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            if any(piece):
                return False
    return True


def list_segments(folder: Path) -> list[tuple[int, Path]]:
    """Start offset and path of every segment in `folder`, ascending."""
    if not folder.is_dir():
        return []
    return sorted(
        (int(path.name), path) for path in folder.iterdir() if len(path.name) == 20 and path.name.isdigit()
    )
