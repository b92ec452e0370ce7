"""`lakebroker namesrv`: a name server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker_gateway.cli.extras import need
from broker_gateway.cli.output import fail, parse_settings, warn
from broker_gateway.runtime.errors import StartError
from structured_streaming.extras import BROKER

_HELP = """Runs a name server, for RocketMQ's brokers and clients as well as ours.

Examples:

  lakebroker namesrv

  lakebroker namesrv -c namesrv.properties --set listenPort=9877
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("namesrv", help=_HELP)(namesrv)


def namesrv(
    config_file: Annotated[Path | None, typer.Option("-c", help="File of key=value options")] = None,
    print_all: Annotated[bool, typer.Option("-p", help="Print every option and exit")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option as name=value; may be repeated")
    ] = None,
) -> None:
    need("namesrv", BROKER)
    from broker_gateway.nameserver.config import load_config

    try:
        config, warnings = load_config(config_file, parse_settings(settings or []))
        if print_all:
            warn(warnings)
            for name, value in config.options().items():
                typer.echo(f"{name}={value}")
            return
        from broker_gateway.nameserver.startup import run

        run(config, warnings)
    except StartError as error:
        fail(str(error), error.exit_code)
