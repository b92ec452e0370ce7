"""`lakebroker`: the commands put together. Errors go to standard error with a non-zero exit status."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_gateway.cli.commands import Commands

app = typer.Typer(
    name="lakebroker",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

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


if __name__ == "__main__":
    app()
