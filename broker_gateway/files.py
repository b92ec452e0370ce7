"""Files that a server keeps: written whole, the one before as `.bak`."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """The file has either its old content or the new, also after a power cut. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.tmp")
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup = path.with_name(f"{path.name}.bak")
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    staged.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
