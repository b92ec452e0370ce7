"""Tables that somebody altered: which of them are left as they are, and why."""

from __future__ import annotations

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import WRITER_VERSION
from structured_streaming.errors import LakeError
from structured_streaming.tables import Table

_READER_VERSION = 1


class AlteredError(LakeError):
    """A table whose files cannot be rewritten or removed."""


def untouchable(snapshot: Snapshot, table: Table | None = None) -> str | None:
    """Why a table's files cannot be rewritten or removed; None when they can. With `table` also where columns are gone that name its
    rows and order them."""
    protocol = snapshot.protocol
    version = max(protocol["minReaderVersion"], 1), protocol["minWriterVersion"]
    if version[0] > _READER_VERSION or version[1] > WRITER_VERSION:
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        named = f" ({', '.join(sorted(features))})" if features else ""
        return (
            f"a table feature was turned on{named}: it asks for Delta's reader version {version[0]} and writer version "
            f"{version[1]}, maintenance knows {_READER_VERSION} and {WRITER_VERSION}; turn it off (ALTER TABLE … DROP FEATURE)"
        )
    names = () if table is None else dict.fromkeys((*table.key, *table.order))
    if lacks := [name for name in names if name not in snapshot.schema.names]:
        return f"it has no column {' and none '.join(lacks)}, which name its rows and order them; RESTORE TABLE brings them back"
    if snapshot.partitioned:
        return "it has partitions; tables of a lake are made without"
    if marked := next((file.path for file in snapshot.files.values() if file.has_deletions), None):
        return f"rows of {marked} are marked as deleted (a deletion vector); REORG TABLE … APPLY (PURGE) removes them"
    return None
