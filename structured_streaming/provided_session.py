"""A Spark session that was there before: of a platform's job, a notebook, or a program under spark-submit.

| who | does with it |
|---|---|
| the reput | runs its query in it, so that whoever has the session sees the query and can stop it; sets nothing |
| the reput's commits by Spark, typed tables and maintenance of a catalog | work in a session of their own in the same context (`apart`): of what was set since its start, what says where tables are |
| SQL, tables of a catalog | work in a session of their own in the same context (`beside`): its options are those of the one that is there, but the time zone is UTC and its writes have no number of others; its temporary views and functions are nobody else's |

Neither stops it, ends its JVM, or cancels jobs of others.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from structured_streaming.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[2]"
"""Where no session is there, and none is asked for."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit or a platform started this Python beside a JVM of its own."""
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set by a runtime that has Delta built in, under other names."""
_LEAST_SPARK = 4
_OF_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_OF_ONE_WRITE = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""With them Delta leaves out a write that it has already had under that number: others' numbers are not ours."""
_WHERE_TABLES_ARE = ("spark.sql.catalog.", "spark.sql.defaultCatalog", "spark.hadoop.", "fs.")
_ours: weakref.WeakSet[SparkContext] = weakref.WeakSet()
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def is_hosted() -> bool:
    """Whether this Python has a Spark session that was there before, or a JVM for one. Imports nothing of Spark."""
    import sys

    if _SUBMITTED in os.environ:
        return True
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    return context is not None and context not in _ours


def provided_session() -> SparkSession | None:
    """The session that is there already: this thread's active one, else the default; nothing of it is set.

    Raises LakeError for one that cannot be used: Spark Connect, a Spark that is too old.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise LakeError(
            "the session that is there is one of Spark Connect, and lakebroker does not run over Spark Connect: run it where the driver "
            "is. On Databricks that is a classic cluster with dedicated access mode"
        )
    if SparkContext._active_spark_context is None and _SUBMITTED not in os.environ:
        return None
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if int(session.version.partition(".")[0]) < _LEAST_SPARK:
        raise LakeError(
            f"the session that is there is of Spark {session.version}; Spark {_LEAST_SPARK}.0 or later is needed (on Databricks: runtime "
            "17.3 or later)"
        )
    return session


def refuse_address(session: SparkSession, master: str, driver_host: str = "") -> None:
    """Raises LakeError where a session is there and the command names another place for Spark."""
    for option, given in (("--master", master), ("--driver-host", driver_host)):
        if given:
            raise LakeError(
                f"{option} {given}: a Spark session is there already (master {session.sparkContext.master}), and is used; leave out {option}"
            )


def check_delta(session: SparkSession) -> None:
    """Raises LakeError where a session that is there cannot read and write Delta tables by SQL."""
    if _DATABRICKS in os.environ:
        return
    lacking = []
    if not _has_class(session, _EXTENSION):
        version, scala = ".".join(session.version.split(".")[:2]), _scala(session)
        lacking.append(f"--packages io.delta:delta-spark_{version}_{scala}:4.4.0")
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    if _EXTENSION not in [each.strip() for each in extensions.split(",")]:
        lacking.append(f"--conf spark.sql.extensions={_EXTENSION}")
    if session.conf.get("spark.sql.catalog.spark_catalog", "") in ("", None):
        lacking.append(f"--conf spark.sql.catalog.spark_catalog={_CATALOG}")
    if lacking:
        raise LakeError(
            f"the Spark session that is there lacks Delta, and gets it only at its start: give spark-submit, or the platform's configuration, {' '.join(lacking)}"
        )


def apart(session: SparkSession) -> SparkSession:
    """A session of our own for writing: how tables are written is not what somebody set for writes of his own; see the module."""
    own = session.newSession()
    _copy_settings(session, own, lambda name: name.startswith(_WHERE_TABLES_ARE))
    return own


def beside(session: SparkSession) -> SparkSession:
    """A session of our own in the context of one that is there; see the module."""
    own = session.newSession()
    _copy_settings(session, own, lambda name: name not in _OF_ONE_WRITE)
    for name, value in _OF_SESSION.items():
        own.conf.set(name, value)
    if (catalog := session.catalog.currentCatalog()) != own.catalog.currentCatalog():
        own.catalog.setCurrentCatalog(catalog)
    if (database := session.catalog.currentDatabase()) != own.catalog.currentDatabase():
        own.catalog.setCurrentDatabase(database)
    return own


def _copy_settings(session: SparkSession, own: SparkSession, is_wanted: Callable[[str], bool]) -> None:
    """What was set since the context's start."""
    from pyspark.errors import PySparkException

    before = own.conf.getAll
    for name, value in session.conf.getAll.items():
        if before.get(name) == value or not is_wanted(name):
            continue
        try:
            own.conf.set(name, value)
        except PySparkException as error:
            # `builder.config(…).getOrCreate()` over a context that is there leaves in a session's settings also what only counts at a start
            if error.getCondition() != "CANNOT_MODIFY_CONFIG":
                raise


def made_here(session: SparkSession) -> None:
    """Its context was made by this package, which may end it."""
    _ours.add(session.sparkContext)


def is_remote_session(session: SparkSession) -> bool:
    """Whether it is one of Spark Connect, which has no context here."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_ours(session: SparkSession) -> bool:
    """Whether this package made its context."""
    return session.sparkContext in _ours


def _has_class(session: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


def _scala(session: SparkSession) -> str:
    """Such as 2.13."""
    jvm: Any = session._jvm
    number: str = jvm.scala.util.Properties.versionNumberString()
    return ".".join(number.split(".")[:2])
