"""Finds the newest checkpoint of a table's log, from the hint `_last_checkpoint` or from the names of the log's files.

The hint costs one read however long the log is. Ours never goes back; another writer's may, or name what is not there, so nothing but
time depends on it.
"""

from __future__ import annotations

import json

import pyarrow.parquet as pq

from structured_streaming.storage.delta_names import LAST_CHECKPOINT, is_checkpoint, version_of
from structured_streaming.storage.folder import Folder


def hinted(log: Folder) -> tuple[int, int] | None:
    """Version and number of actions of the checkpoint that the hint names; None without one, or for one that is none. Raises OSError."""
    try:
        found = json.loads(log.read(LAST_CHECKPOINT))
        version, size = int(found["version"]), int(found.get("size", 0))
    except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    except (OverflowError, RecursionError):
        return None
    return (version, max(size, 0)) if version >= 0 else None


def checkpoints(log: Folder) -> dict[int, list[str]]:
    """The names of whole checkpoints by version: of one file, or of all the parts that their names tell of. Raises OSError."""
    single, parts = dict[int, list[str]](), dict[tuple[int, str], list[str]]()
    for name in filter(is_checkpoint, log.names()):
        version, rest = version_of(name), name.split(".")[2:-1]
        if version is not None and not rest:
            single[version] = [name]
        elif version is not None and len(rest) == 2:
            parts.setdefault((version, rest[1]), []).append(name)
    whole = {version: names for (version, count), names in parts.items() if len(names) == int(count)}
    return whole | single


def newest_checkpoint(log: Folder) -> int:
    """The version of the newest whole checkpoint, from the files' names; -1 if there is none. Raises OSError."""
    return max(checkpoints(log), default=-1)


def point_to_newest(log: Folder) -> None:
    """Has the hint name the newest checkpoint, whoever made it; nothing without one. Raises OSError, ArrowException."""
    found, hint = checkpoints(log), hinted(log)
    newest = max(found, default=-1)
    if newest < 0 or (hint is not None and hint[0] == newest):
        return
    names = found[newest]
    size = sum(pq.ParquetFile(log.readable(name)).metadata.num_rows for name in names)
    told = {"version": newest, "size": size} | ({"parts": len(names)} if len(names) > 1 else {})
    log.replace(LAST_CHECKPOINT, json.dumps(told).encode())
