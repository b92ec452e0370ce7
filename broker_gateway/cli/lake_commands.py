"""`lakebroker reput`, `init`, `sql`: the Spark side, imported only inside the commands that need it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from broker_gateway.cli.extras import need_lake, need_spark
from broker_gateway.cli.gateway_calls import check_token
from broker_gateway.cli.output import fail, warn
from broker_gateway.cli.registry_options import (
    RegistryTlsCa,
    RegistryTokenFile,
    RegistryUrl,
    RegistryUserFile,
    registry_access,
)
from broker_gateway.cli.signals import raised_signals
from broker_gateway.cli.spark_session import Master, session_of
from broker_gateway.cli.sql_engines import (
    Form,
    chosen,
    embedded,
    limits,
    of_spark,
)
from broker_gateway.cli.sql_session import Engine, run_input, run_text
from broker_gateway.cli.statements import statements
from broker_gateway.cli.units import seconds, size
from store.counting import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from structured_streaming.embedded.limits import Limits
    from structured_streaming.embedded.running import Running
    from structured_streaming.reput_metrics import ReputMetrics
    from structured_streaming.reput_watch import Watch
    from structured_streaming.union.tables import UnionTables

Lake = Annotated[
    str,
    typer.Option(
        envvar="LAKEBROKER_LAKE", help="Where the tables are: a folder, s3://bucket/lake, or catalog.schema"
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="LAKEBROKER_TOKEN_FILE", help="File with the gateways' token")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_TLS_CA",
        help="File with certificates of the authorities that count, PEM; else the system's. Gateways beyond this "
        "machine are read over TLS only",
    ),
]

_REPUT = """Builds the lake from commit logs; runs until it is stopped, or once.

ctrl-C or SIGTERM stops it when a commit under way has ended; a second one stops it at once. The next run goes on where the lake ends.

Examples:

  lakebroker reput --brokers 127.0.0.1:8081 --lake ./lake

  lakebroker reput --namesrv 'ns-a:9876;ns-b:9876' --tls-ca ca.pem --token-file token --lake ./lake

  lakebroker reput --store /var/lib/lakebroker --lake ./lake --once

  SPARK_CONF_DIR=./conf lakebroker reput --brokers 127.0.0.1:8081 --lake spark_catalog.lake
"""
_SQL = """Answers SQL over the lake's tables and views; interactive without a statement.

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
    """Adds the commands."""
    app.command("reput", help=_REPUT)(reput)
    app.command(
        "init",
        help="Makes the lake's tables, in a catalog the views too. Example: lakebroker init --lake ./lake",
    )(init)
    app.command("sql", help=_SQL)(sql)


