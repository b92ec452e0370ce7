"""Programs fetched for tests: a folder that is filled once, whoever needs it first."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def filled_once(folder: Path, version: str = "") -> Iterator[bool]:
    """Whether the block must fill the folder; it is complete, of this version, when the block ends without an error.

    Other processes wait for its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        missing = not complete.exists() or complete.read_text() != version
        yield missing
        if missing:
            complete.write_text(version)
