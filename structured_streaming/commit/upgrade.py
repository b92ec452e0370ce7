"""A lake of an earlier version is brought to this one, in place, before the first batch.

Missing tables are made, tables with an older `lakebroker.schema_version` get the columns that are new: a commit of
metadata alone, durable, which no file is rewritten for. `reput_progress` comes last: its version is the lake's.
A crash in between leaves tables of both versions, and the next start goes on. Two who do it at once do it once.

Whatever their version, tables that were made in a folder get the properties (`lake.py`) that are new; what they have stays as it is.

A reput of the earlier version that still runs goes on: its rows have nulls in the new columns, and new tables lack them.
"""

from __future__ import annotations

from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.commit.table_schema import completed, upgraded
from structured_streaming.commit.typed_declared import left_out, typed_names
from structured_streaming.lake import create_tables, schema_version
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, SCHEMA_VERSION, TABLES, Table
from structured_streaming.typed.declaration import DECLARED


def prepare_lake(location: str, *, anew: bool = True) -> Folder:
    """Makes the lake's missing tables, and upgrades older ones. `anew` as for `create_tables`. Raises LakeError."""
    folder = create_tables(location, anew=anew)
    for table in [*(each for each in TABLES.values() if each is not REPUT_PROGRESS), REPUT_PROGRESS]:
        _upgrade(folder.child(table.name), table)
    for name in typed_names(folder):
        with left_out(name, lambda problem: None):  # the reput reports what is wrong with it
            log = TableLog(folder.child(name))
            if DECLARED in log.metadata["configuration"]:  # else it is somebody else's
                _complete(log)
    return folder


def _upgrade(folder: Folder, table: Table) -> None:
    log = TableLog(folder)
    while schema_version(folder, log.metadata["configuration"]) < SCHEMA_VERSION:
        try:
            log.alter(upgraded(log.metadata, table.schema))
        except VersionTakenError:
            log.follow()
    _complete(log)


def _complete(log: TableLog) -> None:
    while (metadata := completed(log.metadata)) is not None:
        try:
            log.alter(metadata)
        except VersionTakenError:
            log.follow()
