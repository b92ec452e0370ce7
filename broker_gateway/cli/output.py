"""What commands print: errors on standard error, tables or JSON on standard output.

What comes from the wire is printed through here: no markup of rich and no control character in it has an effect.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker_gateway.runtime.line_output import LineOutput
from broker_gateway.runtime.printable import printable
from store.counting import counted

_BODY_SHOWN = 60
_LEAST = 32
"""Characters of a cell that are not broken."""


class Failure(typer.Exit):
    """The end of a command that failed; `message` says why, and was printed unless it is overheard."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(exit_code)
        self.message = message


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """Within, in this thread, what would be printed on standard error goes into the list instead: for who asks as a command does,
    and is none. `fail` raises Failure as ever."""
    said: list[str] = []
    before = _heard.set(said)
    try:
        yield said
    finally:
        _heard.reset(before)


def fail(message: str, exit_code: int = 1, kind: type[Failure] = Failure) -> NoReturn:
    """Prints the message on standard error and ends the command: raises Failure, or what `kind` of it is given."""
    if _heard.get() is None:
        LineOutput(sys.stderr).line(f"lakebroker: {lines(message)}")  # where that fails, the status tells
    raise kind(lines(message), exit_code)


def warn(warnings: Iterable[str]) -> None:
    """Prints them on standard error."""
    said = _heard.get()
    for warning in warnings:
        if said is None:
            typer.echo(f"lakebroker: {lines(warning)}", err=True)
        else:
            said.append(lines(warning))


def tell(line: str) -> None:
    """Prints a line for people on standard error: answers and JSON are on the other."""
    warn([line])


def say_at_once(line: str) -> None:
    """Prints a line on standard error where that is a terminal, and nothing into a log. For people, before slow imports."""
    if sys.stderr is not None and sys.stderr.isatty():
        warn([line])


def lines(text: str) -> str:
    """Text of several lines, fit for a terminal."""
    return printable(text, keep="\n\t")


def limited(which: str, limit: int, one: str) -> str:
    """That there is more than `--limit` lists; `which`: the newest or the first."""
    listed = f"{one} is" if limit == 1 else f"{counted(limit, one)} are"
    return f"only the {which} {listed} listed; --limit lists more"


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """The options of `--set name=value`; ends the command when one is written otherwise."""
    options = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            fail(f"--set {setting}: write it as name=value", 253)
        options[name.strip()] = value.strip()
    return options


def body_row(body: bytes, whole: bool) -> dict[str, str]:
    """A message's body as columns: its first characters on one line, or all of it, with `body_base64` where it is no text."""
    text = body.decode("utf-8", "replace")
    if not whole:
        return {"body": re.sub(r"\s+", " ", text[:_BODY_SHOWN]) + ("…" if len(text) > _BODY_SHOWN else "")}
    if text.encode() == body:
        return {"body": text}
    return {"body": text, "body_base64": base64.b64encode(body).decode()}


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Prints rows as a table, or as JSON for machines."""
    if as_json:
        typer.echo(json.dumps(list(rows)))
        return
    show_table(columns, ([row[column] for column in columns] for row in rows))


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Prints what is known of one thing: names and values, then a table for each that is a list of rows; or JSON."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    tables = {name: value for name, value in facts.items() if isinstance(value, list)}
    values = {name: value for name, value in facts.items() if name not in tables}
    show_table(
        None, [(name, json.dumps(each) if isinstance(each, dict) else each) for name, each in values.items()]
    )
    for name, rows in tables.items():
        if rows:
            typer.echo(f"{name}:")
            show_table(list(rows[0]), [list(row.values()) for row in rows])


def confirm(what: str, yes: bool, *, verb: str = "delete", how: str = "") -> None:
    """Asks whether something is to be deleted, or the like; ends the command unless it is. Who cannot be asked has to say so
    before."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{lines(what)} would be {verb}d{how}: add --yes", 2)
    if not typer.confirm(f"{verb.capitalize()} {lines(what)}{how}?"):
        fail(f"nothing is {verb}d")


def show_table(
    columns: Sequence[str] | None,
    rows: Iterable[Sequence[object]],
    out: TextIO | None = None,
    whole: Collection[str] = (),
) -> None:
    """Prints a table; no `columns`: one without a head. A cell may have several lines; None is an empty one, bools are yes or no.
    Columns of `whole` are not broken.

    Where the columns do not fit the width, each row becomes lines of name and value, and nothing is lost. Without rows there is
    a line, at any width.
    """
    console = Console(file=out)
    cells = [[lines(_said(value)) for value in row] for row in rows]
    heads = [printable(name) for name in columns] if columns is not None else None
    if heads is not None and not cells:
        _print(console, f"no rows of {', '.join(heads)}")
        return
    if heads is not None and table_width(heads, cells, whole) > console.width:
        _show_blocks(console, heads, cells)
        return
    table = Table(show_header=heads is not None)
    for head in heads if heads is not None else [""] * max(map(len, cells), default=0):
        table.add_column(Text(head), overflow="fold", no_wrap=head in whole)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table, highlight=False)


def terminal_width() -> int:
    """Characters of a line of standard output; 80 where it is none of a terminal, unless COLUMNS says otherwise."""
    return Console().width


def table_width(heads: Sequence[str], cells: Sequence[Sequence[str]], whole: Collection[str] = ()) -> int:
    """What a table needs that can be read: whole names, and cells of some width, or whole."""
    widths = [_width(head) for head in heads]
    most = [None if head in whole else _LEAST for head in heads]
    for row in cells:
        needs = [
            _width(cell) if bound is None else min(_width(cell), bound)
            for cell, bound in zip(row, most, strict=True)
        ]
        widths = list(map(max, widths, needs))
    return sum(width + len("│  ") for width in widths) + len("│")


def time_for_people(iso: str) -> str:
    """A time of ISO 8601 with microseconds, UTC, as tables and sentences show it: to the ms, further only where there is more."""
    text = iso.removesuffix("Z").removesuffix("+00:00").replace("T", " ", 1)
    return text.removesuffix("000")


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _show_blocks(console: Console, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Rows as lines of name and value; a value's further lines stand below its first."""
    indent = max(map(_width, heads)) + 2
    for number, row in enumerate(cells, 1):
        shown = [f"-- row {number} of {len(cells)}"]
        for head, cell in zip(heads, row, strict=True):
            value = cell.replace("\n", "\n" + " " * indent)
            shown.append(f"{head}{' ' * (indent - _width(head))}{value}")
        _print(console, "\n".join(shown))


def _print(console: Console, text: str) -> None:
    console.print(Text(text), highlight=False, soft_wrap=True)


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))
