"""The lake's tables as Spark names them, made and checked through a session.

Tables of a catalog are made by SQL. Those of a folder are there before (`lake.py`), and named by their path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from structured_streaming.catalog.marks import RECENT, History, history, history_in
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import is_away, said, spark_errors
from structured_streaming.errors import CatalogAwayError, LakeError, LocationError
from structured_streaming.lake import lost_of, lost_table, schema_version
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS, SCHEMA_PROPERTY, SCHEMA_VERSION, TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
TABLE_PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingNumIndexedCols": "-1",
}
"""Readers other than Spark must manage (`tables.py`); a catalog's default may be otherwise."""


class LakeTables(Protocol):
    """Where the tables are, as Spark names them."""

    def __str__(self) -> str:
        """As the user named the lake."""

    def table(self, name: str) -> str:
        """As it stands in SQL, and as Spark's writers take it."""

    def detail(self, session: SparkSession, name: str) -> Mapping[str, Any]:
        """`location` and `tableFeatures` as Delta describes a table. Raises Spark's errors."""

    def history(self, session: SparkSession, name: str, limit: int = RECENT) -> History:
        """Of a table's newest commits. Raises Spark's errors, LakeError."""


class FolderTables:
    """Tables of a lake in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def table(self, name: str) -> str:
        """See `LakeTables.table`."""
        return f"delta.`{self._folder.child(name).spark_uri.replace('`', '``')}`"

    def detail(self, session: SparkSession, name: str) -> Mapping[str, Any]:
        """See `LakeTables.detail`. Nobody is asked; what features are on was seen when the tables were made."""
        uri = self._folder.child(name).spark_uri
        return {"location": uri if "://" in uri else f"file:{quote(uri)}", "tableFeatures": []}

    def history(self, session: SparkSession, name: str, limit: int = RECENT) -> History:
        """See `LakeTables.history`. Spark is not asked."""
        return history_in(self._folder.child(name), limit)


class SchemaTables:
    """Tables of a schema of a catalog."""

    def __init__(self, schema: CatalogSchema) -> None:
        self._schema = schema

    def __str__(self) -> str:
        return str(self._schema)

    def table(self, name: str) -> str:
        """See `LakeTables.table`."""
        return self._schema.table(name)

    def detail(self, session: SparkSession, name: str) -> Mapping[str, Any]:
        """See `LakeTables.detail`."""
        return detail(session, self.table(name))

    def history(self, session: SparkSession, name: str, limit: int = RECENT) -> History:
        """See `LakeTables.history`."""
        return history(session, self.table(name), limit)


def make_tables(session: SparkSession, schema: CatalogSchema) -> None:
    """Makes the schema and its missing tables, and upgrades older ones; `reput_progress` last. Raises LakeError."""
    try:
        _check_kept(session, schema)
        session.sql(f"CREATE SCHEMA IF NOT EXISTS {schema.quoted}")
        there = table_names(session, schema)
        _refuse_lost(session, schema, there)
        for table in _in_order():
            if table.name not in there:
                session.sql(created(schema, table))
            else:
                _upgrade(session, schema, table)
    except spark_errors() as error:
        raise _unusable(schema, error) from error


def check_tables(session: SparkSession, schema: CatalogSchema) -> None:
    """Raises LocationError for a schema that is none of a lake, LakeError for one of a later version."""
    try:
        _check_kept(session, schema)
        there = table_names(session, schema)
        missing = [name for name in TABLES if name not in there]
        if missing:
            _refuse_lost(session, schema, there)
            lacks = "none of a lake's tables" if len(missing) == len(TABLES) else f"no table {missing[0]}"
            raise LocationError(
                f"{schema} has {lacks}; `lakebroker init --lake {schema}` makes what is missing"
            )
        if _version(session, schema, REPUT_PROGRESS) < SCHEMA_VERSION:
            raise LocationError(
                f"the lake {schema} is of an earlier version; `lakebroker init --lake` adds the columns that are new"
            )
    except spark_errors() as error:
        raise _unusable(schema, error) from error


def detail(session: SparkSession, name: str) -> dict[str, Any]:
    """What Delta says of a table: its location, its features. Raises Spark's errors, also for a table of another kind."""
    return session.sql(f"DESCRIBE DETAIL {name}").collect()[0].asDict()


def schema_location(session: SparkSession, schema: CatalogSchema) -> str:
    """Where a schema's tables are, as the catalog says; empty where it does not. Raises Spark's errors."""
    rows = session.sql(f"DESCRIBE SCHEMA {schema.quoted}").collect()
    return next((str(row[1]) for row in rows if str(row[0]).lower() == "location"), "")


