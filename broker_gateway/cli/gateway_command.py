"""`lakebroker gateway`: a broker process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from broker_gateway.cli.extras import need
from broker_gateway.cli.output import fail, parse_settings, say_at_once, warn
from broker_gateway.runtime.errors import StartError
from structured_streaming.extras import BROKER

_HELP = """Runs a broker.

Examples:

  lakebroker gateway --store /var/lib/lakebroker/store

  lakebroker gateway -c broker.conf --set grpcServerPort=8081 --set flushDiskType=SYNC_FLUSH

  lakebroker gateway --store /var/lib/lakebroker/store --processes 4

  lakebroker gateway --store /var/lib/lakebroker/store --with-namesrv

  lakebroker gateway -c broker.conf --check
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("gateway", help=_HELP)(gateway)


def gateway(
    namesrv: Annotated[str | None, typer.Option("-n", help="Name servers, host:port;…")] = None,
    config_file: Annotated[Path | None, typer.Option("-c", help="File of key=value options")] = None,
    print_all: Annotated[bool, typer.Option("-p", help="Print every option and exit")] = False,
    print_important: Annotated[bool, typer.Option("-m", help="Print the important options and exit")] = False,
    store: Annotated[Path | None, typer.Option(help="Folder of the store (storePathRootDir)")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option as name=value; may be repeated")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="Brokers on this host, each with its own store and port")
    ] = 1,
    with_namesrv: Annotated[
        bool,
        typer.Option(
            "--with-namesrv",
            help="Run a name server too (lakeWithNamesrv), on port 9876 (lakeNamesrvListenPort)",
        ),
    ] = False,
    transport: Annotated[str | None, typer.Option(help="http2 or grpcio (lakeTransport)")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Look at the configuration and this host, start nothing; status 1 where the broker would not start",
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --check: ask neither name servers nor the lake")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON")] = False,
) -> None:
    need("gateway", BROKER)
    overrides = parse_settings(settings or [])
    if namesrv is not None:
        overrides["namesrvAddr"] = namesrv
    if store is not None:
        overrides["storePathRootDir"] = str(store)
    if with_namesrv:
        overrides["lakeWithNamesrv"] = "true"
    if transport is not None:
        overrides["lakeTransport"] = transport
    if as_json and not check:
        fail("--json goes with --check: what a broker logs is JSON by --set lakeLogFormat=json", 2)
    if offline and not check:
        fail(
            "--offline goes with --check: a broker without name servers and lake has no namesrvAddr, lakeLocation",
            2,
        )
    if not (check or print_all or print_important):
        named = [f"its store is {store}"] if store is not None else []
        named += [f"its configuration {config_file}"] if config_file is not None else []
        say_at_once("; ".join(["starting a broker", *named]))
    if check:
        from broker_gateway.cli.gateway_check import show_check

        raise typer.Exit(show_check(config_file, overrides, processes, offline=offline, as_json=as_json))
    from broker_gateway.config.gateway import IMPORTANT, load_config

    try:
        config, warnings = load_config(config_file, overrides)
        if print_all or print_important:
            warn(warnings)
            for name, value in config.shown().items():
                if print_all or name in IMPORTANT:
                    typer.echo(f"{name}={value}")
            return
        if processes > 1:
            from broker_gateway.app.supervisor import supervise

            raise typer.Exit(supervise(config, _arguments(config_file, overrides), processes))
        from broker_gateway.app.startup import end_beside_the_compiler, run

        run(config, warnings, config_file)
        end_beside_the_compiler()
    except StartError as error:
        fail(str(error), error.exit_code)


def _arguments(config_file: Path | None, overrides: Mapping[str, str]) -> list[str]:
    """The command's arguments as each of several brokers is given them."""
    arguments = ["-c", str(config_file)] if config_file is not None else []
    for name, value in overrides.items():
        arguments += ["--set", f"{name}={value}"]
    return arguments
