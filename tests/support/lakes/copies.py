"""Copies of lakes and stores that a test may change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def copy_folder(source: Path, target: Path) -> None:
    """With the times of its files. Of a lake of many small files, `shutil.copytree` would look for their other attributes for half of its
    time."""
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    found = os.stat(source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
