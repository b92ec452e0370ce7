"""What a power cut would leave of a folder that this process writes to.

Durable is what POSIX promises and no more: the bytes of a file when it was last fsynced or fdatasynced, and the
names in a folder when that was last fsynced. Of what was written since, a random part survives: any pages (or
sectors) of a file, either of its two lengths, any names made, renamed or removed. `msync` counts for nothing.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Key = tuple[int, int]
"""Device and inode of a file or folder."""
_UNREAD = "lock"
"""Opening and closing it would drop the lock that the process has on it; it holds nothing."""


class _File:
    """A file that was synced or is named in a synced folder; the descriptor keeps its inode from being used again."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.durable = b""
        self.synced = 0
        """Number of the sync that `durable` is of."""


class Disk:
    """Watches the syncs of this process below `root` from `install` to `remove`.

    `on_instant` is called before and after each sync and each change of a name, where a power cut is most
    telling; it may call `cut`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.on_instant: Callable[[], None] = lambda: None
        self.syncs = 0
        self._lock = threading.RLock()
        self._cutting = 0
        """The thread that makes what is left; its own calls are no instants."""
        self._files: dict[Key, _File] = {}
        self._folders: dict[Key, dict[str, Key]] = {}
        self._folder_syncs: dict[Key, int] = {}
        """Number of the sync that a folder's names are of: of two at a time the one that began first may end last."""
        self._real: dict[str, Any] = {}
        self.sync_all()  # all that is there counts as durable
        self._folders.setdefault(_key(root.stat()), {})

    def install(self) -> None:
        for name in ("fsync", "fdatasync", "unlink", "rename", "replace", "mkdir", "link"):
            self._real[name] = getattr(os, name)
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._syncing(self._real[name]))
        for name in ("unlink", "rename", "replace", "mkdir", "link"):
            setattr(os, name, self._naming(self._real[name]))

    def remove(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def sync_all(self) -> None:
        """As syncfs(2) does, for who writes from other processes: nothing may be written meanwhile."""
        with self._lock:
            for folder, _, names in os.walk(self.root):
                self._sync_folder(folder)
                for name in names:
                    if name != _UNREAD:
                        path = Path(folder, name)
                        self._files[_key(path.stat())].durable = path.read_bytes()

    def cut(self, target: Path, rng: random.Random, survives: float) -> None:
        """Makes `target` what is left; `survives` is the chance of each thing that was not synced."""
        with self._lock:  # no sync returns and no name changes meanwhile
            self._cutting = threading.get_ident()
            try:
                target.mkdir()
                self._leave(_key(self.root.stat()), self.root, target, rng, survives)
            finally:
                self._cutting = 0

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            self.on_instant()
            folder = stat.S_ISDIR(os.fstat(fd).st_mode)
            with self._lock:
                self.syncs += 1
                number = self.syncs
                held = None if folder else self._file(fd)
                # only what was written before the call counts
                data = _read(held.fd) if held is not None else b""
                names = _names(fd) if folder else {}
            real(fd)
            with self._lock:
                if held is None:
                    if self._folder_syncs.get(_key(os.fstat(fd)), 0) < number:
                        self._folder_syncs[_key(os.fstat(fd))] = number
                        self._keep(fd, names)
                elif held.synced < number:
                    held.synced, held.durable = number, data
            self.on_instant()

        return sync

    def _naming(self, real: Callable[..., None]) -> Callable[..., None]:
        def change(*args: Any, **kwargs: Any) -> None:
            if self._cutting == threading.get_ident():
                real(*args, **kwargs)
                return
            self.on_instant()
            with self._lock:
                real(*args, **kwargs)
            self.on_instant()

        return change

    def _file(self, fd: int) -> _File:
        key = _key(os.fstat(fd))
        if key not in self._files:
            # opened again: the store may close its descriptor, and this one must read
            self._files[key] = _File(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
        return self._files[key]

    def _sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._keep(fd, _names(fd))
        finally:
            os.close(fd)

    def _keep(self, folder: int, names: dict[str, Key]) -> None:
        """Makes those names of a folder durable, and holds their files."""
        self._folders[_key(os.fstat(folder))] = names
        for name, key in names.items():
            if name == _UNREAD or key in self._files:
                continue
            try:
                fd = os.open(name, os.O_RDONLY, dir_fd=folder)
            except FileNotFoundError:
                continue  # gone meanwhile: it is durable as a name of nothing
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.close(fd)
            else:
                self._files[key] = _File(fd)

    def _leave(self, key: Key, live: Path | None, target: Path, rng: random.Random, survives: float) -> None:
        durable = self._folders.get(key, {})
        now: dict[str, Key] = {}
        if live is not None:
            now = {entry.name: _key(entry.stat()) for entry in os.scandir(live)}
        for name in sorted({*durable, *now}):
            chosen = now.get(name) if rng.random() < survives else durable.get(name)
            if chosen is None or name == _UNREAD:
                continue
            path = live / name if live is not None and now.get(name) == chosen else None
            if chosen in self._folders or (path is not None and path.is_dir()):
                (target / name).mkdir()
                self._leave(chosen, path, target / name, rng, survives)
            else:
                (target / name).write_bytes(self._content(chosen, path, rng, survives))

    def _content(self, key: Key, path: Path | None, rng: random.Random, survives: float) -> bytes:
        file = self._files.get(key)
        durable = file.durable if file is not None else b""
        live = b""
        if file is not None:
            live = _read(file.fd)
        elif path is not None:
            live = path.read_bytes()
        length = len(live) if rng.random() < survives else len(durable)
        unit = rng.choice((512, 4096))
        left = bytearray(durable[:length].ljust(length, b"\0"))
        for begin in range(0, min(length, len(live)), unit):
            if rng.random() < survives:
                piece = live[begin : min(begin + unit, length)]
                left[begin : begin + len(piece)] = piece
        return bytes(left)


def _key(status: os.stat_result) -> Key:
    return status.st_dev, status.st_ino


def _read(fd: int) -> bytes:
    """All of a file, through a descriptor that may be open for writing too."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _names(folder: int) -> dict[str, Key]:
    with os.scandir(folder) as entries:
        return {entry.name: _key(entry.stat(follow_symlinks=False)) for entry in entries}
