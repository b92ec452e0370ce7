"""`lakebroker lake retention`, `lake retire` and the like: what operators decide about a lake. Without Spark, unless a catalog has the
tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.extras import need, need_lake
from broker_gateway.cli.lake_options import Lake
from broker_gateway.cli.output import fail, lines, show, warn
from broker_gateway.cli.signals import raised_signals, status_of
from broker_gateway.cli.spark_session import Master, session_of
from store.counting import counted
from structured_streaming.extras import LAKE

if TYPE_CHECKING:
    from collections.abc import Callable

    from structured_streaming.maintenance.decisions import Decisions

_RETENTION = """Shows how long messages stay in a lake, by topic, or decides it anew: RULES are PATTERN=TIME, divided by commas.

The first rule that fits a topic's name counts; * in it stands for any text. A topic that no rule fits keeps its messages for ever. A time is in days, weeks or years of 365 days (30d, 2w, 10y), or `forever`. A message goes by when it was stored, in steps of a sixteenth of its rule's time, at least a day: 30d means 30 to 31 days, 1y 365 to 387.

The rules are kept in the lake, and every `lakebroker maintain` goes by them. Nothing is removed by this command; `lakebroker maintain --dry-run` says what would go. What was removed is gone: a rule that is made longer brings nothing back.

* fits the broker's own topics, too: retries (%RETRY%…), dead letters (%DLQ%…), and messages that wait for their time, which stay until then.

Examples:

  lakebroker lake retention --lake ./lake

  lakebroker lake retention 'orders=30d,audit-*=10y,*=1y' --lake ./lake

  lakebroker lake retention --forever --lake ./lake
"""
_RETIRE = """Has views and unions leave a broker out that is gone for good. Its rows stay in the tables; unretire shows it again.

Examples:

  lakebroker lake retire broker-a --lake ./lake

  lakebroker lake unretire broker-a --lake ./lake
"""
_UNRETIRE = """Has views and unions show a broker again that was retired.

Example:

  lakebroker lake unretire broker-a --lake ./lake
"""
_BROKERS = """Lists the brokers that a lake has rows of, how many logs each had, and since when it is retired.

Example:

  lakebroker lake brokers --lake ./lake --json
"""
_COPY = """Makes a copy of a lake: a backup, or the lake at another place. It may run beside the reput and maintenance.

The copy is consistent: what its progress says is in all of its tables. Called again, it takes over what is new, and removes what the lake has no more; when it was stopped on the way, it goes on. Between folders of one file system data files are shared (hard links), which costs no space; a backup against a lost disk belongs on another one. --check reads the whole copy at the end, as `lakebroker lake check` does.

The target is empty, or an earlier copy of the same lake to which nobody wrote since. To go on with a copy, give it as --lake to a reput: it reads from where the logs were when the copy was made. Segments that expired since are missing then, which the reput says (--on-gap).

Examples:

  lakebroker lake copy --lake ./lake --to /backup/lake

  lakebroker lake copy --lake ./lake --to s3://backups/lake --check

  lakebroker lake copy --lake s3://backups/lake --to ./lake
