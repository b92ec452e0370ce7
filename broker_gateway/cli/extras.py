"""What a command needs of the package's extras: it ends with a sentence where that is not installed."""

from __future__ import annotations

from broker_gateway.cli.output import fail
from structured_streaming.extras import EMBEDDED, LAKE, ON_SPARK, SPARK, Needs, lacking


def need(what: str, *needs: Needs) -> None:
    """Ends the command where a package is not installed; `what` names the command or the option that needs it."""
    if said := lacking(what, *needs):
        fail(said)


def need_spark(what: str) -> None:
    """Ends the command where Spark is not installed, or what runs on it."""
    need(what, SPARK, ON_SPARK)


def need_lake(what: str, lake: str) -> None:
    """Ends the command where what reads and changes a lake is not installed: Spark for a schema of a catalog."""
    if _in_catalog(lake):
        need_spark(f"{what} of {lake}, which is a schema of a catalog,")
    else:
        need(what, LAKE)


def need_embedded(what: str, lake: str) -> None:
    """Ends the command where the embedded engine is not installed, or cannot read the lake."""
    need(what, EMBEDDED)
    if _in_catalog(lake):
        fail(
            f"--lake {lake} is a schema of a catalog, which Spark alone reads: give the folder of its tables",
            2,
        )


def _in_catalog(lake: str) -> bool:
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.errors import LakeError

    try:
        return catalog_schema(lake) is not None
    except LakeError as error:
        fail(str(error))
