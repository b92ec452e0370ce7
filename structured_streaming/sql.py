"""SQL over the lake by Spark: a session, with the tables and views that statements name."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from structured_streaming.catalog.names import catalog_schema
from structured_streaming.catalog.spark_errors import root_of
from structured_streaming.delta_session import DELTA_SETTINGS, delta_jars
from structured_streaming.errors import LakeError
from structured_streaming.jvm_output import STARTING, jvm_output_to_file
from structured_streaming.lake import open_lake
from structured_streaming.provided_session import (
    DEFAULT_MASTER,
    beside,
    check_delta,
    is_hosted,
    made_here,
    provided_session,
    refuse_address,
)
from structured_streaming.read_only import Statement, check_read_only
from structured_streaming.s3_access import S3Access, s3_access
from structured_streaming.scratch import scratch_folder
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import TABLES
from structured_streaming.union.instants import age_of
from structured_streaming.union.lakes import CatalogLake, FolderLake, ReadableLake
from structured_streaming.union.names import LakeNames
from structured_streaming.union.tables import SessionTables, UnionTables, frames
from structured_streaming.without_pandas import let_pandas_in
from structured_streaming.workers_python import workers_with_this_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType


def lake_session(
    location: str,
    master: str = "",
    tell: Callable[[str], None] = lambda line: None,
    as_of: str = "",
) -> tuple[SparkSession, LakeNames]:
    """A Spark session, and the names that statements may use of the lake, which `query` binds; `tell` gets a line before it takes
    long, and one that says how old tables are.

    A session that is there already is not changed: the one that is returned is beside it (`provided_session.py`). `master` is for where
    there is none, empty: `local[2]`.

    With `as_of` they are as a batch left them: its number, or a time. Raises LakeError.
    """
    session, lake = _opened(location, master, tell)
    names = names_of(session, lake, as_of, tell)
    if as_of:
        return session, names
    for name in TABLES:
        try:
            for said in lake.emptied((name,)):
                tell(said)
        except LakeError as error:  # statements that do not read it go on
            tell(str(error))
    if said := age_of(lake.committed()):
        tell(f"tables alone, {said}; add --brokers, --namesrv or --store to include what is newer")
    return session, names


def union_session(
    location: str,
    source: Mapping[str, str],
    master: str = "",
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[SparkSession, UnionTables]:
    """As `lake_session`, with what the logs hold beyond the lake; `source` has options of the data source.

    Bind the tables before each statement, as `query` does. Raises LakeError.
    """
    session, lake = _opened(location, master, tell)
    return session, UnionTables(session, lake, source, tell)


def _opened(location: str, master: str, tell: Callable[[str], None]) -> tuple[SparkSession, ReadableLake]:
    """Raises LakeError."""
    schema = catalog_schema(location)
    folder = open_lake(location) if schema is None else None
    if not is_hosted():
        tell(STARTING)
    session = delta_session(master, folder, catalogs=schema is not None)
    if folder is not None:
        return session, FolderLake(session, folder)
    assert schema is not None
    return session, CatalogLake(session, schema)


def lake_in(session: SparkSession, location: str) -> ReadableLake:
    """A lake as a session that is there reads it; nothing of the session is set. Raises LakeError."""
    schema = catalog_schema(location)
    return FolderLake(session, open_lake(location)) if schema is None else CatalogLake(session, schema)


def delta_session(master: str = "", lake: Folder | None = None, *, catalogs: bool = False) -> SparkSession:
    """A Spark session that reads Delta, also where `lake` is: beside one that is there, else a new one; with `catalogs`, those of
    spark-defaults.conf. Jars of a new one come from Maven Central once, then from Ivy's cache. Raises LakeError.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    there = provided_session()
    if there is not None:
        refuse_address(there, master)
        check_delta(there)
        return beside(there)
    let_pandas_in()
    master = master or DEFAULT_MASTER
    builder = (
        SparkSession.builder.appName("lakebroker-sql")
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    store = s3_access(lake.spark_uri) if lake is not None else S3Access()
    if not catalogs:
        builder = builder.config("spark.sql.warehouse.dir", scratch_folder())
    for name, value in (DELTA_SETTINGS | store.settings).items():
        builder = builder.config(name, value)
    with (
        workers_with_this_python(master),
        delta_jars(builder, store.packages) as with_jars,
        jvm_output_to_file(),
    ):
        session: SparkSession = with_jars.getOrCreate()
        made_here(session)
    session.sparkContext.setLogLevel("ERROR")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # it prints what is raised, with its trace
    return session


def names_of(
    session: SparkSession,
    lake: ReadableLake,
    as_of: str = "",
    tell: Callable[[str], None] = lambda line: None,
) -> LakeNames:
    """The tables, views and functions of a lake, for the session; `as_of` and `tell` as of `lake_session`. Raises LakeError."""
    return LakeNames(session, frames(lake, as_of, tell), lake.retired())


def tables_in(
    session: SparkSession,
    location: str,
    source: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> SessionTables:
    """The tables, views and functions of a lake for an existing session; with `source`, joined with the logs as by `union_session`.
    Raises LakeError."""
    lake = lake_in(session, location)
    return UnionTables(session, lake, source, tell) if source else names_of(session, lake)


def query(
    session: SparkSession,
    statement: str,
    *,
    write: bool = False,
    tables: SessionTables | None = None,
) -> pa.Table:
    """The rows of one statement, on the driver; timestamps in UTC, to the microsecond.

    `tables` has what it may name. A statement over a union must only read. Types without an Arrow form
    (intervals, variants) come as text. Raises ReadOnlyError, LakeError for bad SQL and for what fails while it runs.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import col

    asked = Statement(session, statement)
    try:
        if not write or (tables is not None and tables.with_logs):
            check_read_only(asked)
        if tables is not None:
            tables.bind(asked)
        frame = session.sql(statement)
        names = frame.columns
        texts = {at for at, field in enumerate(frame.schema) if _as_text(field.dataType)}
        if texts or len(set(names)) < len(names):  # names may stand twice
            plain = [f"c{at}" for at in range(len(names))]
            frame = frame.toDF(*plain).select(
                [col(name).cast("string") if at in texts else col(name) for at, name in enumerate(plain)]
            )
        found = frame.toArrow()
    except PySparkException as error:
        raise LakeError(_said(error)) from error
    except Py4JJavaError as error:  # what pyspark has no class for
        raise LakeError(root_of(error)) from error
    except (Py4JError, OSError) as error:
        raise LakeError(f"Spark does not answer ({error}); start again") from error
    return found.rename_columns(names)


def _said(error: PySparkException) -> str:
    """What Spark says is wrong, without its plan and its trace."""
    origin: Any = getattr(error, "_origin", None)
    if origin is not None and origin.getClass().getSimpleName() == "ExtendedAnalysisException":
        return str(origin.getSimpleMessage()).strip()
    return re.split(r"\n\s*JVM stacktrace", str(error))[0].strip()


def _as_text(kind: DataType) -> bool:
    from pyspark.sql.types import (
        CalendarIntervalType,
        DayTimeIntervalType,
        StructType,
        VariantType,
        YearMonthIntervalType,
    )

    inner = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind]
    texts = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType, VariantType)
    return isinstance(kind, texts) or any(map(_as_text, inner))