"""
Broker = Annotated[str, typer.Argument(help="Name of the broker, as the lake has it")]


def register(lake: typer.Typer) -> None:
    """Adds the commands to those of `lakebroker lake`."""
    lake.command("retention", help=_RETENTION)(retention)
    lake.command("retire", help=_RETIRE)(retire)
    lake.command("unretire", help=_UNRETIRE)(unretire)
    lake.command("brokers", help=_BROKERS)(brokers)
    lake.command("copy", help=_COPY)(copy)


def retention(
    lake: Lake,
    rules: Annotated[str | None, typer.Argument(help="Such as orders=30d,audit-*=10y,*=1y")] = None,
    forever: Annotated[bool, typer.Option("--forever", help="No rules: all messages stay")] = False,
    master: Master = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    from structured_streaming.retention_rules import RulesError, parsed

    if forever and rules is not None:
        fail(f"{rules} and --forever: give one of them", 2)
    if rules is not None and not rules.strip():
        fail("no rule is given; write such as orders=30d, or --forever for no rules", 2)
    try:
        parsed(rules or "")
    except RulesError as error:
        fail(str(error), 2)

    def run(decisions: Decisions) -> None:
        if rules is not None or forever:
            changed = decisions.set_retention("" if forever else rules or "")
            if not changed:
                warn(["these rules are in force already"])
        found, bounds = decisions.retention()
        columns = ("topics", "keep", "removes_before")
        shown = [
            {
                "topics": rule.pattern,
                "keep": rule.time,
                "removes_before": f"{bound:%Y-%m-%d}" if (bound := bounds.by_pattern[rule.pattern]) else None,
            }
            for rule in found.rules
        ]
        if shown or as_json:
            show(shown, columns, as_json)
        else:
            typer.echo("all messages stay for ever")

    _decide("lake retention", lake, master, run)


def retire(lake: Lake, broker: Broker, master: Master = "") -> None:
    def run(decisions: Decisions) -> None:
        if decisions.retire(broker):
            typer.echo(
                lines(
                    f"broker {broker} is retired: views and unions leave its rows out, which stay in the tables"
                )
            )
        else:
            warn([f"broker {broker} is retired already"])

    _decide("lake retire", lake, master, run)


def unretire(lake: Lake, broker: Broker, master: Master = "") -> None:
    def run(decisions: Decisions) -> None:
        if decisions.unretire(broker):
            typer.echo(lines(f"broker {broker} is in views and unions again"))
        else:
            warn([f"broker {broker} is not retired"])

    _decide("lake unretire", lake, master, run)


def brokers(
    lake: Lake,
    master: Master = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    def run(decisions: Decisions) -> None:
        found = decisions.brokers()
        form = "%Y-%m-%dT%H:%M:%SZ" if as_json else "%Y-%m-%d %H:%M:%S"
        rows = [
            {
                "broker": each.name,
                "logs": each.logs,
                "retired": None if each.retired is None else f"{each.retired:{form}}",
            }
            for each in found
        ]
        if rows or as_json:
            show(rows, ("broker", "logs", "retired"), as_json)
        else:
            typer.echo(f"{counted(0, 'broker')}: the lake holds no batch yet")

    _decide("lake brokers", lake, master, run)


def copy(
    lake: Lake,
    to: Annotated[str, typer.Option(help="Where the copy is, or is made: a folder, or s3://bucket/lake")],
    links: Annotated[
        bool, typer.Option("--links/--no-links", help="Share data files where both are on one file system")
    ] = True,
    checks: Annotated[bool, typer.Option("--check", help="Check the copy at the end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    need("lake copy", LAKE)
    from structured_streaming.errors import LakeError
    from structured_streaming.maintenance.check import check_lake
    from structured_streaming.maintenance.copying import copy_lake

    problems: list[str] = []
    try:
        with raised_signals():
            report = copy_lake(lake, to, links=links)
            if checks:
                problems = [
                    f"{found.what}: {problem}" for found in check_lake(to) for problem in found.problems
                ]
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail(f"stopped by {stopped}; call it again, it goes on", status_of(stopped))
    warn(problems)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "problems": len(problems)}))
    else:
        shared = f", {report.shared:,} of them shared" if report.shared else ""
        typer.echo(
            f"{counted(report.files, 'file')} of {report.bytes:,} bytes taken over{shared}; {report.kept:,} were there, "
            f"{report.removed:,} removed"
        )
        if checks and not problems:
            typer.echo("the copy was checked: all of it checks out")
    if problems:
        raise typer.Exit(1)


def _decide(command: str, lake: str, master: str, run: Callable[[Decisions], None]) -> None:
    need_lake(command, lake)
    from structured_streaming.errors import LakeError
    from structured_streaming.maintenance.decisions import Decisions

    try:
        with raised_signals():
            run(Decisions(lake, lambda: session_of(master), lambda line: warn([line])))
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail(f"stopped by {stopped}", status_of(stopped))
