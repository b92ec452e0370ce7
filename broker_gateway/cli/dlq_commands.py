"""`lakebroker dlq …`: a group's dead letters, looked at and sent again."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
from broker_gateway.cli.output import body_row, counted, fail, lines, show, warn
from broker_gateway.cli.units import moment

_BATCH = 32
_COLUMNS = ["queue", "offset", "message_id", "topic", "tag", "keys", "dead_since", "body"]
_OUTCOMES = ["message_id", "topic", "outcome", "new_message_id"]
REPLAYED = "REPLAY_OF"
"""A property of what is sent again: the id of the message that became the dead letter."""

Group = Annotated[str, typer.Argument(help="The consumer group that gave the messages up")]
Filter = Annotated[
    str, typer.Option("--filter", help="SQL92 filter over properties, such as \"region = 'north'\"")
]
Topic = Annotated[str, typer.Option("--topic", help="Only messages that were sent to this topic")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; may be repeated")]
Since = Annotated[
    str, typer.Option(help="Only what is dead since this time, ISO 8601 (UTC where it names no zone)")
]
Until = Annotated[str, typer.Option(help="Only what died before this time")]


class Choice(NamedTuple):
    """Which dead letters; empty or None: all."""

    expression: str
    topic: str
    ids: frozenset[str]
    since: datetime | None
    until: datetime | None

    def takes(self, message: Any) -> bool:
        """Whether a message of the dead-letter topic is one of them, as far as the broker has not looked at it."""
        system = message.system_properties
        dead_at = system.store_timestamp.ToDatetime(tzinfo=UTC)
        return (
            (not self.topic or _origin(message) == self.topic)
            and (not self.ids or _origin_id(message) in self.ids)
            and (self.since is None or dead_at >= self.since)
            and (self.until is None or dead_at < self.until)
        )


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
        help="Lists a group's dead letters, oldest first. Example: lakebroker dlq list billing --filter \"region = 'north'\"",
    )(list_dead_letters)
    dlq.command(
        "replay",
        help="Sends a group's dead letters to the topics that they came from, as new messages. A dead letter stays where it "
        "is, and is sent again by the next replay, unless that goes on with this one's outcomes. Examples: lakebroker dlq "
        "replay billing --since 2026-11-25T08:00 --rate 50 --dry-run; lakebroker dlq replay billing --outcomes billing.jsonl; "
        "then, for those that could not be sent and those that came since: lakebroker dlq replay billing --outcomes "
        "billing.jsonl --resume",
    )(replay_dead_letters)
    app.add_typer(dlq, name="dlq")


def list_dead_letters(
    group: Group,
    expression: Filter = "",
    topic: Topic = "",
    ids: Ids = None,
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option(min=1, help="List so many at most")] = 100,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    choice = _choice(expression, topic, ids, since, until)
    with connected(gateway, token_file, tls_ca) as calls:
        letters = _letters(calls, group, _queues(calls, group), choice)
        rows = [_row(each, as_json) for each in itertools.islice(letters, limit + 1)]
    if len(rows) > limit:
        warn([f"only the first {limit} are listed; --limit lists more"])
    show(rows[:limit], _COLUMNS, as_json)


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
    choice = _choice(expression, topic, ids, since, until)
    if resume and outcomes is None:
        fail("--resume goes on with a replay by its outcomes: name their file with --outcomes", 2)
    counts: Counter[bool] = Counter()
    unknown = set(choice.ids)
    with connected(gateway, token_file, tls_ca) as calls:
        queues = _queues(calls, group)
        sender = _Sender(calls, rate, dry_run)
        with replay_outcomes.opened(outcomes, group, resume=resume, dry_run=dry_run) as kept:
            for message in _letters(calls, group, queues, choice):
                unknown.discard(_origin_id(message))
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
        origin, system = _origin(message), message.system_properties
        row = {
            "queue": queue_id,
            "offset": offset,
            "message_id": origin_id,
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


def _letters(calls: GatewayCalls, group: str, queues: int, choice: Choice) -> Iterator[Any]:
    """The chosen dead letters of one queue after the other, oldest first."""
    for queue_id in range(queues):
        for batch in _batches(calls, group, queue_id, choice):
            yield from batch


def _batches(calls: GatewayCalls, group: str, queue_id: int, choice: Choice) -> Iterator[list[Any]]:
    """The chosen dead letters of a queue, up to where it ends now."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    at = _bound(calls, group, queue_id, pb.BEGINNING)
    end = _bound(calls, group, queue_id, pb.END)
    wanted = pb.FilterExpression(type=pb.TAG, expression="*")
    if choice.expression:
        wanted = pb.FilterExpression(type=pb.SQL, expression=choice.expression)
    while at < end:
        request = rpc.PullMessageRequest(
            group=pb.Resource(name=group),
            message_queue=_queue(group, queue_id),
            offset=at,
            batch_size=_BATCH,
            filter_expression=wanted,
        )
        request.long_polling_timeout.FromMilliseconds(0)
        answers = calls.messages("PullMessage", request, rpc.PullMessageResponse)
        status = next(each.status for each in answers if each.HasField("status"))
        if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            calls.refused("PullMessage", status)
        at = next(each.next_offset for each in answers if each.HasField("next_offset"))
        found = [each.message for each in answers if each.HasField("message")]
        yield [each for each in found if choice.takes(each)]


