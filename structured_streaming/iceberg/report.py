"""What was done to a table's mirror. Imports no pyiceberg."""

from __future__ import annotations

from dataclasses import dataclass

from structured_streaming.errors import LakeError


class NoMirrorError(LakeError):
    """A table that Iceberg cannot show as it is."""


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """The newest snapshot, the version of the Delta table that it shows, how many files came and went with it.

    `metadata` is the number of the metadata file. `anew`: why all of it was written, "" where it was not.
    """

    snapshot: int
    metadata: int
    delta_version: int
    added_files: int
    removed_files: int
    anew: str = ""
