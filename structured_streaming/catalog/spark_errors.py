"""What a Spark session raises, and what of it a person needs."""

from __future__ import annotations

import re
from typing import Any

from structured_streaming.errors import LakeError


def spark_errors() -> tuple[type[Exception], ...]:
    """For an `except`: of Spark itself, and of the JVM behind it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, ConnectionError)


_AWAY = (
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "org.apache.thrift.transport.TTransportException",
    "SessionHiveMetaStoreClient",
    "Service Unavailable",
)
"""In what the JVM says, traces included, when a catalog or the place of its tables does not answer."""


def is_away(error: Exception) -> bool:
    """Whether what failed may work later by itself."""
    return any(each in str(error) for each in _AWAY)


def lake_errors() -> tuple[type[Exception], ...]:
    """For an `except`: those, and what this project says itself."""
    return (LakeError, *spark_errors())


def said(error: Exception) -> str:
    """One line, without plan and traces."""
    text = root_of(error) if hasattr(error, "java_exception") else str(error)
    text = re.split(r"\n\s*JVM stacktrace", text)[0].strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line.rstrip(".;")


def root_of(error: Any) -> str:
    """What the first cause of a Py4JJavaError says, which is what pyspark has no class for."""
    cause = error.java_exception
    while (before := cause.getCause()) is not None:
        cause = before
    return str(cause.toString()).strip()


def is_conflict(error: Exception) -> bool:
    """Whether Delta refused a commit for what another one did meanwhile."""
    return bool(re.search(r"DELTA_CONCURRENT_|Concurrent\w+Exception|MetadataChangedException", str(error)))
