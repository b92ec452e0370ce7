"""`lakebroker maintain`, `lake check`: a lake kept small, and looked at. Without Spark, unless a catalog has the tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli import upkeep_commands
from broker_gateway.cli.extras import need, need_lake
from broker_gateway.cli.lake_options import Lake
from broker_gateway.cli.output import fail, show, warn
from broker_gateway.cli.registry_options import (
    RegistryTlsCa,
    RegistryTokenFile,
    RegistryUrl,
    RegistryUserFile,
    registry_access,
)
from broker_gateway.cli.signals import raised_signals, status_of
from broker_gateway.cli.spark_session import Master, session_of
from broker_gateway.cli.units import seconds, size
from store.counting import counted
from structured_streaming.extras import LAKE

if TYPE_CHECKING:
    from structured_streaming.maintenance.check import Findings
    from structured_streaming.maintenance.reports import TableReport
    from structured_streaming.registry.access import RegistryAccess

_MAINTAIN = """Removes what is left of erased messages (`lakebroker erase`), and messages whose time has run out, puts small files of the lake's tables together, and removes files and log that nobody needs any more.

How long messages stay is kept in the lake (`lakebroker lake retention`); without rules they stay for ever, and rows stay as they are. Rows of consume_queue, of message_index and of typed tables go with their messages; the last row of each queue stays, since it says where the queue ends. Offsets, deliveries and statistics are not touched. --dry-run says what would go.

It may run beside the reput and at any time. A table that was altered so that it cannot be maintained is left as it is, with the reason on standard error, and the exit status is 1; the others have their turn. A typed table that lacks so much that the reput put it off (`lakebroker typed list` says filling) is filled, for up to ten minutes of a run; where its schema registry wants credentials, give --registry and their file. In a catalog it is said, and `lakebroker typed fill` fills it. Of a typed table that is damaged the topic's messages stay, those of other topics go.

With --iceberg, the lake also has an Iceberg mirror in its folder _iceberg, which shows each table as it was at its turn: the same files, Iceberg's metadata beside. Once it is there, every run keeps it up, with or without the option, since an old one would go on answering with what was; --no-iceberg removes it. It is not for tables in a catalog.

ctrl-C or SIGTERM stops it; nothing is lost, and the next run goes on. With --every it then ends with status 0.

Examples:

  lakebroker maintain --lake ./lake

  lakebroker maintain --lake ./lake --every 5m --target-file-size 128MiB

  lakebroker maintain --lake ./lake --every 5m --iceberg

  lakebroker maintain --lake ./lake --dry-run

  lakebroker maintain --lake spark_catalog.lake
"""
_CHECK = """Checks that a lake is whole; the exit status is 1 when something is wrong.

Of every table: its files are there, with the rows and within the limits that the table's log states; no row key is there twice. Of the progress: every batch begins where the one before it ended. With --store: each record of the log, as far as the lake says that it holds it, has its rows, and no others are there.

It may run beside the reput and maintenance.

Examples:

  lakebroker lake check --lake ./lake

  lakebroker lake check --lake ./lake --store /var/lib/lakebroker/store --json