def _queues(calls: GatewayCalls, group: str) -> int:
    """How many the group's dead-letter topic has; 0 before its first dead letter. Ends the command for a group that is none."""
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as admin

    groups = calls.admin("ListGroups", admin.ListGroupsRequest(), admin.ListGroupsResponse).groups
    if group not in {each.name for each in groups}:
        fail(f"there is no consumer group {group!r} at {calls.address}; `lakebroker group list` names them")
    topics = calls.admin(
        "ListTopics", admin.ListTopicsRequest(include_system=True), admin.ListTopicsResponse
    ).topics
    return next((each.queues for each in topics if each.name == _topic(group)), 0)


def _bound(calls: GatewayCalls, group: str, queue_id: int, policy: Any) -> int:
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    request = rpc.QueryOffsetRequest(message_queue=_queue(group, queue_id), query_offset_policy=policy)
    answer = calls.messaging("QueryOffset", request, rpc.QueryOffsetResponse)
    calls.check("QueryOffset", answer.status)
    return int(answer.offset)


def _topic(group: str) -> str:
    from broker_gateway.metadata.names import dead_letter_topic

    return dead_letter_topic(group)


def _queue(group: str, queue_id: int) -> Any:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    return pb.MessageQueue(topic=pb.Resource(name=_topic(group)), id=queue_id)


def _origin(message: Any) -> str:
    return str(message.system_properties.dead_letter_queue.topic)


def _origin_id(message: Any) -> str:
    system = message.system_properties
    return str(system.dead_letter_queue.message_id or system.message_id)


def _key(message: Any) -> replay_outcomes.Key:
    system = message.system_properties
    return system.queue_id, system.queue_offset, _origin_id(message)


def _choice(expression: str, topic: str, ids: list[str] | None, since: str, until: str) -> Choice:
    return Choice(expression, topic, frozenset(ids or ()), moment("--since", since), moment("--until", until))


def _row(message: Any, whole: bool) -> dict[str, Any]:
    system = message.system_properties
    row: dict[str, Any] = {
        "queue": system.queue_id,
        "offset": system.queue_offset,
        "message_id": _origin_id(message),
        "topic": _origin(message),
        "tag": system.tag,
        "keys": " ".join(system.keys),
        "dead_since": f"{system.store_timestamp.ToDatetime(tzinfo=UTC):%Y-%m-%d %H:%M:%S}",
    }
    row |= body_row(message.body, whole)
    return row | {"properties": dict(message.user_properties)} if whole else row


def _failed(outcome: dict[str, Any]) -> bool:
    return outcome["outcome"] not in (replay_outcomes.SENT, "would be sent")


def _tell(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(outcome))
    else:
        typer.echo(lines("  ".join(str(outcome[name]) for name in _OUTCOMES if outcome[name])))
