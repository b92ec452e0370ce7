"""Maintenance of tables in a catalog, by Spark's own OPTIMIZE and VACUUM: who else commits to them is the catalog's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from structured_streaming.catalog.lake_tables import check_tables, detail
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import said, spark_errors
from structured_streaming.maintenance.reports import Removed, TableReport
from structured_streaming.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTINGS = 8
"""Tasks in which VACUUM looks through a table's folder, which has no folders in it."""


def maintain_schema(
    session: SparkSession,
    schema: CatalogSchema,
    target: int,
    retain_s: float,
    on_table: Callable[[TableReport], None] = lambda report: None,
) -> list[TableReport]:
    """As `maintenance.maintain.maintain`, of a lake in a catalog. Retention is counted in whole hours. Raises LakeError.

    The session is left as it is.
    """
    check_tables(session, schema)
    own = session.newSession()
    own.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target))
    own.conf.set("spark.databricks.delta.optimize.minFileSize", str(target))
    own.conf.set("spark.databricks.delta.vacuum.logging.enabled", "true")
    own.conf.set(
        "spark.sql.sources.parallelPartitionDiscovery.parallelism", str(_LISTINGS)
    )  # 10,000 tasks a table otherwise
    own.conf.set(
        "spark.databricks.delta.retentionDurationCheck.enabled", "false"
    )  # the caller has checked it
    hours = int(-(-retain_s // 3600))
    reports = []
    for name in TABLES:
        report = TableReport(name, 0, 0, 0, 0, Removed(), [])
        try:
            _maintain(own, schema.table(name), hours, report)
        except spark_errors() as error:
            report.problems.append(f"table {schema}.{name}: {said(error)}")
        on_table(report)
        reports.append(report)
    return reports


def _maintain(session: SparkSession, table: str, hours: int, report: TableReport) -> None:
    report.files_before = report.files_after = detail(session, table)["numFiles"]
    done: Any = session.sql(f"OPTIMIZE {table}").collect()[0]["metrics"]
    report.rewritten_files = done["numFilesRemoved"]
    report.rewritten_bytes = done["filesRemoved"]["totalSize"] or 0
    session.sql(f"VACUUM {table} RETAIN {hours} HOURS").collect()
    report.removed = _removed(session, table)
    report.files_after = detail(session, table)["numFiles"]


def _removed(session: SparkSession, table: str) -> Removed:
    """What the last VACUUM removed, as the table's history says."""
    rows = session.sql(f"DESCRIBE HISTORY {table} LIMIT 20").collect()
    metrics: dict[str, str] = next(
        (row["operationMetrics"] for row in rows if row["operation"] == "VACUUM START"), {}
    )
    return Removed(int(metrics.get("numFilesToDelete", 0)), int(metrics.get("sizeOfDataToDelete", 0)))
