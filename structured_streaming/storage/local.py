"""A lake's files in a local folder: what a power cut cannot take back once a call returned."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from store.log.segment import sync_folder

SCRATCH_PREFIX = ".lakebroker-"
"""Of files and folders in a lake that a crash may leave and nothing needs."""


def sync_file(path: Path) -> None:
    """Makes a file's content durable; its name is not, until its folder was synced."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def put_if_absent(folder: Path, name: str, content: bytes) -> None:
    """Puts a file whole and durably. Raises FileExistsError when somebody else was first."""
    scratch = folder / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(scratch, folder / name)
        sync_folder(folder)
    finally:
        scratch.unlink(missing_ok=True)
