"""`lakebroker send` and `lakebroker recall`: messages of every type sent by hand, and delayed ones taken back."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, NamedTuple

import typer

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
from broker_gateway.cli.output import fail, lines, show, warn
from broker_gateway.cli.units import moment, seconds

_ENDS = {"commit": "committed", "rollback": "rolled back"}
_HIGHEST = (1 << 31) - 1

Topic = Annotated[str, typer.Argument(help="The topic")]


def register(app: typer.Typer) -> None:
    """Adds the commands `send` and `recall`."""
    app.command(
        "send",
        help="Sends a message.\n\nIts type is NORMAL, or that of the option that it is given: FIFO, DELAY, PRIORITY, LITE or "
        "TRANSACTION, which the topic must take.\n\nExamples: lakebroker send orders 'hello' --tag paid --key order-4711 "
        "--property region=north; lakebroker send steps 'packed' --message-group order-4711; lakebroker send reminders 'call "
        "back' --delay 30s; lakebroker send jobs 'now' --priority 9; lakebroker send chats 'hi' --lite-topic room-7; "
        "lakebroker send payments 'paid' --transaction commit",
    )(send)
    app.command(
        "recall",
        help="Takes a delayed message back, before its time (recallMessageEnable).\n\nExample: lakebroker recall reminders "
        "HANDLE, which `send --delay` printed as recall_handle",
    )(recall)


class _Kind(NamedTuple):
    """A message type, and the options that say so, as they were written."""

    name: str
    told: str


def send(
    topic: Topic,
    body: Annotated[str, typer.Argument(help="The message's body; -: what standard input has")],
    tag: Annotated[str, typer.Option(help="Its tag")] = "",
    keys: Annotated[list[str] | None, typer.Option("--key", help="One of its keys; may be repeated")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="A property, name=value; may be repeated")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option(help="FIFO: its message group, whose messages stay in order")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            help="DELAY: how long it waits, such as 500ms, 30s, 2m or 1h. Brokers refuse more than a day, unless maxDelayTimeMills allows it"
        ),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            help="DELAY: when it is delivered, ISO 8601 (UTC where it names no zone); past: at once"
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="PRIORITY: its priority, 0 or more, the larger the more urgent")
    ] = None,
    lite_topic: Annotated[str | None, typer.Option(help="LITE: its lite topic, within the topic")] = None,
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="commit|rollback",
            help="TRANSACTION: how it ends, once its half is stored. With a delivery time, a committed one waits for it",
        ),
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    system = pb.SystemProperties(keys=keys or [])
    if tag:
        system.tag = tag
    if message_group is not None:
        system.message_group = message_group
    if priority is not None:
        if not 0 <= priority <= _HIGHEST:
            fail(f"--priority {priority} is outside of 0 to {_HIGHEST}", 2)
        system.priority = priority
    if lite_topic is not None:
        system.lite_topic = lite_topic
    if transaction is not None and transaction not in _ENDS:
        fail(f"--transaction {transaction!r} is unknown: use {' or '.join(_ENDS)}", 2)
    kind = _kind(system, delay, deliver_at, transaction)
    system.MergeFrom(pb.SystemProperties(message_type=kind))
    _set_delivery_time(system, delay, deliver_at)
    message = pb.Message(
        topic=pb.Resource(name=topic),
        body=sys.stdin.buffer.read() if body == "-" else body.encode(),
        user_properties=_properties(properties or []),
        system_properties=system,
    )
    with connected(gateway, token_file, tls_ca) as calls:
        row = {"topic": topic, "type": kind, **_sent(calls, message, transaction)}
    if as_json:
        show([row], [], as_json)
        return
    handle = row.pop("recall_handle", "")
    show([row], list(row), as_json)
    if handle:  # a line of its own, since a table would break it
        typer.echo("a broker that has recallMessageEnable=true takes it back")
        typer.echo(lines(f"to take it back: lakebroker recall {topic} {handle}"))


def recall(
    topic: Topic,
    handle: Annotated[str, typer.Argument(help="What the send answered as recall_handle")],
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    request = rpc.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
    with connected(gateway, token_file, tls_ca) as calls:
        answer = calls.messaging("RecallMessage", request, rpc.RecallMessageResponse)
        calls.check("RecallMessage", answer.status)
    row = {"topic": topic, "message_id": answer.message_id, "recalled": True}
    show([row], list(row), as_json)


def _kind(system: Any, delay: str | None, deliver_at: str | None, transaction: str | None) -> str:
    """The message type that the options stand for; ends the command for several."""
    if delay is not None and deliver_at is not None:
        fail(f"--delay {delay} and --deliver-at {deliver_at} both say when: leave one of them out", 2)
    kinds = []
    if system.HasField("message_group"):
        kinds.append(_Kind("FIFO", f"--message-group {system.message_group}"))
    if transaction is not None:
        kinds.append(_Kind("TRANSACTION", f"--transaction {transaction}"))
    elif delay is not None:
        kinds.append(_Kind("DELAY", f"--delay {delay}"))
    elif deliver_at is not None:
        kinds.append(_Kind("DELAY", f"--deliver-at {deliver_at}"))
    if system.HasField("priority"):
        kinds.append(_Kind("PRIORITY", f"--priority {system.priority}"))
    if system.HasField("lite_topic"):
        kinds.append(_Kind("LITE", f"--lite-topic {system.lite_topic}"))
    if len(kinds) > 1:
        told = ", ".join(f"{each.told} makes it {each.name}" for each in kinds)
        fail(f"a message has one type, and {told}: leave all but one of them out", 2)
    return kinds[0].name if kinds else "NORMAL"


def _set_delivery_time(system: Any, delay: str | None, deliver_at: str | None) -> None:
    """What the gateway takes as a time is its own to say."""
    if delay is not None:
        due_ms = time.time_ns() // 1_000_000 + round(seconds("--delay", delay) * 1000)
        system.delivery_timestamp.seconds, ms = divmod(due_ms, 1000)
        system.delivery_timestamp.nanos = ms * 1_000_000
    elif deliver_at is not None:
        given = moment("--deliver-at", deliver_at)
        if given is None:
            fail("--deliver-at is empty: write a time such as 2026-11-25T08:00", 2)
        system.delivery_timestamp.FromDatetime(given)


def _sent(calls: GatewayCalls, message: Any, transaction: str | None) -> dict[str, Any]:
    """What is to be said of a message that was sent. Ends the command when it was not."""
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as admin
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if message.system_properties.message_type not in (pb.DELAY, pb.TRANSACTION):
        request = admin.AdminSendMessageRequest(
            topic=message.topic,
            body=message.body,
            user_properties=message.user_properties,
            system_properties=message.system_properties,
        )
        answer = calls.public("AdminSendMessage", request, admin.AdminSendMessageResponse)
        return {"message_id": answer.message_id}
    answer = send_message(calls, message)  # which says how to take it back, or end it
    calls.check("SendMessage", answer.status)
    (entry,) = answer.entries
    if transaction is not None:
        _end(calls, message.topic, entry, transaction)
        return {"message_id": entry.message_id, "transaction": _ENDS[transaction]}
    return {"message_id": entry.message_id, "recall_handle": entry.recall_handle}


def _end(calls: GatewayCalls, topic: Any, entry: Any, transaction: str) -> None:
    try:
        answer = end_transaction(calls, topic, entry, transaction.upper())
        calls.check("EndTransaction", answer.status)
    except typer.Exit:
        warn(
            [
                f"the half of {entry.message_id} is stored, and may not have ended: a producer of {topic.name} is asked "
                "about it, and without an answer it goes to TRANS_CHECK_MAX_TIME_TOPIC"
            ]
        )
        raise


def _properties(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            fail(f"--property {each}: write it as name=value", 2)
        found[name] = value
    return found
