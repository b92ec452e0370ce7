"""`lakebroker reput`: the lake built from commit logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_gateway.cli.extras import need_spark
from broker_gateway.cli.gateway_calls import check_token
from broker_gateway.cli.lake_options import AnyMaster, Lake, MessageDelayLevel, TlsCa, TokenFile
from broker_gateway.cli.output import fail, say_at_once, tell
from broker_gateway.cli.registry_options import (
    RegistryTlsCa,
    RegistryTokenFile,
    RegistryUrl,
    RegistryUserFile,
    registry_access,
)
from broker_gateway.cli.signals import raised_signals, status_of
from broker_gateway.cli.units import seconds, size
from store.counting import counted

if TYPE_CHECKING:
    from structured_streaming.reput_metrics import ReputMetrics
    from structured_streaming.reput_watch import Watch

_HELP = """Builds the lake from commit logs; runs until it is stopped, or once.

ctrl-C or SIGTERM stops it when a commit under way has ended; a second one stops it at once. The next run goes on where the lake ends.

Examples:

  lakebroker reput --brokers 127.0.0.1:8081 --lake ./lake

  lakebroker reput --namesrv 'ns-a:9876;ns-b:9876' --tls-ca ca.pem --token-file token --lake ./lake

  lakebroker reput --store /var/lib/lakebroker/store --lake ./lake --once

  SPARK_CONF_DIR=./conf lakebroker reput --brokers 127.0.0.1:8081 --lake spark_catalog.lake
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("reput", help=_HELP)(reput)


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
    message_delay_level: MessageDelayLevel = "",
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
    master: AnyMaster = "",
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
    say_at_once(f"starting the reput from {brokers or namesrv or store} into {lake}")
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
            run_reput(options, on_batch, master, tell=tell, driver_host=driver_host, watch=watch)
    except StoppedError as error:
        fail(str(error), 128 + error.number)
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        said = f"stopped by {stopped} before it began to read"
        if once:
            fail(f"{said}; run it again", status_of(stopped))
        tell(said)


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
    tell(f"metrics at http://{shown}:{server.server_port}/metrics")
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
