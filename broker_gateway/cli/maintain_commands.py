"""`lakebroker maintain`, `lake check`: a lake kept small, and looked at. Without Spark, unless a catalog has the tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.lake_commands import Lake
from broker_gateway.cli.output import counted, fail, warn
from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.units import seconds, size

if TYPE_CHECKING:
    from structured_streaming.maintenance.check import Findings
    from structured_streaming.maintenance.reports import TableReport

_MAINTAIN = """Puts small files of the lake's tables together, and removes files and log that nobody needs any more.

It may run beside the reput and at any time; rows stay as they are. A table that was altered so that it cannot be maintained is left as it is, with the reason on standard error, and the exit status is 1; the others have their turn.

ctrl-C or SIGTERM stops it; nothing is lost, and the next run goes on. With --every it then ends with status 0.

Examples:

  lakebroker maintain --lake ./lake

  lakebroker maintain --lake ./lake --every 5m --target-file-size 128MiB

  lakebroker maintain --lake spark_catalog.lake
"""
_CHECK = """Checks that a lake is whole; the exit status is 1 when something is wrong.

Of every table: its files are there, with the rows and within the limits that the table's log states; no row key is there twice. Of the progress: every batch begins where the one before it ended. With --store: each record of the log, as far as the lake says that it holds it, has its rows, and no others are there.

It may run beside the reput and maintenance.

Examples:

  lakebroker lake check --lake ./lake

  lakebroker lake check --lake ./lake --store /var/lib/lakebroker --json
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("maintain", help=_MAINTAIN)(maintain)
    lake = typer.Typer(help="Look into a lake.", no_args_is_help=True)
    lake.command("check", help=_CHECK)(check)
    app.add_typer(lake, name="lake")


def maintain(
    lake: Lake,
    target_file_size: Annotated[
        str, typer.Option(help="Bytes of a file; smaller ones are put together")
    ] = "64MiB",
    retain: Annotated[
        str,
        typer.Option(
            help="How long files stay that no version of their table has any more, 1h to 7d: longer than any query or "
            "batch takes"
        ),
    ] = "7d",
    every: Annotated[str, typer.Option(help="Go on, and begin again after this time, such as 5m")] = "",
    master: Annotated[str, typer.Option(help="Spark master, for a catalog")] = "local[2]",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each table")] = False,
) -> None:
    _need_deltalake()
    from structured_streaming.errors import LakeError
    from structured_streaming.maintenance.vacuum import LEAST_RETAIN_S, MOST_RETAIN_S

    target, retain_s = size("--target-file-size", target_file_size), seconds("--retain", retain)
    pause = seconds("--every", every) if every else 0.0
    if every and pause < 1:
        fail(f"--every {every}: give at least 1s, or leave it out to end after one round", 2)
    if not LEAST_RETAIN_S <= retain_s <= MOST_RETAIN_S:
        fail(
            f"--retain {retain}: give 1h to 7d; a batch may be about to commit younger files, and tables know for a week "
            "which files they removed when",
            2,
        )
    try:
        with raised_signals():
            run = _maintainer(lake, master)
            while True:
                reports = run(target, retain_s, lambda report: _show(report, as_json))
                if not pause:
                    break
                time.sleep(pause)
    except LakeError as error:
        fail(str(error))
    except Signalled as stopped:
        said = f"stopped by {stopped}"
        if not pause:
            fail(f"{said}; the next run goes on", stopped.status)
        warn([said])
        return
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _maintainer(lake: str, master: str) -> Callable[..., list[TableReport]]:
    """The function that maintains this lake; it takes the file size in bytes, the retention in seconds and a callback.

    Raises LakeError."""
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.maintenance.maintain import maintain as run

    schema = catalog_schema(lake)
    if schema is None:
        return partial(run, lake)
    from structured_streaming.interruptible import started
    from structured_streaming.jvm_output import STARTING
    from structured_streaming.maintenance.in_catalog import maintain_schema
    from structured_streaming.sql import delta_session

    warn([STARTING])
    return partial(maintain_schema, started(lambda: delta_session(master, catalogs=True)), schema)


def check(
    lake: Lake,
    store: Annotated[str, typer.Option(help="Folders of stores on this machine, divided by commas")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    _need_deltalake()
    from structured_streaming.errors import LakeError
    from structured_streaming.maintenance.check import check_lake

    stores = [part.strip() for part in store.split(",") if part.strip()]
    try:
        with raised_signals():
            found = check_lake(lake, stores, lambda findings: None if as_json else _show_findings(findings))
    except LakeError as error:
        fail(str(error))
    except Signalled as stopped:
        fail(f"stopped by {stopped} before everything was checked", stopped.status)
    problems = sum(len(findings.problems) for findings in found)
    if as_json:
        rows = [
            {"what": each.what, "files": each.files, "rows": each.rows, "problems": each.problems}
            for each in found
        ]
        typer.echo(json.dumps({"checked": rows, "problems": problems}))
    else:
        typer.echo(counted(problems, "problem") if problems else "all of it checks out")
    if problems:
        raise typer.Exit(1)


def _show(report: TableReport, as_json: bool) -> None:
    warn(report.problems)
    if as_json:
        row = {
            "table": report.table,
            "files_before": report.files_before,
            "files_after": report.files_after,
            "rewritten_files": report.rewritten_files,
            "rewritten_bytes": report.rewritten_bytes,
            "removed_files": report.removed.files,
            "removed_bytes": report.removed.bytes,
            "problems": report.problems,
        }
        typer.echo(json.dumps(row))
        return
    said = f"{report.table}: {counted(report.files_before, 'file')}"
    if report.rewritten_files:
        said += f", now {report.files_after:,}; {report.rewritten_bytes:,} bytes rewritten"
    if report.removed.files:
        said += f"; {counted(report.removed.files, 'old file')} removed, {report.removed.bytes:,} bytes"
    typer.echo(said)


def _show_findings(findings: Findings) -> None:
    if findings.files:
        typer.echo(f"{findings.what}: {counted(findings.files, 'file')}, {counted(findings.rows, 'row')}")
    else:
        typer.echo(f"{findings.what}: {counted(len(findings.problems), 'problem')}")
    warn(f"{findings.what}: {problem}" for problem in findings.problems)


def _need_deltalake() -> None:
    try:
        import deltalake
        import pyarrow
    except ModuleNotFoundError as error:
        fail(
            f"{error.name} is not installed; install the extra 'spark' of lakebroker: pip install '.[spark]' in its "
            "source folder"
        )
    del deltalake, pyarrow
