"""What processes a process has started."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> set[int]:
    """Processes that a process started."""
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and those that they did."""
    found = children(pid)
    for each in tuple(found):
        with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
            found |= descendants(each)
    return found
