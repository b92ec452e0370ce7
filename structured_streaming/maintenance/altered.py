"""Tables that somebody altered: which of them are left as they are, and why."""

from __future__ import annotations

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import WRITER_VERSION

_READER_VERSION = 1


def untouchable(snapshot: Snapshot) -> str | None:
    """Why a table's files cannot be rewritten or removed; None when they can."""
    protocol = snapshot.protocol
    version = max(protocol["minReaderVersion"], 1), protocol["minWriterVersion"]
    if version[0] > _READER_VERSION or version[1] > WRITER_VERSION:
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        named = f" ({', '.join(sorted(features))})" if features else ""
        return (
            f"a table feature was turned on{named}: it asks for Delta's reader version {version[0]} and writer version "
            f"{version[1]}, maintenance knows {_READER_VERSION} and {WRITER_VERSION}; turn it off (ALTER TABLE … DROP FEATURE)"
        )
    if snapshot.partitioned:
        return "it has partitions; tables of a lake are made without"
    if marked := next((file.path for file in snapshot.files.values() if file.has_deletions), None):
        return f"rows of {marked} are marked as deleted (a deletion vector); REORG TABLE … APPLY (PURGE) removes them"
    return None
