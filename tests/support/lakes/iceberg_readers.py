"""An Iceberg mirror as clients read it, who know nothing of this project: pyiceberg and DuckDB."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import StaticTable

from structured_streaming.embedded.database import extension
from structured_streaming.tables import TABLES


def place(lake: Path | str, name: str) -> str:
    """A table's folder in the mirror."""
    return f"{lake}/_iceberg/lakebroker/{name}"


def opened(lake: Path | str, name: str) -> StaticTable:
    """A table at the version that the hint names."""
    return StaticTable.from_metadata(place(lake, name))


def shown(table: StaticTable) -> int:
    """The version of the Delta table that a mirror shows."""
    return int(table.properties["lakebroker.delta_version"])


def by_pyiceberg(table: StaticTable, where: BooleanExpression = AlwaysTrue()) -> pa.Table:
    """Rows as pyiceberg reads them."""
    return table.scan(row_filter=where).to_arrow()


def by_duckdb(lake: Path | str, name: str, where: str = "true") -> pa.Table:
    """Rows as DuckDB's extension reads them, which fetches nothing."""
    with _duckdb().cursor() as cursor:
        found: Any = cursor.execute(f"select * from iceberg_scan(?) where {where}", [place(lake, name)])
        return found.to_arrow_table()


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    # to check signatures, all of their 100 MB would be read
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("set autoinstall_known_extensions=false; set autoload_known_extensions=false")
    for name in ("avro", "iceberg"):
        connection.load_extension(extension(name))
    connection.execute("set global TimeZone='UTC'; set enable_external_file_cache=false")
    return connection


def assert_mirrored(lake: Path, names: Iterable[str] = TABLES, *, is_newest: bool = True) -> dict[str, int]:
    """Each table row for row as delta-rs reads the version that the mirror says it shows; those versions."""
    versions = {}
    for name in names:
        table, delta = opened(lake, name), DeltaTable(str(lake / name))
        versions[name] = shown(table)
        if is_newest:
            assert versions[name] == delta.version()
        delta.load_as_version(versions[name])
        assert_same(name, delta.to_pyarrow_table(), by_pyiceberg(table), by_duckdb(lake, name))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["total-data-files"] == str(len(delta.file_uris()))
        files = {task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()}
        assert files == {unquote(uri.removeprefix("file://")) for uri in delta.file_uris()}
    return versions


def assert_same(name: str, expected: pa.Table, *others: pa.Table) -> None:
    """The same rows and columns; of types only what a client may choose differs."""
    order = [(column, "ascending") for column in TABLES[name].key]
    rows = expected.sort_by(order)
    for found in others:
        assert found.column_names == rows.column_names
        assert found.cast(rows.schema).sort_by(order).equals(rows), f"rows of {name} differ"
