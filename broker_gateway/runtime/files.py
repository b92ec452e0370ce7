"""Files that a server keeps: written whole, the one before as `.bak`."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """The file has either its old content or the new, also after a power cut. Raises OSError.

    What a link points to is written. The file keeps its mode, and its owner where this process may set it; a new one
    has what the process's umask leaves.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.tmp")
    staged.unlink(missing_ok=True)
    before = path.stat() if path.exists() else None
    mode = 0o666 if before is None else 0o600
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "w", encoding="utf-8") as file:
        if before is not None:
            _look_like(fd, before)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if before is not None:
        backup = path.with_name(f"{path.name}.bak")
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    staged.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _look_like(fd: int, other: os.stat_result) -> None:
    """Gives an open file the mode of another, and its owner and group as far as this process may."""
    for owner, group in ((other.st_uid, -1), (-1, other.st_gid)):
        with contextlib.suppress(PermissionError):
            os.chown(fd, owner, group)
    os.chmod(fd, stat.S_IMODE(other.st_mode))
