"""Files that executors staged for Spark's writer to read: in a folder that only one lake's reput uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from structured_streaming.errors import LocationError
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 64 << 20
"""Staged bytes that become one file of a table."""


class StagedFiles:
    """Those in `folder`, in a folder for each table of the lake, and each of `typed`, which are made."""

    def __init__(self, session: SparkSession, folder: Folder, typed: Iterable[Table] = ()) -> None:
        self.folder = folder
        self._session = session
        self._tables = TABLES | {table.name: table for table in typed}
        try:
            for name in self._tables:
                folder.child(name).make()
        except OSError as error:
            raise LocationError(
                f"staging folder {folder}: {error.strerror or error}; give another with --staging"
            ) from error

    def read(self, name: str, files: list[dict[str, Any]]) -> DataFrame:
        """The rows of files, as a manifest has them, of a table."""
        from pyspark.sql.pandas.types import from_arrow_schema

        folder = self.folder.child(name).spark_uri
        rows = self._session.read.schema(from_arrow_schema(self._tables[name].schema)).parquet(
            *(f"{folder}/{file['path']}" for file in files)
        )
        return rows.coalesce(1 + sum(file["size"] for file in files) // _FILE_BYTES)

    def remove(self, name: str, files: list[dict[str, Any]]) -> None:
        """Files whose rows are in their table."""
        for file in files:
            self.folder.child(name).remove(file["path"])

    def clear(self) -> None:
        """Removes what earlier runs left."""
        for name in self._tables:
            folder = self.folder.child(name)
            for file in folder.names():
                folder.remove(file)
