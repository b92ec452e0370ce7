"""The demo's folder: emptied first, and one demo's alone while it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_LOCK = ".running"
"""Holds the id of the process whose folder it is."""


class FolderError(Exception):
    """The folder cannot be had."""


@contextlib.contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """The folder is there, and nothing in it; no other demo may have it until the block ends. Raises FolderError."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / _LOCK).open("a+"))
            _lock(lock.fileno(), folder)
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            for each in folder.iterdir():
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each)
                elif each.name != _LOCK:
                    each.unlink()
        except OSError as error:
            raise FolderError(
                f"the demo's folder cannot be emptied: {error}; give another with --output"
            ) from error
        yield


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.pread(lock, 20, 0).decode().strip()
        raise FolderError(
            f"a demo is running in {folder} (process {process}): end it with ctrl-C there, "
            "or give this one another folder with --output"
        ) from None