def _check_kept(session: SparkSession, schema: CatalogSchema) -> None:
    """Raises LocationError for the catalog of a session that has none."""
    settings = session.conf
    own = settings.get("spark.sql.catalog.spark_catalog", _DELTA_CATALOG) == _DELTA_CATALOG
    if (
        own
        and schema.catalog == "spark_catalog"
        and settings.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
    ):
        raise LocationError(
            f"lake location {schema}: this Spark keeps its catalog in memory alone; configure one that stays, such as a Hive "
            "metastore (spark.sql.catalogImplementation=hive in spark-defaults.conf, in SPARK_CONF_DIR)"
        )


def table_names(session: SparkSession, schema: CatalogSchema) -> set[str]:
    """Of the schema's tables. Spark lists a session's temporary views beside them, which `lakebroker sql` names alike."""
    listed = session.sql(f"SHOW TABLES IN {schema.quoted}").collect()
    return {row.tableName for row in listed if not row.isTemporary}


def _refuse_lost(session: SparkSession, schema: CatalogSchema, there: set[str]) -> None:
    """Raises LocationError where tables are missing that batches went to. An upgrade's new ones are not lost."""
    missing = [name for name in TABLES if name not in there]
    if not missing or REPUT_PROGRESS.name in missing:
        return
    version = _version(session, schema, REPUT_PROGRESS)
    lost = lost_of(missing, version)
    if lost and not session.table(schema.table(REPUT_PROGRESS.name)).isEmpty():
        raise lost_table(schema, lost[0])


def _in_order() -> list[Table]:
    return [*(table for table in TABLES.values() if table is not REPUT_PROGRESS), REPUT_PROGRESS]


def created(schema: CatalogSchema, table: Table, properties: Mapping[str, str] | None = None) -> str:
    """The statement that makes a table where there is none, with properties beside those that every lake's tables have."""
    columns = ", ".join(_column(column.name, column.type, column.comment) for column in table.columns)
    stated = {SCHEMA_PROPERTY: str(SCHEMA_VERSION), **TABLE_PROPERTIES, **(properties or {})}
    listed = ", ".join(f"{sql_text(name)} = {sql_text(value)}" for name, value in stated.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {schema.table(table.name)} ({columns}) USING delta "
        f"COMMENT {sql_text(table.comment)} TBLPROPERTIES ({listed})"
    )


def _upgrade(session: SparkSession, schema: CatalogSchema, table: Table) -> None:
    """Adds the columns that are new. Two who do it at once: the later one fails, and finds it done when it starts again."""
    name = schema.table(table.name)
    version = _version(session, schema, table)
    there = {field.name: field.dataType.simpleString() for field in session.table(name).schema}
    for column in table.columns:
        kind = there.get(column.name)
        if kind is not None and kind != _type(column.type):
            raise LakeError(
                f"column {column.name} of {schema}.{table.name} is {kind}, the reput writes {_type(column.type)}: the table "
                "was altered; alter it back"
            )
        if kind is None and version == SCHEMA_VERSION:
            raise LakeError(
                f"{schema}.{table.name} has no column {column.name}: the table was altered; add it as {_type(column.type)}"
            )
    if version < SCHEMA_VERSION:
        new = [column for column in table.columns if column.name not in there]
        if new:
            added = ", ".join(_column(column.name, column.type, column.comment) for column in new)
            session.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
        session.sql(
            f"ALTER TABLE {name} SET TBLPROPERTIES ({sql_text(SCHEMA_PROPERTY)} = {sql_text(str(SCHEMA_VERSION))})"
        )


def _version(session: SparkSession, schema: CatalogSchema, table: Table) -> int:
    place = f"{schema}.{table.name}"
    properties = detail(session, schema.table(table.name))["properties"]
    if SCHEMA_PROPERTY not in properties:
        raise LocationError(
            f"{place} is no table of a lake: it has no property {SCHEMA_PROPERTY}; give a schema of the lake's own"
        )
    return schema_version(place, properties)


def _unusable(schema: CatalogSchema, error: Exception) -> LocationError:
    kind = CatalogAwayError if is_away(error) else LocationError
    return kind(
        f"lake location {schema}: {said(error)}; a catalog is configured in Spark (spark-defaults.conf in SPARK_CONF_DIR, or "
        f"the platform's session); for a folder of that name give ./{schema}"
    )


def _column(name: str, kind: pa.DataType, comment: str) -> str:
    return f"`{name}` {_type(kind)} COMMENT {sql_text(comment)}"


def _type(kind: pa.DataType) -> str:
    """In SQL."""
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())


def sql_text(value: str) -> str:
    """A text as it stands in SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
