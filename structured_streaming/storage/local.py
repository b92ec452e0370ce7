"""A lake's files in a local folder: what a power cut cannot take back once a call returned."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from store.log.segment import sync_folder
from structured_streaming.storage.folder import FileStatus, Folder

_LIBC = ctypes.CDLL(None, use_errno=True)
SCRATCH_PREFIX = ".lakebroker-"
"""Of files and folders in a lake that a crash may leave and nothing needs."""
_COPIED_BYTES = 1 << 20
"""At a time."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LocalFolder:
    """See `Folder`. A name is put by linking or renaming what is durable already, then syncing the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def uri(self) -> str:
        return str(self.path)

    @property
    def spark_uri(self) -> str:
        return self.uri

    @property
    def parent(self) -> LocalFolder:
        return LocalFolder(self.path.parent)

    def child(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def exists(self) -> bool:
        return self.path.is_dir()

    def obstacle(self) -> LocalFolder | None:
        for each in (self.path, *self.path.parents):
            if each.exists():
                return None if each.is_dir() else LocalFolder(each)
        return None

    def is_file(self) -> bool:
        return self.path.exists() and not self.path.is_dir()

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def stamp(self, name: str) -> tuple[int, int] | None:
        try:
            status = (self.path / name).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def status(self, name: str) -> FileStatus | None:
        try:
            found = (self.path / name).stat()
        except FileNotFoundError:
            return None
        return FileStatus(found.st_size, found.st_mtime)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        for name in names:
            try:
                content = self.read(name)
            except FileNotFoundError:
                return
            yield content

    def readable(self, name: str) -> str:
        return str(self.path / name)

    def arrow_filesystem(self) -> Any:
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self.path), LocalFileSystem())

    def put_if_absent(self, name: str, content: bytes) -> None:
        with self._durable(content) as scratch:
            _link(scratch, self.path / name)
            sync_folder(self.path)

    def replace(self, name: str, content: bytes) -> None:
        with self._durable(content) as scratch:
            scratch.replace(self.path / name)
            sync_folder(self.path)

    def take(self, name: str, source: Folder, *, links: bool) -> bool:
        scratch = self.path / self.scratch_name()
        try:
            linked = links and isinstance(source, LocalFolder) and _linked(source.path / name, scratch)
            if not linked:
                found = source.readable(name)
                with (
                    open(found, "rb") if isinstance(found, str) else found as content,
                    scratch.open("xb") as file,
                ):
                    shutil.copyfileobj(content, file, _COPIED_BYTES)
            _sync_file(scratch)
            os.replace(scratch, self.path / name)
            sync_folder(self.path)
        finally:
            scratch.unlink(missing_ok=True)
        return linked

    def open_new(self, name: str) -> LocalFile:
        return LocalFile(self.path / name)

    def make_durable(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                _sync_file(self.path / name)
        sync_folder(self.path)

    def make_all_durable(self) -> None:
        sync_file_system(self.path)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        scratch = self.path.parent / self.scratch_name()
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(scratch)
            sync_folder(self.path.parent)
            shutil.rmtree(scratch)

    def make(self) -> None:
        made = [each for each in (self.path, *self.path.parents) if not each.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for each in made:
            sync_folder(each.parent)

    def create(self, name: str, fill: Callable[[str], None]) -> None:
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self.path))
        try:
            path = scratch / name
            fill(str(path))
            for folder, _, files in os.walk(path, topdown=False):
                for each in files:
                    _sync_file(Path(folder, each))
                sync_folder(Path(folder))
            try:
                path.rename(self.path / name)
            except OSError:
                if not (self.path / name).is_dir():  # else another process was faster
                    raise
            sync_folder(self.path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def derive(self, inputs: Iterable[str], make: Callable[[str], None], results: Sequence[str]) -> None:
        copy = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self.path.parent.parent))
        try:
            folder = copy / self.path.name
            folder.mkdir()
            for name in inputs:
                if name in results:  # is written anew, perhaps in place
                    shutil.copyfile(self.path / name, folder / name)
                else:
                    _link(self.path / name, folder / name)
            make(str(copy))
            for name in results:
                _sync_file(folder / name)
                os.replace(folder / name, self.path / name)
                sync_folder(self.path)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def scratch_name(self) -> str:
        return f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"

    def remove_scratch(self, older_s: float) -> None:
        for path in self.path.glob(f"{SCRATCH_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime < older_s:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    @contextlib.contextmanager
    def _durable(self, content: bytes) -> Iterator[Path]:
        """A scratch file of that content, gone at the end where it still has its name."""
        scratch = self.path / self.scratch_name()
        try:
            with scratch.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Folder]:
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=self.path) as path:
            yield LocalFolder(Path(path))


class LocalFile:
    """See `NewFile`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def target(self) -> str:
        return str(self._path)

    def finish(self) -> int:
        _sync_file(self._path)
        sync_folder(self._path.parent)
        return self._path.stat().st_size

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder() -> Iterator[LocalFolder]:
    """A folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-check-") as path:
        yield LocalFolder(Path(path))


def _linked(file: Path, name: Path) -> bool:
    """Whether both names are of one file now; False where the file systems do not do that. Raises OSError."""
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno not in (*_NO_LINKS, errno.EXDEV, errno.EMLINK):
            raise
        return False
    return True


def _link(file: Path, name: Path) -> None:
    """Raises OSError, also where the file system knows no hard links."""
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        text = "this file system has no hard links, which commits need: use another one, or an object store"
        raise OSError(error.errno, text, str(name)) from error


def _sync_file(path: Path) -> None:
    """Makes a file's content durable; its name is not, until its folder was synced."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_file_system(folder: Path) -> None:
    """syncfs(2), which Python's `os` lacks; where the system lacks it too, all file systems. Raises OSError."""
    if not hasattr(_LIBC, "syncfs"):
        os.sync()
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(fd)
