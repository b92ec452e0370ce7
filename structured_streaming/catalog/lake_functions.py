"""The functions over latency sketches as Spark makes them: in a session for its time, in a catalog for every tool that asks it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import said, spark_errors
from structured_streaming.latency_functions import in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def function_makers(session: SparkSession) -> dict[str, Callable[[], object]]:
    """For each function, by its name, a callable that makes it as a temporary function of the session."""
    return {name: functools.partial(session.sql, statement) for name, statement in in_spark().items()}


def make_functions(session: SparkSession, schema: CatalogSchema, tell: Callable[[str], None]) -> None:
    """Makes them in the schema, in the place of those of an earlier version; `tell` gets a line where the catalog takes none."""
    try:
        for statement in in_spark(schema.quoted).values():
            session.sql(statement)
    except spark_errors() as error:
        tell(
            f"{schema} has no functions over latency sketches: {said(error)}; `lakebroker sql --lake {schema}` has them"
        )
