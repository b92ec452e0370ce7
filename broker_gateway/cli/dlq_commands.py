"""`lakebroker dlq …`: a group's dead letters, looked at and sent again."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_gateway.cli import replay_outcomes
from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    AsJson,
    Gateway,
    GatewayCalls,
    TlsCa,
    TokenFile,
    connected,
)
from broker_gateway.cli.new_messages import end_transaction, send_message
from broker_gateway.cli.output import counted, fail, limited, lines, warn
from broker_gateway.cli.questions.asked import Gateway as AskedGateway
from broker_gateway.cli.questions.asked import Lake, NameServers, Strict, asked, opened
from broker_gateway.cli.questions.letters import Choice, id_before, ids_of, letters, queues_of, topic_before
from broker_gateway.cli.questions.rows import DEAD_LETTERS, print_rows
from broker_gateway.cli.units import check_texts, moment

_OUTCOMES = ["origin_message_id", "topic", "outcome", "new_message_id"]
REPLAYED = "REPLAY_OF"
"""A property of what is sent again: the id of the message that became the dead letter."""

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
        sender = _Sender(calls, rate, dry_run)
        with replay_outcomes.opened(outcomes, group, resume=resume, dry_run=dry_run) as kept:
            for message in letters(calls, group, queues, choice):
                unknown -= ids_of(message)
                if _key(message) in kept.sent:
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


class _Sender:
    """Sends dead letters where they came from, so many a second at most. Behind one that fails, those of its message group or lite topic are
    held back, since they would come before it."""

    def __init__(self, calls: GatewayCalls, rate: float, dry_run: bool) -> None:
        self._calls = calls
        self._pause_s = 1 / rate
        self._dry_run = dry_run
        self._next_s = 0.0
        self._held_by: dict[tuple[str, str, str], str] = {}
        """Ids of messages that failed, by topic, and what is in order within it: `message group` or `lite topic`, and its name."""

    def send(self, message: Any) -> dict[str, Any]:
        """What became of one."""
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        queue_id, offset, origin_id = _key(message)
        origin, system = topic_before(message), message.system_properties
        row = {
            "dlq_queue_id": queue_id,
            "dlq_queue_offset": offset,
            "origin_message_id": origin_id,
            "topic": origin,
            "outcome": "would be sent",
            "new_message_id": "",
        }
        if not origin:
            return row | {"outcome": "failed: it does not say where it came from"}
        if self._dry_run:
            return row
        order = next((each for each in ("message_group", "lite_topic") if system.HasField(each)), "")
        kind = order.replace("_", " ")
        place = (origin, kind, getattr(system, order) if order else "")
        held_by = self._held_by.get(place)
        if held_by is not None:
            return row | {"outcome": f"failed: held back by {held_by} of its {kind}"}
        time.sleep(max(self._next_s - time.monotonic(), 0))
        self._next_s = time.monotonic() + self._pause_s
        new = _again(message, origin, origin_id)
        answer = send_message(self._calls, new)
        if answer.status.code != pb.OK:
            if order:
                self._held_by[place] = origin_id
            return row | {"outcome": _refused(answer.status)}
        if new.system_properties.message_type == pb.TRANSACTION:
            ended = end_transaction(self._calls, new.topic, answer.entries[0], pb.COMMIT)
            if ended.status.code != pb.OK:
                return row | {"outcome": _refused(ended.status)}
        return row | {"outcome": replay_outcomes.SENT, "new_message_id": new.system_properties.message_id}


def _refused(status: Any) -> str:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    return lines(f"failed: {pb.Code.Name(status.code)} {status.message}")


def _again(message: Any, topic: str, origin_id: str) -> Any:
    """A new message with all that the sender gave the dead one, to be delivered at once."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    system = message.system_properties
    new = pb.Message(
        topic=pb.Resource(name=topic),
        user_properties={**message.user_properties, REPLAYED: origin_id},
        body=message.body,
        system_properties=pb.SystemProperties(
            keys=system.keys,
            body_encoding=system.body_encoding,
            message_type=_type(system),
        ),
    )
    for name in ("tag", "message_group", "trace_context", "priority", "lite_topic"):
        if system.HasField(name):
            setattr(new.system_properties, name, getattr(system, name))
    if new.system_properties.message_type == pb.DELAY:
        new.system_properties.delivery_timestamp.GetCurrentTime()
    return new


def _type(system: Any) -> Any:
    """The type that a dead letter's sender gave it, as far as what it has says so: its own type counts the DELAY property of
    every dead letter."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if system.HasField("message_group"):
        return pb.FIFO
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("lite_topic"):
        return pb.LITE
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.DELAY if system.HasField("delivery_timestamp") else pb.NORMAL


def _key(message: Any) -> replay_outcomes.Key:
    system = message.system_properties
    return system.queue_id, system.queue_offset, id_before(message)


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
