"""What `lakebroker sql` asks: the statements of its argument, or of lines from standard input.

A statement that fails, and a signal, end their line. At a terminal the next line is asked for then; what comes from
a file or a pipe ends with them, as a script does.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

import typer

from broker_gateway.cli.output import warn
from broker_gateway.cli.signals import Signalled
from broker_gateway.cli.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROMPT = "lakebroker> "


class Form(NamedTuple):
    """How statements are run, and their results printed."""

    name: str
    write: bool
    escape: bool


def run_lines(session: SparkSession, form: Form) -> None:
    """Lines of standard input until it ends. Raises LakeError without a terminal; Signalled, Abandoned."""
    from structured_streaming.errors import LakeError

    terminal = sys.stdin.isatty()
    pending: list[str] = []
    while True:
        running = False
        try:
            _tell(pending)
            line = input(_PROMPT if terminal else "").strip()
            if line.rstrip("; ") in ("exit", "quit"):
                return
            running = True
            run_line(session, line, form)
        except EOFError:
            if terminal:
                typer.echo(err=True)
            return
        except LakeError as error:
            if not terminal:
                raise
            pending = [str(error)]
        except Signalled as stopped:
            if stopped.number != signal.SIGINT or not terminal:
                raise
            pending = ["", "interrupted"] if running else [""]


def run_line(session: SparkSession, line: str, form: Form) -> None:
    """Prints the result of each statement. Raises LakeError; Signalled, once jobs have ended; Abandoned."""
    for each in statements(line):
        _run(session, each, form)


def _run(session: SparkSession, statement: str, form: Form) -> None:
    """A statement that ends well beside a signal is printed; those behind it are not run."""
    from broker_gateway.cli.sql_results import print_rows
    from structured_streaming.interruptible import of_jobs, pass_on
    from structured_streaming.sql import query

    rows, number = of_jobs(session, lambda: query(session, statement, write=form.write))
    print_rows(rows, form.name, sys.stdout, escape=form.escape)
    if number:
        pass_on(number)


def _tell(pending: list[str]) -> None:
    """Each once, even where ctrl-C comes meanwhile; an empty one ends the line of the prompt."""
    while pending:
        text = pending.pop(0)
        if text:
            warn([text])
        else:
            typer.echo(err=True)
