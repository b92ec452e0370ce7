"""`lakebroker sql`: SQL over the lake, by an engine in this process or by Spark, each imported only where it answers."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from broker_gateway.cli.gateway_calls import check_token
from broker_gateway.cli.lake_options import (
    AnyMaster,
    Lake,
    MessageDelayLevel,
    NewerOfBrokers,
    NewerOfNameServers,
    NewerOfStores,
    TlsCa,
    TokenFile,
    newer_source,
)
from broker_gateway.cli.output import fail, tell, warn
from broker_gateway.cli.signals import Signalled, raised_signals, status_of
from broker_gateway.cli.sql_engines import Form, chosen, embedded, limits, of_spark
from broker_gateway.cli.sql_session import Engine, run_input, run_text
from broker_gateway.cli.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from structured_streaming.embedded.limits import Limits
    from structured_streaming.embedded.running import Running
    from structured_streaming.union.tables import SessionTables

_HELP = """Answers SQL over the lake's tables and views; interactive without a statement.

DuckDB answers, in this process and without a JVM. Spark does with --write, for a catalog, and with --engine spark; its SQL is another dialect, and its start takes some seconds.

A statement ends at a semicolon, on whatever line it stands, or with the input. One that fails stops those behind it. At the prompt the session goes on then; otherwise the command ends with status 1.

ctrl-C cancels the statement that runs, and leaves when pressed again before that has ended; a change that was being committed may have happened. At the prompt, help tells what may be typed; ctrl-D, exit or quit leaves. Before a statement that begins with a comment of dashes, write -- as an argument of its own.

Times are UTC. csv and json lose nothing: binary values are base64, maps, arrays and structs are JSON; in csv NULL is an empty field, an empty text is "".

Tables are as old as their last batch, which is said. With --brokers, --namesrv or --store each statement also has what the logs hold beyond it, and all its tables show the same instant. Of a broker that does not answer there is what the lake holds, which is said, or an error with --strict. With --as-of tables are as a batch left them.

Examples:

  lakebroker sql --lake ./lake "SELECT topic, count(*) FROM messages GROUP BY topic"

  lakebroker sql --lake ./lake --brokers 127.0.0.1:8081 "SELECT * FROM consumer_lag"

  lakebroker sql --lake ./lake --format csv < questions.sql > answers.csv
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("sql", help=_HELP)(sql)


def sql(
    lake: Lake,
    statement: Annotated[
        str | None, typer.Argument(help="Statements; without it those of standard input")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or json")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="As --format json")] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="duckdb (in this process) or spark; else duckdb where it can answer, spark for --write and catalog.schema"
        ),
    ] = "",
    memory: Annotated[
        str, typer.Option(help="duckdb: what a statement keeps in memory; more goes to the temporary folder")
    ] = "1GiB",
    temp_folder: Annotated[
        Path | None,
        typer.Option(
            help="duckdb: folder for what does not fit in memory, at most half of what is free there"
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option(help="duckdb: a statement that takes longer is ended; 0s: none is")
    ] = "1h",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="duckdb: brokers that do not answer are an error; else of them there is what the lake holds",
        ),
    ] = False,
    master: AnyMaster = "",
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Allow statements that change data, as DELETE does, by Spark; else only reads"
        ),
    ] = False,
    escape: Annotated[
        bool,
        typer.Option(
            "--escape/--no-escape", help="csv: put ' before texts that a spreadsheet would run as a formula"
        ),
    ] = True,
    brokers: NewerOfBrokers = "",
    namesrv: NewerOfNameServers = "",
    store: NewerOfStores = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    message_delay_level: MessageDelayLevel = "",
    as_of: Annotated[
        str, typer.Option(help="A batch of reput_progress by its number, or a time: tables as they were then")
    ] = "",
) -> None:
    form = "json" if as_json else form
    if form not in ("table", "csv", "json"):
        fail(f"--format {form}: give table, csv or json", 2)
    if engine not in ("", "duckdb", "spark"):
        fail(f"--engine {engine}: give duckdb or spark", 2)
    bounds = limits(memory, temp_folder, timeout)
    if statement is not None and not statements(statement):
        fail(
            f"there is no statement in {statement!r}; give a statement, or leave the argument out to type statements",
            2,
        )
    live = bool(brokers or namesrv or store)
    if live and as_of:
        fail("--as-of is of the tables alone: leave out --brokers, --namesrv and --store", 2)
    if write and (live or as_of):
        fail("--write changes tables as they are: leave out --brokers, --namesrv, --store and --as-of", 2)
    if token_file is not None and (brokers or namesrv):
        check_token(token_file)
    source = newer_source(brokers, namesrv, store, token_file, tls_ca, message_delay_level)
    try:
        with raised_signals() as signals:
            _sql(
                lake,
                statement,
                _Asked(engine, master, source, as_of, bounds, strict, write),
                Form(form, escape),
                signals,
            )
    except KeyboardInterrupt as stopped:
        fail("interrupted", status_of(stopped))


