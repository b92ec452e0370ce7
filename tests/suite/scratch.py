"""Where tests have their temporary files: in memory, where the machine has room for them.

A run makes and removes tens of thousands of small files. On a disk's file system that was a tenth of the CPU seconds of the
tests of lakes, and waiting for its journal the same again. What survives a crash, a full disk or a power cut is not judged by
such a disk: those tests bring one of their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from broker_gateway.app.check.host import memory

_MEMORY = Path("/dev/shm")
_ROOM = 8 << 30
"""Bytes: of them a run has at most 2 GB at a time, and the rest of it is for its processes."""


@contextmanager
def in_memory() -> Iterator[None]:
    """For this process and its children. A TMPDIR that is set already stays, as does the disk where memory is short.

    What a run leaves, which failed or was killed, stays until the next one.
    """
    with patch.dict(os.environ), patch.object(tempfile, "tempdir", tempfile.tempdir):
        if "TMPDIR" in os.environ or not _has_room():
            yield
            return
        folder = _MEMORY / f"lakebroker-{os.geteuid()}"  # short: sockets below it have at most 107 characters
        folder.mkdir(mode=0o700, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another run is under way
                fcntl.flock(lock, fcntl.LOCK_SH)
            else:
                for left in folder.iterdir():
                    if left.is_dir():
                        shutil.rmtree(left, ignore_errors=True)
                    elif left.name != "lock":
                        left.unlink()
                fcntl.flock(lock, fcntl.LOCK_SH)
            os.environ["TMPDIR"] = str(folder)
            tempfile.tempdir = None
            yield


def memory_folder() -> str | None:
    """Where a test that makes a great many files has them, also in `make evidence`; None: in the usual temporary folder."""
    return str(_MEMORY) if _has_room() else None


def _has_room() -> bool:
    if not os.access(_MEMORY, os.W_OK):
        return False
    programs_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC  # tests write scripts, JVMs libraries
    found = memory()  # what a file system in memory calls free says nothing of the memory
    room = min(shutil.disk_usage(_MEMORY).free, found.available, found.limit or found.available)
    return programs_run and room >= _ROOM
