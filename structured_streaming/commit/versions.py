"""Versions of a table, which maintenance removes once they are old."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder

T = TypeVar("T")


def of_version(folder: Folder, version: int, ask: Callable[[DeltaTable], T]) -> T | None:
    """What is asked of a version of a table; None where it is gone. Raises LakeError where the table cannot be read now."""
    try:
        try:
            return ask(DeltaTable(folder.uri, version=version))
        except DeltaError:
            if not folder.child(LOG).exists():  # nothing is known of its versions
                raise
            return None
    except (DeltaError, OSError) as error:
        raise LakeError(f"table {folder}: {error}") from error
