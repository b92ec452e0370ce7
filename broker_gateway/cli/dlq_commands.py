"""`lakebroker dlq …`: a group's dead letters, looked at and sent again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_gateway.cli import replay_outcomes
from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    AsJson,
    Gateway,
    TlsCa,
    TokenFile,
    connected,
)
from broker_gateway.cli.output import fail, limited, lines, warn
from broker_gateway.cli.questions.asked import Gateway as AskedGateway
from broker_gateway.cli.questions.asked import Lake, NameServers, Strict, asked, opened
from broker_gateway.cli.questions.letters import Choice, ids_of, letters, queues_of
from broker_gateway.cli.questions.printing import print_rows
from broker_gateway.cli.questions.rows import DEAD_LETTERS
from broker_gateway.cli.replaying import Sender, key_of
from broker_gateway.cli.units import check_texts, moment
from store.counting import counted

_OUTCOMES = ["origin_message_id", "topic", "outcome", "new_message_id"]

Group = Annotated[str, typer.Argument(help="The consumer group that gave the messages up")]
Filter = Annotated[
    str, typer.Option("--filter", help="SQL92 filter over properties, such as \"region = 'north'\"")
]
Topic = Annotated[str, typer.Option("--topic", help="Only messages that were sent to this topic")]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", help="Only the message with this id, its own or the one before it died; may be repeated"
    ),
]
Since = Annotated[
    str, typer.Option(help="Only what is dead since this time, ISO 8601 (UTC where it names no zone)")
]
Until = Annotated[str, typer.Option(help="Only what died before this time")]


def register(app: typer.Typer) -> None:
    """Adds the command group `dlq`."""
    settings = {"help_option_names": ["-h", "--help"]}
    dlq = typer.Typer(
        help="Dead letters: messages whose attempts are used up.",
        no_args_is_help=True,
        context_settings=settings,
    )
    dlq.command(
        "list",
        help="Lists the dead letters of a group, or of all, oldest first.\n\nBy --lake with the queue and offset where each was before it "
        "died, why, and after how many attempts; "
        "--gateway beside it adds what is newer.\n\nExamples: lakebroker dlq list billing --lake ./lake; lakebroker dlq list "
        "billing --gateway broker-host:8081 --filter \"region = 'north'\"",
    )(list_dead_letters)
    dlq.command(
        "replay",
        help="Sends a group's dead letters to the topics that they came from, as new messages.\n\nA dead letter stays where it "
        "is, and is sent again by the next replay, unless that goes on with this one's outcomes.\n\nExamples: lakebroker dlq "
        "replay billing --since 2026-11-25T08:00 --rate 50 --dry-run; lakebroker dlq replay billing --outcomes billing.jsonl; "
        "then, for those that could not be sent and those that came since: lakebroker dlq replay billing --outcomes "
        "billing.jsonl --resume",
    )(replay_dead_letters)
    app.add_typer(dlq, name="dlq")


def list_dead_letters(
    group: Annotated[
        str, typer.Argument(help="The consumer group that gave the messages up; none: all")
    ] = "",
    expression: Filter = "",
    topic: Topic = "",
    ids: Ids = None,
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option(min=1, help="List so many at most")] = 100,
    body: Annotated[
        bool,
        typer.Option("--body", help="Show whole bodies, not their beginnings; JSON always has them whole"),
    ] = False,
    lake: Lake = "",
    gateway: AskedGateway = "",
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    choice = _choice(group, expression, topic, ids, since, until)
    with opened(asked(lake, gateway, namesrv, token_file, tls_ca, strict)) as answers:
        rows = answers.dead_letters(group, choice, limit + 1)
        if not rows and (why := answers.nothing_read()):
            warn([why])
    if len(rows) > limit:
        warn([limited("first", limit, "dead letter")])
    print_rows(
        rows[:limit], DEAD_LETTERS, as_json=as_json, whole=body, said=["consumer_group"] if group else []
    )


def replay_dead_letters(
    group: Group,
    expression: Filter = "",
    topic: Topic = "",
    ids: Ids = None,
    since: Since = "",
    until: Until = "",
    rate: Annotated[float, typer.Option(min=0.01, help="Messages a second, at most")] = 100.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing")
    ] = False,
    outcomes: Annotated[
        Path | None, typer.Option(help="File that gets what became of each message, a JSON line each")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Leave out those that the file of --outcomes calls sent, and add to it"
        ),
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    choice = _choice(group, expression, topic, ids, since, until)
    if resume and outcomes is None:
        fail("--resume goes on with a replay by its outcomes: name their file with --outcomes", 2)
    counts: Counter[bool] = Counter()
    unknown = set(choice.ids)
    with connected(gateway, token_file, tls_ca) as calls:
        queues = queues_of(calls, group)
        sender = Sender(calls, rate, dry_run)
        with replay_outcomes.opened(outcomes, group, resume=resume, dry_run=dry_run) as kept:
            for message in letters(calls, group, queues, choice):
                unknown -= ids_of(message)
                if key_of(message) in kept.sent:
                    continue
                outcome = sender.send(message)
                kept.add(outcome)
                _tell(outcome, as_json)
                counts[_failed(outcome)] += 1
    if not as_json:
        what = "would be sent" if dry_run else "sent"
        typer.echo(f"{counted(counts[False], 'dead letter')} {what}")
    if counts[True]:
        remedy = "the same with --resume" if outcomes is not None else "a replay with --id"
        fail(f"{counted(counts[True], 'dead letter')} could not be sent; {remedy} sends them again")
    if unknown:
        fail(
            f"no dead letter of {group} that was chosen has the id {', '.join(sorted(unknown))}; "
            f"`lakebroker dlq list {group}` shows the ids"
        )


def _choice(group: str, expression: str, topic: str, ids: list[str] | None, since: str, until: str) -> Choice:
    check_texts(group, expression, topic, *(ids or ()))
    return Choice(expression, topic, frozenset(ids or ()), moment("--since", since), moment("--until", until))


def _failed(outcome: dict[str, Any]) -> bool:
    return outcome["outcome"] not in (replay_outcomes.SENT, "would be sent")


def _tell(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(outcome))
    else:
        typer.echo(lines("  ".join(str(outcome[name]) for name in _OUTCOMES if outcome[name])))
