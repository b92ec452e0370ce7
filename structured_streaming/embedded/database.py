"""DuckDB databases in memory that reach nothing but what they are given.

The order of the settings matters: what is locked stays as it is, and files are closed off last. No extension is fetched:
`delta` comes in a package of the same version as DuckDB.

| database | has | reads files |
|---|---|---|
| of plans (`planning.py`) | tables without rows; no extension | none |
| of tables (`pinned.py`) | the lake's tables; the extension `delta`, which reads any folder that it is told to | those of the lake |

So a statement goes to the second only after the first has taken it, and calls no function that is not known to be harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

import duckdb
import pyarrow as pa

from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.quoting import literal, name
from structured_streaming.errors import LakeError
from structured_streaming.latency_functions import in_duckdb
from structured_streaming.tables import TIMESTAMP

LEAST_BYTES = 16 << 20
_REST = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""No names of Python's variables as tables."""


def extension(name: str) -> str:
    """The file of an extension of DuckDB's, in the package that has it. Raises ImportError."""
    package = resources.files(f"duckdb_extension_{name}")
    return str(package / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension")


def connected(*, delta: bool = False) -> duckdb.DuckDBPyConnection:
    """A database that is not locked yet; with the extension `delta` out of its package, which nothing is installed of. Raises
    LakeError."""
    # To check the extension's signature DuckDB reads all its 78 MiB: half a CPU second, twenty times what loading takes. The file
    # came with this package's own dependencies: whoever can change it can change this code.
    connection = duckdb.connect(":memory:", config={"allow_unsigned_extensions": str(delta)})
    try:
        if delta:
            # other threads run meanwhile, as they do not in load_extension
            connection.execute(f"LOAD {literal(extension('delta'))}")
            connection.execute("SET allow_unsigned_extensions = false")
            # EXPLAIN ANALYZE fails with it where a table is read twice with one filter
            connection.execute("SET delta_scan_explain_files_filtered = false")
    except (duckdb.Error, OSError, ImportError) as error:
        connection.close()
        raise LakeError(
            f"DuckDB {duckdb.__version__} cannot load its extension delta ({error}); install the extra 'sql' of lakebroker "
            "again"
        ) from error
    return connection


def lock(
    connection: duckdb.DuckDBPyConnection,
    limits: Limits,
    temp_folder: str,
    temp_bytes: int,
    *,
    folders: Iterable[str] = (),
    for_plans: bool = False,
) -> None:
    """Gives a database its limits, and closes it off: it reads files in `folders` alone. Raises LakeError."""
    if limits.memory_bytes < LEAST_BYTES:
        raise LakeError(
            f"a memory of {limits.memory_bytes:,} bytes is too little for any statement; give at least 16MiB (--memory)"
        )
    try:
        for name, value in _REST.items():
            connection.execute(f"SET {name} = {value}")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{limits.memory_bytes // 1024}KiB'")
        connection.execute(f"SET temp_directory = {literal(temp_folder)}")
        connection.execute(f"SET max_temp_directory_size = '{temp_bytes // 1024}KiB'")
        if limits.threads:
            connection.execute(f"SET threads = {limits.threads:d}")
        if for_plans:  # they are to tell what a statement reads whatever rows there are; stand-ins have none
            connection.execute(f"SET disabled_optimizers = '{','.join(_BY_ROWS)}'")
        for function in in_duckdb():
            connection.execute(function)
        allowed = ", ".join(map(literal, folders))
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        raise LakeError(f"the embedded engine does not start: {error}") from error


def definition(schema: pa.Schema) -> str:
    """Columns of a CREATE TABLE."""
    return ", ".join(f"{name(field.name)} {_type(field.type)}" for field in schema)


def check_definition(schema: pa.Schema) -> None:
    """Raises LakeError for columns that no table of DuckDB's can have, whoever added them."""
    try:
        with duckdb.connect() as some:
            some.execute(f"CREATE TABLE checked ({definition(schema)})")
    except (duckdb.Error, KeyError) as error:
        raise LakeError(f"it has columns that DuckDB has not: {error}") from error


def _type(kind: pa.DataType) -> str:
    """DuckDB's type for an Arrow type that a Delta table has: the lake's own, and those of columns that somebody added."""
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({_type(kind.key_type)}, {_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({definition(pa.schema(list(kind)))})"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _TYPES[kind]


_TYPES = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    pa.timestamp("us"): "TIMESTAMP",
}
_BY_ROWS = (
    "statistics_propagation",
    "compressed_materialization",
    "late_materialization",
    "join_filter_pushdown",
    "top_n",
)
"""Optimizers that look at the rows there are, or have a filter that is known only while a statement runs."""
