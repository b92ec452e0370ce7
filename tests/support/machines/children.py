"""What processes a process has started."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> set[int]:
    """Processes that a process started."""
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return found
