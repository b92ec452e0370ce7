"""`lakebroker init`: a lake's tables, in a catalog its views and functions too."""

from __future__ import annotations

import typer

from broker_gateway.cli.extras import need_lake
from broker_gateway.cli.lake_options import Lake
from broker_gateway.cli.output import fail, tell
from broker_gateway.cli.spark_session import Master, session_of


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "init",
        help="Makes the lake's tables, in a catalog the views too. Example: lakebroker init --lake ./lake",
    )(init)


def init(
    lake: Lake,
    master: Master = "",
) -> None:
    from structured_streaming.catalog.names import catalog_schema

    in_catalog = catalog_schema(lake) is not None
    need_lake("init", lake)
    from structured_streaming.commit.upgrade import prepare_lake
    from structured_streaming.errors import LakeError
    from structured_streaming.tables import TABLES

    try:
        place = _init_catalog(lake, master) if in_catalog else str(prepare_lake(lake))
    except LakeError as error:
        fail(str(error))
    typer.echo(f"{len(TABLES)} tables are in {place}")


def _init_catalog(lake: str, master: str) -> str:
    from structured_streaming.catalog.lake_functions import make_functions
    from structured_streaming.catalog.lake_tables import make_tables
    from structured_streaming.catalog.lake_views import make_views
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.catalog.upkeep import read_catalogs_upkeep

    schema = catalog_schema(lake)
    assert schema is not None
    session = session_of(master)
    make_tables(session, schema)
    make_views(session, schema, read_catalogs_upkeep(session, schema).retired, tell)
    make_functions(session, schema, tell)
    return str(schema)
