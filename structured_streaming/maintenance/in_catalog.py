"""Maintenance of tables in a catalog, by Spark's own DELETE, OPTIMIZE and VACUUM: who else commits to them is the catalog's business."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from structured_streaming.catalog.expired import expire_in_catalog, in_order
from structured_streaming.catalog.lake_tables import check_tables, detail
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import said, spark_errors
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.errors import LakeError
from structured_streaming.maintenance.reports import Expired, Removed, TableReport
from structured_streaming.provided_session import apart
from structured_streaming.tables import TABLES, UPKEEP

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

    Typed tables that lack messages are not filled: it says so. The session is left as it is.
    """
    check_tables(session, schema)
    own = apart(session)
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
    gone = {report.table: report for report in expire_schema(own, schema, datetime.now(UTC))}
    reports = []
    typed = CatalogTyped(session, schema)
    names, filling = typed.names(), typed.look(lambda problem: None).filling
    topics = {declared.table: declared.topic for declared in filling}
    for name in (*TABLES, *names):
        report = gone.get(name) or TableReport(name)
        if name in topics:
            report.waits.append(
                f"it lacks messages that the lake has, which maintenance of a catalog does not fill: `lakebroker typed fill {topics[name]} "
                f"--lake {schema}` does"
            )
        try:
            _maintain(own, schema.table(name), hours, report)
        except spark_errors() as error:
            report.problems.append(f"table {schema}.{name}: {said(error)}")
        on_table(report)
        reports.append(report)
    return reports


def expire_schema(
    session: SparkSession, schema: CatalogSchema, now: datetime, *, dry: bool = False
) -> list[TableReport]:
    """As `maintenance.retention.expire`, of a lake in a catalog. Raises LakeError."""
    try:
        names = in_order(session, schema)
    except spark_errors() as error:
        raise LakeError(f"lake {schema}: {said(error)}") from error
    reports = {name: TableReport(name) for name in names}
    done: list[str] = []
    try:
        for turn in expire_in_catalog(session, schema, names, now, dry=dry):
            report = reports[turn.table]
            report.retention.topics = {topic: Expired(*counted) for topic, counted in turn.counted.items()}
            report.problems += turn.problems
            done.append(turn.table)
    except LakeError as error:
        reports[UPKEEP.name] = TableReport(UPKEEP.name)
        reports[UPKEEP.name].problems.append(f"messages whose time has run out stay: {error}")
    except spark_errors() as error:
        name = next((each for each in names if each not in done), names[-1])
        reports[name].problems.append(f"retention of {schema}.{name}: {said(error)}")
    return list(reports.values())


def _maintain(session: SparkSession, table: str, hours: int, report: TableReport) -> None:
    report.files_before = report.files_after = detail(session, table)["numFiles"]
    if report.files_before > 1:  # looking at a table that needs nothing takes Spark seconds
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