"""
_REMEDY = (
    "a file that is damaged or gone comes back from a copy of the lake (`lake copy`) that has it; else the remedy is a new lake, "
    "by `lakebroker reput --once` into another location, as far back as the logs reach"
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("maintain", help=_MAINTAIN)(maintain)
    lake = typer.Typer(help="Look into a lake, and decide how it is kept.", no_args_is_help=True)
    lake.command("check", help=_CHECK)(check)
    upkeep_commands.register(lake)
    app.add_typer(lake, name="lake")


def maintain(
    lake: Lake,
    target_file_size: Annotated[
        str, typer.Option(help="Bytes of a file; smaller ones are put together")
    ] = "64MiB",
    retain: Annotated[
        str,
        typer.Option(
            help="How long files stay that no version of their table has any more: 1h to 1d, in a catalog 1h to 7d. Without the option "
            "as long as they may",
            show_default=False,
        ),
    ] = "",
    iceberg: Annotated[
        bool | None,
        typer.Option(
            "--iceberg/--no-iceberg",
            help="Make an Iceberg mirror of the tables, or remove it; without: one that is there is kept up",
            show_default=False,
        ),
    ] = None,
    every: Annotated[str, typer.Option(help="Go on, and begin again after this time, such as 5m")] = "",
    master: Master = "",
    registry: RegistryUrl = "",
    registry_token_file: RegistryTokenFile = None,
    registry_user_file: RegistryUserFile = None,
    registry_tls_ca: RegistryTlsCa = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which messages retention would remove, and change nothing")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each table")] = False,
) -> None:
    need_lake("maintain", lake)
    from structured_streaming.errors import LakeError

    target = size("--target-file-size", target_file_size)
    pause = seconds("--every", every) if every else 0.0
    if every and pause < 1:
        fail(f"--every {every}: give at least 1s, or leave it out to end after one round", 2)
    if dry_run and every:
        fail("--every and --dry-run: a dry run is one look; leave one of them out", 2)
    access = registry_access(registry, registry_token_file, registry_user_file, registry_tls_ca)
    try:
        retain_s = _retain_s(lake, retain)
        access.check()
        with raised_signals() as came:
            if dry_run:
                _dry_run(lake, master, as_json)
                return
            run = _maintainer(lake, master, iceberg, access)
            while True:
                reports = run(target, retain_s, lambda report: _show(report, as_json))
                if came or not pause:  # a table's problem may be a library's word for a signal
                    break
                time.sleep(pause)
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        said = f"stopped by {stopped}"
        if not pause:
            fail(f"{said}; the next run goes on", status_of(stopped))
        warn([said])
        return
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _retain_s(lake: str, retain: str) -> float:
    """How long files stay. What is longer than tables tell is cut, and said: it may stand in a configuration that was right once.

    Raises LakeError."""
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.maintenance.vacuum import LEAST_RETAIN_S, MOST_IN_CATALOG_S, MOST_RETAIN_S

    most, words = (MOST_RETAIN_S, "1d") if catalog_schema(lake) is None else (MOST_IN_CATALOG_S, "7d")
    asked = seconds("--retain", retain) if retain else most
    if asked < LEAST_RETAIN_S:
        fail(f"--retain {retain}: give 1h to {words}; a batch may be about to commit younger files", 2)
    if asked > most:
        warn([f"--retain {retain}: they stay for {words}; tables do not tell for longer when a file went"])
    return min(asked, most)


def _maintainer(
    lake: str, master: str, mirrored: bool | None, registry: RegistryAccess
) -> Callable[..., list[TableReport]]:
    """The function that maintains this lake; it takes the file size in bytes, the retention in seconds and a callback.

    Raises LakeError."""
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.maintenance.maintain import maintain as run

    schema = catalog_schema(lake)
    if schema is None:
        return partial(run, lake, mirrored=mirrored, registry=registry)
    if mirrored is not None:
        fail(
            f"--{'' if mirrored else 'no-'}iceberg: {lake} is a schema of a catalog, whose tables have no Iceberg mirror; where it "
            "can, the catalog shows them to Iceberg's clients itself. A mirror is of a lake in a folder or an object store",
            2,
        )
    from structured_streaming.maintenance.in_catalog import maintain_schema

    return partial(maintain_schema, session_of(master), schema)


def _dry_run(lake: str, master: str, as_json: bool) -> None:
    """Raises LakeError; exits with 1 where something could not be looked at."""
    from structured_streaming.catalog.names import catalog_schema

    now, schema = datetime.now(UTC), catalog_schema(lake)
    if schema is None:
        from structured_streaming.lake import open_lake
        from structured_streaming.maintenance.retention import expire

        reports = expire(open_lake(lake), now, dry=True)
    else:
        from structured_streaming.maintenance.in_catalog import expire_schema

        reports = expire_schema(session_of(master), schema, now, dry=True)
    rows = [
        {"table": report.table, "topic": topic, "files": its.files, "rows": its.rows, "bytes": its.bytes}
        for report in reports
        for topic, its in sorted(report.retention.topics.items())
    ]
    warn(problem for report in reports for problem in report.problems)
    if rows or as_json:
        show(rows, ("table", "topic", "files", "rows", "bytes"), as_json)
    else:
        typer.echo("no message's time has run out")
    if not as_json:
        for report in reports:
            its = report.retention
            if its.dropped.files or its.rewritten.files:
                typer.echo(
                    f"{report.table}: {counted(its.dropped.files, 'file')} of {its.dropped.bytes:,} bytes would go as a whole, "
                    f"{its.rewritten.files:,} of {its.rewritten.bytes:,} be written anew"
                )
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def check(
    lake: Lake,
    store: Annotated[str, typer.Option(help="Folders of stores on this machine, divided by commas")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    need("lake check", LAKE)
    from structured_streaming.errors import LakeError
    from structured_streaming.maintenance.check import check_lake

    stores = [part.strip() for part in store.split(",") if part.strip()]
    try:
        with raised_signals():
            found = check_lake(lake, stores, lambda findings: None if as_json else _show_findings(findings))
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail(f"stopped by {stopped} before everything was checked", status_of(stopped))
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
        warn([_REMEDY])
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
            "filled_rows": report.filled_rows,
            "erased_rows": report.erased_rows,
            "expired_rows": report.retention.rows,
            "expired": {
                topic: {"files": its.files, "rows": its.rows, "bytes": its.bytes}
                for topic, its in report.retention.topics.items()
            },
            "waits": report.waits,
            "problems": report.problems,
        }
        if report.mirror is not None:
            row["iceberg"] = asdict(report.mirror)
        typer.echo(json.dumps(row))
        return
    said = f"{report.table}: {counted(report.files_before, 'file')}"
    if gone := report.retention.rows:
        topics = counted(len(report.retention.topics), "topic")
        said = f"{report.table}: {counted(gone, 'row')} of {topics} expired; {counted(report.files_before, 'file')}"
    if report.filled_rows:
        said = f"{report.table}: {counted(report.filled_rows, 'row')} of what it lacked added; {counted(report.files_before, 'file')}"
    if report.erased_rows:
        said = f"{report.table}: {counted(report.erased_rows, 'row')} of erased messages removed; {counted(report.files_before, 'file')}"
    if report.rewritten_files:
        said += f", now {report.files_after:,}; {counted(report.rewritten_bytes, 'byte')} rewritten"
    if report.removed.files:
        said += f"; {counted(report.removed.files, 'old file')} removed, {report.removed.bytes:,} bytes"
    typer.echo(said)
    for each in report.waits:
        typer.echo(f"  {each}")
    if (mirror := report.mirror) is not None:
        anew = f"; made as a whole, since {mirror.anew}" if mirror.anew else ""
        typer.echo(
            f"  Iceberg snapshot {mirror.snapshot} shows version {mirror.delta_version:,}: "
            f"{counted(mirror.added_files, 'file')} added, {mirror.removed_files:,} removed{anew}"
        )


def _show_findings(findings: Findings) -> None:
    done = "the log was compared with the tables"
    if not findings.is_log:
        done = f"{counted(findings.files, 'file')}, {counted(findings.rows, 'row')}"
    wrong = f"; {counted(len(findings.problems), 'problem')}" if findings.problems else ""
    typer.echo(f"{findings.what}: {done}{wrong}")
    warn(f"{findings.what}: {problem}" for problem in findings.problems)
