"""What a crash leaves of a folder that other threads still write to."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

_AGAIN_S = 0.002


def copy_at_rest(folder: Path, image: Path) -> None:
    """Copies a folder as it is at one instant: anew until nothing in it was made, renamed, written or removed meanwhile.

    Files that are written through a mapping are copied as they are when it is their turn.
    """
    while True:
        before = _entries(folder)
        try:
            shutil.copytree(folder, image)
        except (shutil.Error, FileNotFoundError):  # something that was listed is gone
            if before == _entries(folder):
                raise
        else:
            if before == _entries(folder):
                return
        shutil.rmtree(image, ignore_errors=True)
        time.sleep(_AGAIN_S)


def _entries(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of the last change of everything in a folder, by path."""
    found: dict[str, tuple[int, int, int]] = {}
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = os.path.join(path, name)
            try:
                status = os.lstat(entry)
            except FileNotFoundError:
                continue
            found[entry] = (status.st_ino, status.st_size, status.st_ctime_ns)
    return found
