"""The lake as a whole: its tables made, and found. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Mapping

from structured_streaming.errors import LakeError, LocationError
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import check_commits, check_readable, lake_folder
from structured_streaming.tables import REPUT_PROGRESS, SCHEMA_PROPERTY, SCHEMA_VERSION, TABLES, Table

_SHOWN = 3


def open_lake(location: str) -> Folder:
    """The folder of a lake that is there, with every table. Raises LocationError, LakeError for one of a later version."""
    folder = lake_folder(location)
    check_readable(folder)
    missing = [name for name in TABLES if not _is_table(folder.child(name))]
    if len(missing) == len(TABLES):
        what = "is empty" if folder.exists() else "does not exist"
        if folder.exists() and folder.names():
            what = "holds none of its tables"
        raise LocationError(
            f"{folder} is no lake: it {what}; give the lake's folder, or make one with `lakebroker init`"
        )
    if missing:
        raise LocationError(
            f"the lake {folder} lacks the table {missing[0]}; `lakebroker init --lake` makes what is missing"
        )
    _check_version(folder)
    return folder


def _check_version(lake: Folder) -> None:
    """An upgrade ends with the progress."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder = lake.child(REPUT_PROGRESS.name)
    try:
        configuration = DeltaTable(folder.uri).metadata().configuration
    except (DeltaError, OSError) as error:
        raise LocationError(f"lake location {lake}: {error}") from error
    if schema_version(folder, configuration) < SCHEMA_VERSION:
        raise LocationError(
            f"the lake {lake} is of an earlier version; `lakebroker init --lake` adds the columns that are new"
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


def create_tables(location: str) -> Folder:
    """Makes what is missing of the lake's tables, durably; a table is there as a whole or not at all.

    Raises LocationError, also for a folder with other things in it and no table.
    """
    folder, missing = checked_place(location)
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
            configuration={
                SCHEMA_PROPERTY: str(SCHEMA_VERSION),
                "delta.checkpointInterval": "100",
                "delta.logRetentionDuration": "interval 1 days",
                "delta.dataSkippingNumIndexedCols": "-1",
            },
            raise_if_key_not_exists=False,
        )

    try:
        folder.create(table.name, fill)
    except DeltaError as error:
        raise LocationError(f"lake location {folder}: {error}") from error
