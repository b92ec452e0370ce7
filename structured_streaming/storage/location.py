"""Where a lake is: what a location names, and whether a lake can be there."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from structured_streaming.errors import LocationError
from structured_streaming.extras import OBJECT_STORE, lacking
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import LocalFolder
from structured_streaming.storage.objects import SCHEMES, object_folder

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
"""delta-rs decodes the first, turns the second into `/`, and refuses the others."""
_UNLIKE_A_PATH = re.compile(r"[?#]|(?:^|/)\.\.?(?:/|$)")
"""In a URL that begins what is no path, or would be another one."""


def named_folder(location: str) -> Folder:
    """The folder that a location names, as it names it. Raises LocationError."""
    text = _path(location)
    return _object_folder(text) if "://" in text else LocalFolder(Path(text))


def lake_folder(location: str) -> Folder:
    """The folder of a lake, whether it is there or not; raises LocationError for what no lake can be at."""
    text = _path(location)
    if not text.strip():
        raise LocationError(f"lake location {location!r} is empty; give a folder, such as ./lake")
    if "://" in text:
        return _object_folder(text)
    if "/" not in text and text.count(".") == 1 and all(text.split(".")) and not Path(text).exists():
        raise LocationError(
            f"lake location {location!r} names a schema of a catalog, and a folder is needed here; give the folder of its tables "
            f"(DESCRIBE SCHEMA), or ./{location} for a folder of that name"
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


def check_commits(folder: Folder) -> None:
    """Raises LocationError where a file can be put over another one's, which would lose a commit; OSError."""
    name = folder.scratch_name()
    try:
        folder.put_if_absent(name, b"1")
        try:
            folder.put_if_absent(name, b"2")
        except FileExistsError:
            return
    finally:
        folder.remove(name)
    raise LocationError(
        f"lake location {folder}: this store puts a file over one that is there although it is told not to (If-None-Match), so "
        "that commits would be lost; use a store that refuses"
    )


def _object_folder(url: str) -> Folder:
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise LocationError(
            f"lake location {url!r}: {scheme!r} is no kind of object store that is known here; use "
            f"{', '.join(f'{each}://' for each in SCHEMES)}, or a folder"
        )
    host, _, path = rest.partition("/")
    if not host:
        raise LocationError(
            f"lake location {url!r} names no bucket; give one, such as {scheme}://bucket/lake"
        )
    if found := _MISREAD.search(path) or _UNLIKE_A_PATH.search(path):
        raise LocationError(
            f"lake location {url!r}: {found.group()!r} in it is read otherwise by Delta's libraries; give another"
        )
    if said := lacking(f"lake location {url!r}", OBJECT_STORE):
        raise LocationError(said)
    try:
        return object_folder(url)
    except OSError as error:
        raise LocationError(f"lake location {url!r}: {error}") from error


def _path(location: str) -> str:
    return unquote(location[len("file://") :]) if location.startswith("file://") else location
