"""Where a lake is: what a location names, and whether a lake can be there."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from structured_streaming.errors import LocationError
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import LocalFolder

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
"""delta-rs decodes the first, turns the second into `/`, and refuses the others."""


def local_folder(location: str) -> Folder | None:
    """The folder that a location names, as it names it; None where that is not on this machine."""
    text = _path(location)
    return None if "://" in text else LocalFolder(Path(text))


def lake_folder(location: str) -> Folder:
    """The folder of a lake, whether it is there or not; raises LocationError for what no lake can be at."""
    text = _path(location)
    if not text.strip():
        raise LocationError(f"lake location {location!r} is empty; give a folder, such as ./lake")
    if "://" in text:
        raise LocationError(f"lake location {location!r}: object stores are not built yet; use a folder")
    if "/" not in text and text.count(".") == 1 and not Path(text).exists():
        raise LocationError(
            f"lake location {location!r}: catalogs are not built yet; use a folder, such as ./lake"
        )
    folder = Path(text).resolve()
    if found := _MISREAD.search(str(folder)):
        raise LocationError(
            f"lake location {str(folder)!r}: {found.group()!r} in a path is read otherwise by Delta's libraries; rename it"
        )
    return LocalFolder(folder)


def absolute(location: str) -> str:
    """A location that means the same wherever it is read from."""
    return location if "://" in location else str(Path(location).resolve())


def check_readable(folder: Folder) -> None:
    """Raises LocationError for a file, or what cannot be looked into."""
    try:
        if folder.exists():
            folder.names()
        elif folder.is_file():
            raise LocationError(f"{folder} is no lake but a file; give the lake's folder")
    except OSError as error:
        raise LocationError(f"lake location {folder} cannot be read: {error.strerror or error}") from error


def _path(location: str) -> str:
    return unquote(location[len("file://") :]) if location.startswith("file://") else location
