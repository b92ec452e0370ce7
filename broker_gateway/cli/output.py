"""What commands print: errors on standard error, tables or JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from broker_gateway.line_output import LineOutput


def fail(message: str, exit_code: int = 1) -> NoReturn:
    """Prints the message on standard error and ends the command."""
    LineOutput(sys.stderr).line(f"lakebroker: {message}")  # where that fails, the status tells
    raise typer.Exit(exit_code)


def warn(warnings: Iterable[str]) -> None:
    """Prints them on standard error."""
    for warning in warnings:
        typer.echo(f"lakebroker: {warning}", err=True)


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """The options of `--set name=value`; ends the command when one is written otherwise."""
    options = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            fail(f"--set {setting}: write it as name=value", 253)
        options[name.strip()] = value.strip()
    return options


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Prints rows as a table, or as JSON for machines."""
    if as_json:
        typer.echo(json.dumps(list(rows)))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)
