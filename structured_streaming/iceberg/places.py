"""Where a lake's mirror is. Imports no pyiceberg."""

from __future__ import annotations

from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder

MIRROR, NAMESPACE, METADATA = "_iceberg", "lakebroker", "metadata"
_MISREAD = "?#"
"""In a path of a local lake, which a URI takes for the end of one."""


def has_mirror(lake: Folder) -> bool:
    """Whether a lake has a mirror, of whatever state."""
    return lake.child(MIRROR).exists()


def remove_mirror(lake: Folder) -> bool:
    """Whether there was one. Raises OSError."""
    there = has_mirror(lake)
    if there:
        lake.child(MIRROR).remove_all()
    return there


def check_mirrorable(lake: Folder) -> None:
    """Raises LakeError where no Iceberg client would find the files."""
    path = lake.uri
    if "://" not in path and (found := next((each for each in _MISREAD if each in path), None)):
        raise LakeError(
            f"an Iceberg mirror of the lake {path} cannot be: {found!r} in a path is read otherwise by Iceberg's clients; rename the folder"
        )


def table_mirror(lake: Folder, table: str) -> Folder:
    """A table's place in the mirror."""
    return lake.child(MIRROR).child(NAMESPACE).child(table)


def uri_of(folder: Folder) -> str:
    """As Iceberg's metadata names it."""
    return folder.uri if "://" in folder.uri else f"file://{folder.uri}"
