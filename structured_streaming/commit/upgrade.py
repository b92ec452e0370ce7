"""A lake of an earlier version is brought to this one, in place, before the first batch.

Missing tables are made, tables with an older `lakebroker.schema_version` get the columns that are new: a commit of
metadata alone, durable, which no file is rewritten for. `reput_progress` comes last: its version is the lake's.
A crash in between leaves tables of both versions, and the next start goes on. Two who do it at once do it once.

A reput of the earlier version that still runs goes on: its rows have nulls in the new columns, and new tables lack them.
"""

from __future__ import annotations

from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.commit.table_schema import upgraded
from structured_streaming.lake import create_tables, schema_version
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, SCHEMA_VERSION, TABLES, Table


def prepare_lake(location: str) -> Folder:
    """Makes the lake's missing tables, and upgrades older ones. Raises LakeError."""
    folder = create_tables(location)
    for table in [*(each for each in TABLES.values() if each is not REPUT_PROGRESS), REPUT_PROGRESS]:
        _upgrade(folder.child(table.name), table)
    return folder


def _upgrade(folder: Folder, table: Table) -> None:
    log = TableLog(folder)
    while schema_version(folder, log.metadata["configuration"]) < SCHEMA_VERSION:
        try:
            log.alter(upgraded(log.metadata, table.schema))
        except VersionTakenError:
            log.follow()
