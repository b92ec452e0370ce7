"""Removes data files that no version within the retention has.

A file stays while the newest version has it, while it was removed less than the retention ago (a query may read the
version before), and while it was written less than the retention ago (a batch may be about to commit it).
"""

from __future__ import annotations

from urllib.parse import unquote

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.maintenance.reports import Removed
from structured_streaming.storage.folder import Folder

LEAST_RETAIN_S, MOST_RETAIN_S, MOST_IN_CATALOG_S = 3600, 86_400, 7 * 86_400
"""No batch takes as long as the least; of files that went before the most, logs know nothing any more: `lake.py` says how long, in a
catalog it is Delta's default."""


def vacuum(folder: Folder, snapshot: Snapshot, retain_s: float, now: float) -> Removed:
    """Of the table in `folder`, whose version is on disk; `now` in seconds since the epoch. Raises OSError."""
    oldest = now - retain_s
    kept = {file.name for file in snapshot.files.values()}
    kept |= {unquote(path) for path, removed in snapshot.removed.items() if removed / 1000 > oldest}
    files = size = 0
    for name in folder.names():
        if not name.endswith(".parquet") or name.startswith(("_", ".")) or name in kept:
            continue
        status = folder.status(name)
        if status is None or status.modified > oldest:
            continue
        folder.remove(name)
        files, size = files + 1, size + status.size
    return Removed(files, size)