class _Asked(NamedTuple):
    """What is to answer, and what its tables are to show; `source` has options of the data source."""

    engine: str
    master: str
    source: dict[str, str]
    as_of: str
    limits: Limits
    strict: bool
    write: bool


def _sql(lake: str, statement: str | None, asked: _Asked, form: Form, signals: list[Signalled]) -> None:
    from structured_streaming.errors import LakeError

    try:
        if sys.stdout is None:
            raise LakeError("standard output is closed; results need one")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                encoding="utf-8" if form.name != "table" else None, errors="backslashreplace"
            )
        engine = chosen(asked.engine, lake, write=asked.write)
        _check(asked)
        with _embedded(lake, asked, form) if engine == "duckdb" else _spark(lake, asked, form) as opened:
            if statement is None:
                run_input(opened, signals)
            else:
                run_text(opened, statement)
    except LakeError as error:
        fail(str(error))


def _check(asked: _Asked) -> None:
    """Raises LakeError for what an engine need not be started for."""
    if asked.source:
        from structured_streaming.source.addresses import parse_address
        from structured_streaming.source.name_servers import name_servers

        for broker in filter(None, asked.source.get("brokers", "").split(",")):
            parse_address(broker.strip(), "--brokers")
        name_servers({name.lower(): value for name, value in asked.source.items()})
    if asked.as_of:
        from structured_streaming.union.instants import batch_or_time

        batch_or_time(asked.as_of)


@contextlib.contextmanager
def _embedded(lake: str, asked: _Asked, form: Form) -> Iterator[Engine]:
    from structured_streaming.embedded.memory import ALLOCATOR, bounded_memory

    os.environ.update(ALLOCATOR)
    from structured_streaming.embedded.engine import EmbeddedEngine
    from structured_streaming.embedded.running import not_stopped
    from structured_streaming.interruptible import Abandoned
    from structured_streaming.provided_session import is_hosted

    hosted = is_hosted()

    def give_up(running: Running) -> NoReturn:
        _end_now(str(not_stopped(running)), 128 + signal.SIGINT if running.cancelled else 1)

    opened = EmbeddedEngine.open(
        lake,
        asked.limits,
        asked.source,
        asked.as_of,
        tell,
        strict=asked.strict,
        stuck=None if hosted else give_up,
    )
    with opened as engine, bounded_memory(asked.limits.memory_bytes):
        try:
            yield embedded(engine, form)
        except Abandoned as stopped:  # the engine may not let itself be closed
            if hosted:  # the process is another's
                raise
            _end_now("interrupted", stopped.status)


def _end_now(said: str, status: int) -> NoReturn:
    """Ends the process from any thread, whatever others do. What was not written to standard output yet is lost."""
    from structured_streaming.scratch import remove_all

    warn([said])
    remove_all()
    os._exit(status)


@contextlib.contextmanager
def _spark(lake: str, asked: _Asked, form: Form) -> Iterator[Engine]:
    from structured_streaming.interruptible import started
    from structured_streaming.sql import lake_session, union_session

    opened: list[SessionTables] = []

    def start() -> SparkSession:
        tables: SessionTables
        if asked.source:
            session, tables = union_session(lake, asked.source, asked.master, tell)
        else:
            session, tables = lake_session(lake, asked.master, tell, asked.as_of)
        opened.append(tables)
        return session

    try:
        session = started(start)
        yield of_spark(session, form, opened[0], write=asked.write)
    finally:
        for tables in opened:
            tables.close()
