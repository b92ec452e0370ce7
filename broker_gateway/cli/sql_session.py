"""What `lakebroker sql` asks: the statements of its argument, or of standard input.

On standard input a semicolon ends a statement, whatever lines it is on; the end of a file or a pipe ends its last one. A
statement that fails, and a signal, end what was typed or read with it. At a terminal the next line is asked for then; what
comes from a file or a pipe ends with them, as a script does.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

import typer

from broker_gateway.cli.output import warn
from broker_gateway.cli.signals import Signalled
from broker_gateway.cli.statements import divided, statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from structured_streaming.union.tables import UnionTables

_PROMPT = "lakebroker> "
_GOES_ON = "-> ".rjust(len(_PROMPT))


class Form(NamedTuple):
    """How statements are run, and their results printed; `tables` where logs are read too."""

    name: str
    write: bool
    escape: bool
    tables: UnionTables | None = None


def run_input(session: SparkSession, form: Form) -> None:
    """Standard input until it ends. Raises LakeError without a terminal; Signalled, Abandoned."""
    from structured_streaming.errors import LakeError

    if sys.stdin is None:
        raise LakeError("standard input is closed; give a statement")
    terminal = sys.stdin.isatty()
    pending: list[str] = []
    text = ""
    while True:
        running = False
        try:
            _tell(pending)
            line = _line(_GOES_ON if text else _PROMPT) if terminal else _line()
            if line is None and terminal:
                typer.echo(err=True)
                return
            if line is None:
                run_text(session, text, form)
                return
            if not text and line.strip().rstrip("; ") in ("exit", "quit"):
                return
            goes_on = bool(text) and not any(end in line for end in (";", "*/"))
            text += line + "\n"
            if goes_on:
                continue
            found, text = divided(text)
            running = bool(found)
            for each in found:
                _run(session, each, form)
        except LakeError as error:
            if not terminal:
                raise
            pending, text = [str(error)], ""
        except Signalled as stopped:
            if stopped.number != signal.SIGINT or not terminal:
                raise
            pending, text = (["", "interrupted"] if running else [""]), ""


def run_text(session: SparkSession, text: str, form: Form) -> None:
    """Prints the result of each statement. Raises LakeError; Signalled, once jobs have ended; Abandoned."""
    for each in statements(text):
        _run(session, each, form)


def _run(session: SparkSession, statement: str, form: Form) -> None:
    """A statement that ends well beside a signal is printed; those behind it are not run."""
    from broker_gateway.cli.sql_results import print_rows
    from structured_streaming.errors import LakeError
    from structured_streaming.interruptible import of_jobs, pass_on
    from structured_streaming.sql import query

    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise LakeError(f"the statement is no UTF-8 text: {statement!r}") from error
    rows, number = of_jobs(session, lambda: query(session, statement, write=form.write, tables=form.tables))
    try:
        print_rows(rows, form.name, sys.stdout, escape=form.escape)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LakeError(f"the result cannot be written: {error.strerror}") from error
    if number:
        pass_on(number)


def _line(prompt: str = "") -> str | None:
    """The next line of standard input; None at its end. The prompt never goes into results that are redirected."""
    from structured_streaming.errors import LakeError

    try:
        if prompt and not sys.stdout.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise LakeError(f"standard input is no UTF-8 text: {error.object[error.start :][:8]!r}") from error


def _tell(pending: list[str]) -> None:
    """Says each of these once, even where ctrl-C comes meanwhile; an empty one ends the line of the prompt."""
    while pending:
        text = pending.pop(0)
        if text:
            warn([text])
        else:
            typer.echo(err=True)
