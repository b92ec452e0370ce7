"""The Spark session of commands that need one for a lake in a catalog, and the option that says where it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.output import warn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str,
    typer.Option(
        help="Spark master, for a catalog; else local[2]. Not where a Spark session is there already"
    ),
]


def session_of(master: str = "") -> SparkSession:
    """A session that knows the catalogs; says that it takes a moment where none is there. Raises LakeError."""
    from structured_streaming.interruptible import started
    from structured_streaming.jvm_output import STARTING
    from structured_streaming.provided_session import is_hosted
    from structured_streaming.sql import delta_session

    if not is_hosted():
        warn([STARTING])
    return started(lambda: delta_session(master, catalogs=True))
