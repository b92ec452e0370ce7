"""The lake as a whole: its tables made, and found. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Mapping

from structured_streaming.errors import LacksTableError, LakeError, LocationError, NoLakeError, StoreAwayError
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import check_commits, check_readable, lake_folder
from structured_streaming.tables import REPUT_PROGRESS, SCHEMA_PROPERTY, SCHEMA_VERSION, TABLES, Table

_SHOWN = 3
PROPERTIES = {
    SCHEMA_PROPERTY: str(SCHEMA_VERSION),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.dataSkippingNumIndexedCols": "-1",
}
"""Of each table of a lake in a folder or an object store. Checkpoints name the files that went within a day, not within a week:
every reader reads that, and a batch a second replaces 80,000 of a table a day."""


def open_lake(location: str) -> Folder:
    """The folder of a lake that is there, with every table. Raises LocationError (NoLakeError where there is no table and one can be
    made, LacksTableError where some are missing and can be made), LakeError for one of a later version."""
    folder = lake_folder(location)
    check_readable(folder)
    missing = [name for name in TABLES if not _is_table(folder.child(name))]
    if len(missing) == len(TABLES):
        others = folder.exists() and bool(folder.names())
        what = "holds none of its tables" if others else "is empty" if folder.exists() else "does not exist"
        kind = LocationError if others else NoLakeError
        raise kind(
            f"{folder} is no lake: it {what}; give the lake's folder, or make one with `lakebroker init`"
        )
    if missing:
        _refuse_lost(folder, missing)
        raise LacksTableError(
            f"the lake {folder} lacks the table {missing[0]}; `lakebroker init --lake` makes what is missing"
        )
    if _progress(folder)[0] < SCHEMA_VERSION:
        raise LocationError(
            f"the lake {folder} is of an earlier version; `lakebroker init --lake` adds the columns that are new"
        )
    return folder


def identity(lake: Folder) -> tuple[str, int]:
    """The id of its progress, which another lake at its place has not, and its version, which never goes back. Raises LocationError
    (NoLakeError where that table is known to be missing)."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(lake.child(REPUT_PROGRESS.name).uri)
        return str(table.metadata().id), int(table.version())
    except TableNotFoundError as error:
        raise NoLakeError(f"lake location {lake}: {error}") from error
    except (DeltaError, OSError) as error:
        raise LocationError(f"lake location {lake}: {error}") from error


def _progress(lake: Folder) -> tuple[int, bool]:
    """The lake's schema version (an upgrade ends with the progress), and whether it has batches."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder = lake.child(REPUT_PROGRESS.name)
    try:
        table = DeltaTable(folder.uri)
        return schema_version(folder, table.metadata().configuration), bool(table.file_uris())
    except (DeltaError, OSError) as error:
        raise LocationError(f"lake location {lake}: {error}") from error


def _refuse_lost(lake: Folder, missing: list[str]) -> None:
    """Raises LocationError where tables are missing that batches went to. An upgrade's new ones are not lost."""
    if not missing or REPUT_PROGRESS.name in missing:
        return
    version, has_batches = _progress(lake)
    if has_batches and (lost := lost_of(missing, version)):
        raise lost_table(lake, lost[0])


def lost_of(missing: list[str], version: int) -> list[str]:
    """Those missing tables that a lake of a schema version had."""
    return [name for name in missing if TABLES[name].since <= version]


def lost_table(lake: object, name: str) -> LocationError:
    """A table that was there is gone."""
    return LocationError(
        f"the lake {lake} lost its table {name}: its progress has batches that went there. Made anew, it would lack their rows "
        "for good. Restore the table from a copy; or move the whole lake away and start the reput again: it makes another from what the logs have"
    )


def schema_version(place: object, configuration: Mapping[str, str]) -> int:
    """Of the table at `place`, as its properties say. Raises LakeError for one that this version does not know."""
    text = configuration.get(SCHEMA_PROPERTY, "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise LakeError(f"{place} has {SCHEMA_PROPERTY}={text!r}, which is no version; restore the property")
    if int(text) > SCHEMA_VERSION:
        raise LakeError(
            f"{place} has schema version {text}, this lakebroker knows versions up to {SCHEMA_VERSION}: a later one "
            "made or upgraded the lake; use that one"
        )
    return int(text)


def create_tables(location: str, *, anew: bool = True) -> Folder:
    """Makes what is missing of the lake's tables, durably; a table is there as a whole or not at all. Not `anew`: the lake was there.

    Raises LocationError, also for a folder with other things in it and no table, and for a lake that lost one; from StoreAwayError for
    one that was there and is gone.
    """
    folder, missing = checked_place(location)
    if not anew and REPUT_PROGRESS in missing:
        gone = f"lake location {folder}: the lake was there and is not any more; mount or restore it, or start again to make another"
        raise LocationError(gone) from StoreAwayError(gone)
    _refuse_lost(folder, [table.name for table in missing])
    try:
        folder.make()
        check_commits(folder)
        for table in missing:
            _create_table(folder, table)
    except OSError as error:
        raise LocationError(
            f"lake location {folder}: {error.strerror or error}; give a folder to write to"
        ) from error
    return folder


def checked_place(location: str) -> tuple[Folder, list[Table]]:
    """The folder of a lake that is there or may be made there, and the tables that are missing. Raises LocationError."""
    folder = lake_folder(location)
    check_readable(folder)
    if (file := folder.obstacle()) is not None:
        raise LocationError(f"lake location {folder}: {file} is a file; give a folder to write to")
    missing = [table for table in TABLES.values() if not _is_table(folder.child(table.name))]
    if len(missing) == len(TABLES) and folder.exists():
        _refuse_others(folder)
    return folder, missing


def _is_table(folder: Folder) -> bool:
    """Whether a Delta table is there."""
    return folder.child(LOG).exists()


def _refuse_others(folder: Folder) -> None:
    """Raises LocationError when a folder without a table holds anything that is not hidden."""
    try:
        others = sorted(name for name in folder.names() if not name.startswith("."))
    except OSError as error:
        raise LocationError(f"lake location {folder} cannot be read: {error.strerror or error}") from error
    if others and others != ["lost+found"]:
        shown = ", ".join(map(repr, others[:_SHOWN])) + (", ..." if len(others) > _SHOWN else "")
        raise LocationError(
            f"{folder} is no lake, and not empty: it holds {shown}; give the lake's folder, or an empty or new one"
        )


def _create_table(folder: Folder, table: Table) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    def fill(uri: str) -> None:
        DeltaTable.create(
            uri,
            schema=table.schema,
            name=table.name,
            description=table.comment,
            configuration=PROPERTIES,
            raise_if_key_not_exists=False,
        )

    try:
        folder.create(table.name, fill)
    except DeltaError as error:
        raise LocationError(f"lake location {folder}: {error}") from error
