"""Versions of a lake's tables as DuckDB sees them: in a folder attached by the extension `delta`, which passes over files by
their statistics; in an object store by deltalake, as datasets of Arrow.

What was attached stays for later statements as long as its version is the one that was asked for last, and with it what was
read of the table's log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.embedded.failures import FilesGoneError, plain
from structured_streaming.embedded.quoting import literal, name
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder


class PinnedTables(Protocol):
    """Versions of tables for a cursor."""

    def held(
        self, cursor: duckdb.DuckDBPyConnection, versions: Mapping[str, int]
    ) -> AbstractContextManager[dict[str, str]]:
        """Names by table, as SQL has them, that the cursor knows within. Raises LakeError."""

    def forget(self) -> None:
        """Lets go of what nobody holds: its files may be gone."""


class AttachedTables:
    """See `PinnedTables`. Of a folder on this machine."""

    def __init__(self, folder: Folder, connection: duckdb.DuckDBPyConnection) -> None:
        self._folder = folder
        self._connection = connection
        self._holders: dict[tuple[str, int], int] = {}
        """How many statements hold what is attached."""
        self._newest: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def held(
        self, cursor: duckdb.DuckDBPyConnection, versions: Mapping[str, int]
    ) -> Iterator[dict[str, str]]:
        names = {}
        held = []
        try:
            with self._lock:
                for table, version in versions.items():
                    self._attach(table, version)
                    held.append((table, version))
                    names[table] = name(_attached(table, version))
            yield names
        finally:
            with self._lock:
                for each in held:
                    self._holders[each] -= 1
                self._let_go()

    def forget(self) -> None:
        with self._lock:
            self._newest.clear()
            self._let_go()

    def _attach(self, table: str, version: int) -> None:
        if (table, version) not in self._holders:
            path = literal(self._folder.child(table).uri)
            try:
                self._connection.execute(
                    f"ATTACH {path} AS {name(_attached(table, version))} (TYPE delta, READ_ONLY, VERSION {version:d})"
                )
            except duckdb.Error as error:
                raise plain(error) from error
            self._holders[table, version] = 0
        self._holders[table, version] += 1
        self._newest[table] = version

    def _let_go(self) -> None:
        for table, version in [each for each, holders in self._holders.items() if not holders]:
            if self._newest.get(table) != version:
                try:
                    self._connection.execute(f"DETACH {name(_attached(table, version))}")
                except duckdb.Error as error:
                    raise plain(error) from error
                del self._holders[table, version]


class DatasetTables:
    """See `PinnedTables`. Of an object store, which DuckDB is not let near."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[int, Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def held(
        self, cursor: duckdb.DuckDBPyConnection, versions: Mapping[str, int]
    ) -> Iterator[dict[str, str]]:
        with self._lock:
            for table, version in versions.items():
                if table not in self._known or self._known[table][0] != version:
                    self._known[table] = (version, self._dataset(table, version))
            names = {table: _attached(table, version) for table, version in versions.items()}
            for table, registered in names.items():
                cursor.register(registered, self._known[table][1])
        yield {table: name(registered) for table, registered in names.items()}

    def forget(self) -> None:
        with self._lock:
            self._known.clear()

    def _dataset(self, table: str, version: int) -> Any:
        folder = self._folder.child(table)
        try:
            found = DeltaTable(folder.uri, version=version)
            return found.to_pyarrow_dataset(filesystem=folder.arrow_filesystem())
        except (DeltaError, OSError) as error:
            folder.child(LOG).exists()  # raises where the store is away
            raise FilesGoneError(f"table {folder}: {error}") from error


def _attached(table: str, version: int) -> str:
    return f"{table}@{version}"
