"""`upkeep` of a lake in a catalog: its rows read, and added to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import said, spark_errors
from structured_streaming.errors import LakeError
from structured_streaming.tables import UPKEEP
from structured_streaming.upkeep import Upkeep, upkeep_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def read_catalogs_upkeep(session: SparkSession, schema: CatalogSchema) -> Upkeep:
    """As it is now. Raises LakeError."""
    try:
        rows = session.table(schema.table(UPKEEP.name)).select(*UPKEEP.schema.names).toArrow()
    except spark_errors() as error:
        raise LakeError(f"table {schema}.{UPKEEP.name}: {said(error)}") from error
    return upkeep_of(rows.cast(UPKEEP.schema).to_pylist())


def add_to_catalogs_upkeep(session: SparkSession, schema: CatalogSchema, rows: pa.Table) -> None:
    """Raises LakeError."""
    from pyspark.sql.pandas.types import from_arrow_schema

    name = schema.table(UPKEEP.name)
    try:
        frame = session.createDataFrame(rows, from_arrow_schema(UPKEEP.schema))
        frame.writeTo(name).append()
    except spark_errors() as error:
        raise LakeError(f"table {schema}.{UPKEEP.name}: {said(error)}") from error
