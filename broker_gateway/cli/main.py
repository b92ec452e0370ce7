"""`lakebroker`: the commands put together. Errors go to standard error with a non-zero exit status."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from broker_gateway.cli import (
    admin_commands,
    client_commands,
    dlq_commands,
    erase_command,
    gateway_command,
    health_command,
    lag_command,
    lake_commands,
    maintain_commands,
    message_commands,
    namesrv_command,
    offset_commands,
    send_commands,
    serve_command,
    sidecar_command,
    store_commands,
    typed_commands,
)
from broker_gateway.cli.console import command as console_command

app = typer.Typer(
    name="lakebroker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lakebroker {version('lakebroker')}")
        raise typer.Exit


@app.callback()
def lakebroker(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """A RocketMQ broker whose consume queues and indexes Spark builds in Delta Lake."""


gateway_command.register(app)
health_command.register(app)
namesrv_command.register(app)
sidecar_command.register(app)
admin_commands.register(app)
offset_commands.register(app)
client_commands.register(app)
message_commands.register(app)
lag_command.register(app)
send_commands.register(app)
dlq_commands.register(app)
lake_commands.register(app)
maintain_commands.register(app)
erase_command.register(app)
serve_command.register(app)
console_command.register(app)
store_commands.register(app)
typed_commands.register(app)

if __name__ == "__main__":
    app()
