"""`lakebroker`: the commands put together. Errors go to standard error with a non-zero exit status."""

from __future__ import annotations

import typer

from broker_gateway.cli import admin_commands, gateway_command, lake_commands, namesrv_command, store_commands

app = typer.Typer(
    name="lakebroker",
    help="A RocketMQ broker whose consume queues and indexes Spark builds in Delta Lake.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)
gateway_command.register(app)
namesrv_command.register(app)
admin_commands.register(app)
lake_commands.register(app)
store_commands.register(app)

if __name__ == "__main__":
    app()
