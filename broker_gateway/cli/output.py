"""What commands print: errors on standard error, tables or JSON on standard output.

What comes from the wire is printed through here: no markup of rich and no control character in it has an effect.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker_gateway.line_output import LineOutput
from broker_gateway.printable import printable


def fail(message: str, exit_code: int = 1) -> NoReturn:
    """Prints the message on standard error and ends the command."""
    LineOutput(sys.stderr).line(f"lakebroker: {lines(message)}")  # where that fails, the status tells
    raise typer.Exit(exit_code)


def warn(warnings: Iterable[str]) -> None:
    """Prints them on standard error."""
    for warning in warnings:
        typer.echo(f"lakebroker: {lines(warning)}", err=True)


def lines(text: str) -> str:
    """Text of several lines, fit for a terminal."""
    return printable(text, keep="\n\t")


def counted(count: int, one: str, more: str = "") -> str:
    """A number of things; `more` is the plural where that is not `one` with an s."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


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
    show_table(columns, ([row[column] for column in columns] for row in rows))


def show_table(
    columns: Sequence[str] | None, rows: Iterable[Sequence[object]], out: TextIO | None = None
) -> None:
    """Prints a table; no `columns`: one without a head. A cell may have several lines."""
    table = Table(show_header=columns is not None)
    rows = list(rows)
    for name in columns if columns is not None else [""] * max(map(len, rows), default=0):
        table.add_column(Text(printable(name)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(lines(str(value))) for value in row))
    Console(file=out).print(table, highlight=False)