def reput(
    lake: Lake,
    brokers: Annotated[
        str, typer.Option(help="Gateways, host:port,…; each with a brokerName of its own")
    ] = "",
    namesrv: Annotated[
        str,
        typer.Option(
            help="Name servers, host:port;…: all lakebrokers registered there, also those that join later"
        ),
    ] = "",
    store: Annotated[str, typer.Option(help="Folders of stores on this machine, divided by commas")] = "",
    once: Annotated[bool, typer.Option("--once", help="End when everything there is was read")] = False,
    target_freshness: Annotated[
        str,
        typer.Option(
            help="Age at which a record should be in the lake; batches are as few as that allows. 0s: as many as there can be"
        ),
    ] = "1s",
    target_file_size: Annotated[
        str, typer.Option(help="A batch begins before its time when it has so many bytes of the logs")
    ] = "64MiB",
    tables: Annotated[
        str, typer.Option(help="Tables to fill, divided by commas; without it all of them")
    ] = "",
    without_bodies: Annotated[
        str,
        typer.Option(help="Topics whose bodies are left out, divided by commas; * and ? as in file names"),
    ] = "",
    trigger: Annotated[str, typer.Option(help="Least time between the starts of batches")] = "0s",
    batch_bytes: Annotated[
        int, typer.Option(help="Bytes of the logs that one batch reads at most", min=1 << 20)
    ] = 256 << 20,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    message_delay_level: Annotated[
        str, typer.Option(help="messageDelayLevel of the stores' brokers; gateways say theirs")
    ] = "",
    on_gap: Annotated[
        str,
        typer.Option(
            help="Where a log begins above what the lake holds of it: stop, or continue and record in quarantine what is "
            "missing"
        ),
    ] = "stop",
    registry: RegistryUrl = "",
    registry_token_file: RegistryTokenFile = None,
    registry_user_file: RegistryUserFile = None,
    registry_tls_ca: RegistryTlsCa = None,
    master: Annotated[
        str, typer.Option(help="Spark master, else local[2]; not where a Spark session is there already")
    ] = "",
    driver_host: Annotated[
        str, typer.Option(help="Where workers of a cluster reach this machine; else Spark's own choice")
    ] = "",
    sink: Annotated[
        str,
        typer.Option(
            help="Who commits: delta (without the JVM) or spark (Spark's own writer); else delta in folders and object "
            "stores, spark in catalogs"
        ),
    ] = "",
    staging: Annotated[
        str,
        typer.Option(
            help="With Spark's writer: folder that driver and workers reach, for files on their way; else one beside the tables"
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve metrics for Prometheus at this port; 0 takes a free one", min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(help="Address of that port; whoever reaches it may read them"),
    ] = "127.0.0.1",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each batch")] = False,
) -> None:
    if sink not in ("", "delta", "spark"):
        fail(f"--sink {sink}: give delta or spark", 2)
    if on_gap not in ("stop", "continue"):
        fail(f"--on-gap {on_gap}: give stop or continue", 2)
    if not store and not brokers and not namesrv:
        fail("nothing to read: give --brokers HOST:PORT,…, --namesrv HOST:PORT;… or --store FOLDER", 2)
    every = f"{seconds('--trigger', trigger) * 1000:.0f} milliseconds"
    freshness_s = seconds("--target-freshness", target_freshness)
    file_size = size("--target-file-size", target_file_size)
    need_spark("reput")
    _tell(f"starting the reput from {brokers or namesrv or store} into {lake}; Spark takes some seconds")
    from structured_streaming.commit.report import BatchReport
    from structured_streaming.errors import LakeError, StoppedError
    from structured_streaming.reput import run_reput
    from structured_streaming.reput_metrics import ReputMetrics
    from structured_streaming.reput_options import ReputOptions

    metrics = ReputMetrics()

    def on_batch(report: BatchReport) -> None:
        metrics.committed(report)
        if as_json:
            row: dict[str, Any] = {
                "batch": report.batch,
                "records": report.records,
                "bytes": report.bytes,
                "commit_seconds": round(report.seconds, 4),
                "lag_bytes": report.lag_bytes,
                "quarantined": report.quarantined,
            }
            typer.echo(json.dumps(row))
        else:
            typer.echo(
                f"batch {report.batch}: {counted(report.records, 'record')}, {counted(report.bytes, 'byte')}, committed in "
                f"{report.seconds:.2f} s; {counted(report.lag_bytes, 'byte')} behind"
                + (f"; {report.quarantined:,} to quarantine" if report.quarantined else ""),
                err=True,
            )

    if token_file is not None:
        check_token(token_file)
    options = ReputOptions(
        lake=lake,
        store=store,
        brokers=brokers,
        namesrv=namesrv,
        tls_ca=str(tls_ca) if tls_ca else "",
        token_file=str(token_file) if token_file else "",
        trigger=every,
        target_freshness_s=freshness_s,
        target_file_size=file_size,
        tables=tables,
        without_bodies=without_bodies,
        once=once,
        max_bytes=batch_bytes,
        message_delay_level=message_delay_level,
        on_gap=on_gap,
        sink=sink,
        staging=staging,
        registry=registry_access(registry, registry_token_file, registry_user_file, registry_tls_ca),
    )
    try:
        with raised_signals(), _served(metrics, metrics_host, metrics_port) as watch:
            run_reput(options, on_batch, master, tell=_tell, driver_host=driver_host, watch=watch)
    except StoppedError as error:
        fail(str(error), 128 + error.number)
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        said = f"stopped by {stopped} before it began to read"
        if once:
            fail(f"{said}; run it again", _status(stopped))
        _tell(said)


@contextmanager
def _served(metrics: ReputMetrics, host: str, port: int | None) -> Iterator[Watch]:
    """Who watches the reput: the metrics while they are served, or nobody where no port is given. Ends the command where it cannot
    be opened."""
    from broker_gateway.observability.metrics_port import serve_registry
    from structured_streaming.reput_watch import NOBODY

    if port is None:
        yield NOBODY
        return
    try:
        server, thread = serve_registry(metrics.registry, host, port, lambda app: app)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fail(
            f"--metrics-port {port} cannot be opened at {host}: {reason}; give a free port, or an address of this machine as --metrics-host"
        )
    shown = f"[{host}]" if ":" in host else host
    _tell(f"metrics at http://{shown}:{server.server_port}/metrics")
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def init(
    lake: Lake,
    master: Master = "",
) -> None:
    from structured_streaming.catalog.names import catalog_schema

    in_catalog = catalog_schema(lake) is not None
    need_lake("init", lake)
    from structured_streaming.commit.upgrade import prepare_lake
    from structured_streaming.errors import LakeError
    from structured_streaming.tables import TABLES

    try:
        place = _init_catalog(lake, master) if in_catalog else str(prepare_lake(lake))
    except LakeError as error:
        fail(str(error))
    typer.echo(f"{len(TABLES)} tables are in {place}")


def _init_catalog(lake: str, master: str) -> str:
    from structured_streaming.catalog.lake_functions import make_functions
    from structured_streaming.catalog.lake_tables import make_tables
    from structured_streaming.catalog.lake_views import make_views
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.catalog.upkeep import read_catalogs_upkeep

    schema = catalog_schema(lake)
    assert schema is not None
    session = session_of(master)
    make_tables(session, schema)
    make_views(session, schema, read_catalogs_upkeep(session, schema).retired, _tell)
    make_functions(session, schema, _tell)
    return str(schema)


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
    master: Annotated[
        str, typer.Option(help="Spark master, else local[2]; not where a Spark session is there already")
    ] = "",
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
    brokers: Annotated[
        str, typer.Option(help="Gateways, host:port,…, whose newest records are added to the tables")
    ] = "",
    namesrv: Annotated[
        str,
        typer.Option(help="Name servers, host:port;…: of all lakebrokers registered there, in their place"),
    ] = "",
    store: Annotated[
        str, typer.Option(help="Folders of stores on this machine, in their place, divided by commas")
    ] = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    message_delay_level: Annotated[
        str, typer.Option(help="messageDelayLevel of the stores' brokers; gateways say theirs")
    ] = "",
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
    remote = bool(brokers or namesrv)
    if token_file is not None and remote:
        check_token(token_file)
    source = {
        "namesrv": namesrv,
        "store": store,
        "brokers": brokers,
        "tokenFile": str(token_file) if token_file and remote else "",
        "tlsCa": str(tls_ca) if tls_ca and remote else "",
        "messageDelayLevel": message_delay_level,
    }
    named = {name: value for name, value in source.items() if value} if live else {}
    try:
        with raised_signals():
            _sql(
                lake,
                statement,
                _Asked(engine, master, named, as_of, bounds, strict, write),
                Form(form, escape),
            )
    except KeyboardInterrupt as stopped:
        fail("interrupted", _status(stopped))


class _Asked(NamedTuple):
    """What is to answer, and what its tables are to show; `source` has options of the data source."""

    engine: str
    master: str
    source: dict[str, str]
    as_of: str
    limits: Limits
    strict: bool
    write: bool


def _sql(lake: str, statement: str | None, asked: _Asked, form: Form) -> None:
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
                run_input(opened)
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
    from structured_streaming.embedded.connecting import connecting

    loading = connecting(lake)
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
        _tell,
        strict=asked.strict,
        stuck=None if hosted else give_up,
        loading=loading,
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

    unions: list[UnionTables] = []

    def start() -> SparkSession:
        if not asked.source:
            return lake_session(lake, asked.master, _tell, asked.as_of)
        session, tables = union_session(lake, asked.source, asked.master, _tell)
        unions.append(tables)
        return session

    try:
        session = started(start)
        yield of_spark(session, form, unions[0] if unions else None, write=asked.write)
    finally:
        for tables in unions:
            tables.close()


def _status(stopped: KeyboardInterrupt) -> int:
    """What a command answers that a signal ended; Signalled and Abandoned know which."""
    status: int = getattr(stopped, "status", 128 + signal.SIGINT)
    return status


def _tell(line: str) -> None:
    """On standard error: results and JSON are on the other."""
    warn([line])
