"""Where a lake is, the logs beyond it, and the Spark that reads it, as options of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Lake = Annotated[
    str,
    typer.Option(
        envvar="LAKEBROKER_LAKE", help="Where the tables are: a folder, s3://bucket/lake, or catalog.schema"
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="LAKEBROKER_TOKEN_FILE", help="File with the gateways' token")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_TLS_CA",
        help="File with certificates of the authorities that count, PEM; else the system's. Gateways beyond this "
        "machine are read over TLS only",
    ),
]
NewerOfBrokers = Annotated[
    str,
    typer.Option("--brokers", help="Gateways, host:port,…, whose newest records are added to the tables"),
]
NewerOfNameServers = Annotated[
    str,
    typer.Option(
        "--namesrv", help="Name servers, host:port;…: of all lakebrokers registered there, in their place"
    ),
]
NewerOfStores = Annotated[
    str,
    typer.Option("--store", help="Folders of stores on this machine, in their place, divided by commas"),
]
MessageDelayLevel = Annotated[
    str, typer.Option(help="messageDelayLevel of the stores' brokers; gateways say theirs")
]
AnyMaster = Annotated[
    str, typer.Option(help="Spark master, else local[2]; not where a Spark session is there already")
]
"""Of commands that start Spark whatever the lake is in; those that need it for a catalog alone have `spark_session.Master`."""


def newer_source(
    brokers: str, namesrv: str, store: str, token_file: Path | None, tls_ca: Path | None, delay_levels: str
) -> dict[str, str]:
    """Options of the data source for what logs hold beyond the tables; empty where none are named. Only gateways get the token."""
    if not (brokers or namesrv or store):
        return {}
    remote = bool(brokers or namesrv)
    source = {
        "namesrv": namesrv,
        "store": store,
        "brokers": brokers,
        "tokenFile": str(token_file) if token_file and remote else "",
        "tlsCa": str(tls_ca) if tls_ca and remote else "",
        "messageDelayLevel": delay_levels,
    }
    return {name: value for name, value in source.items() if value}
