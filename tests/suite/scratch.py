"""Where tests have their temporary files: in memory, where the machine has room for them.

A run makes and removes tens of thousands of small files. On a disk's file system that was a tenth of the CPU seconds of the
tests of lakes, and waiting for its journal the same again. What survives a crash, a full disk or a power cut is not judged by
such a disk: those tests bring one of their own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

_MEMORY = "/dev/shm"
_ROOM = 8 << 30
"""Bytes. A whole run has at most 2 GB at a time."""


@contextmanager
def in_memory() -> Iterator[None]:
    """For this process and its children. A TMPDIR that is set already stays, as does the disk where memory is short."""
    with patch.dict(os.environ), patch.object(tempfile, "tempdir", tempfile.tempdir):
        if "TMPDIR" not in os.environ and _has_room():
            os.environ["TMPDIR"] = _MEMORY
            tempfile.tempdir = None
        yield


def _has_room() -> bool:
    if not os.access(_MEMORY, os.W_OK):
        return False
    programs_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC  # tests write scripts, JVMs libraries
    return programs_run and shutil.disk_usage(_MEMORY).free >= _ROOM
