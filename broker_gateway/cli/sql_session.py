"""What `lakebroker sql` asks: the statements of its argument, or of standard input.

On standard input a semicolon ends a statement, whatever lines it is on; the end of a file or a pipe ends its last one. A
statement that fails, and a signal, end what was typed or read with it. At a terminal the next line is asked for then; what
comes from a file or a pipe ends with them, as a script does.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

import typer

from broker_gateway.cli.output import warn
from broker_gateway.cli.signals import Signalled

_PROMPT = "lakebroker> "
_GOES_ON = "-> ".rjust(len(_PROMPT))
_HELP = """A statement ends at a semicolon: SELECT * FROM consumer_lag;
SHOW TABLES;          tables and views
DESCRIBE messages;    a table's columns
help                  this text
exit, quit, ctrl-D    leave
ctrl-C                cancel the statement that runs, or what is typed
`lakebroker sql --help` tells the command's options."""


class Engine(NamedTuple):
    """What answers statements.

    `divided`: the statements that a semicolon ends in a text, and what stands behind the last of them. `run` prints the
    result of one: one that ends well beside a signal is printed, and the signal passed on then. It raises LakeError;
    Signalled, once the statement has ended; Abandoned.
    """

    divided: Callable[[str], tuple[list[str], str]]
    run: Callable[[str], None]


def run_input(engine: Engine, signals: list[Signalled]) -> None:
    """Standard input until it ends. `signals` are those that came. Raises LakeError without a terminal; Signalled, Abandoned."""
    from structured_streaming.errors import LakeError

    if sys.stdin is None:
        raise LakeError("standard input is closed; give a statement")
    terminal = sys.stdin.isatty()
    pending: list[str] = []
    text = ""
    while True:
        running = False
        try:
            if signals and not signals[-1].answered:  # Python ignores what a handler raises within `__del__`
                raise signals[-1]
            _tell(pending)
            line = _line(_GOES_ON if text else _PROMPT) if terminal else _line()
            if line is None and terminal:
                typer.echo(err=True)
                return
            if line is None:
                run_text(engine, text)
                return
            command = "" if text else line.strip().rstrip("; ").lower()
            if command in ("exit", "quit"):
                return
            if terminal and command in ("help", "?"):
                typer.echo(_HELP, err=True)
                continue
            goes_on = bool(text) and not any(end in line for end in (";", "*/"))
            text += line + "\n"
            if goes_on:
                continue
            found, text = engine.divided(text)
            running = bool(found)
            for each in found:
                _run(engine, each)
        except LakeError as error:
            if not terminal:
                raise
            pending, text = [str(error)], ""
        except Signalled as stopped:
            if stopped.number != signal.SIGINT or not terminal:
                raise
            stopped.answered = True
            pending, text = (["", "interrupted"] if running else [""]), ""


def run_text(engine: Engine, text: str) -> None:
    """Prints the result of each statement. Raises LakeError; Signalled, Abandoned."""
    found, rest = engine.divided(text)
    for each in (*found, rest.strip()):
        if each:
            _run(engine, each)


def _run(engine: Engine, statement: str) -> None:
    from structured_streaming.errors import LakeError

    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise LakeError(f"the statement is no UTF-8 text: {statement!r}") from error
    engine.run(statement)


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
