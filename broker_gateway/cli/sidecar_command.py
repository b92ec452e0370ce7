"""`lakebroker sidecar`: the log service over the store of a real RocketMQ broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker_gateway.cli.extras import need
from broker_gateway.cli.output import fail, parse_settings
from broker_gateway.runtime.errors import StartError
from structured_streaming.extras import BROKER

_HELP = """Serves the log of a real RocketMQ broker that goes on running, so that `lakebroker reput --brokers` builds a lake of it.

The store is only read. Which log it is, and how far it was served, is kept in a folder of its own.

Examples:

  lakebroker sidecar --config /opt/rocketmq/conf/broker.conf

  lakebroker sidecar --store /home/rocketmq/store --broker broker-a --port 8091
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("sidecar", help=_HELP)(sidecar)


def sidecar(
    store: Annotated[Path | None, typer.Option(help="The broker's storePathRootDir")] = None,
    broker: Annotated[str, typer.Option(help="The broker's name (brokerName)")] = "",
    cluster: Annotated[str, typer.Option(help="Its cluster (brokerClusterName)")] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            help="The broker's -c file: brokerName, brokerClusterName, storePathRootDir, storePathCommitLog and "
            "messageDelayLevel are read"
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the log's id, outside of the store; default: the store's, with .lakebroker behind"
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(help="gRPC port, 0 takes a free one; default 8091")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that readers show; without it those of this host only are answered"
        ),
    ] = None,
    message_delay_level: Annotated[str, typer.Option(help="The broker's messageDelayLevel")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the gateway's server as name=value; may be repeated"),
    ] = None,
) -> None:
    need("sidecar", BROKER)
    from broker_gateway.config.sidecar import sidecar_options

    given = parse_settings(settings or [])
    if port is not None:
        given["grpcServerPort"] = str(port)
    if token_file is not None:
        given["lakeTokenFile"] = str(token_file)
    try:
        options, warnings = sidecar_options(
            store=store,
            state=state,
            broker=broker,
            cluster=cluster,
            delay_levels=message_delay_level,
            file=config,
            settings=given,
        )
        from broker_gateway.app.sidecar import run

        run(options, warnings)
    except StartError as error:
        fail(str(error), error.exit_code)
