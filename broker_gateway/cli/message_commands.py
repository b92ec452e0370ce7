"""`lakebroker message`: messages looked up, over log and lake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from typing import Annotated, Any

import typer

from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    AsJson,
    Gateway,
    GatewayCalls,
    NameServers,
    Reached,
    TlsCa,
    TokenFile,
)
from broker_gateway.cli.output import body_row, fail, show, warn
from broker_gateway.cli.units import moment

_COLUMNS = ["stored", "queue", "offset", "message_id", "tag", "keys", "body"]
_PAGE = 100
_QUERY_S = 45.0
_ID = re.compile(r"[0-9A-Fa-f]{32,56}")
"""As clients make message ids; others are looked up as keys, which find ids too."""

Topic = Annotated[str, typer.Option("--topic", help="The topic of the messages")]


def register(app: typer.Typer) -> None:
    """Adds the command `message`."""
    app.command(
        "message",
        help="Looks messages up by id or key, or those of a time, the newest first: in the broker's log and in the lake. "
        "Examples: lakebroker message order-4711 --topic orders; lakebroker message --topic orders --since 2026-11-25T08:00 "
        "--tag 'paid || sent' --limit 20",
    )(look_up)


def look_up(
    key: Annotated[str, typer.Argument(metavar="[ID|KEY]", help="Message id or key; none: all")] = "",
    topic: Topic = "",
    since: Annotated[
        str, typer.Option(help="Stored since this time, ISO 8601 (UTC where it names no zone)")
    ] = "",
    until: Annotated[str, typer.Option(help="Stored until this time")] = "",
    tag: Annotated[str, typer.Option(help="Of these tags, such as 'paid || sent'")] = "",
    queue: Annotated[int | None, typer.Option(help="Of this queue")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most")] = 32,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if not topic:
        fail("--topic is missing: name the topic of the messages", 2)
    if key and tag:
        fail("a message is looked up by its id or key, or by --tag: leave one of them out", 2)
    request = rpc.ListMessageRequest(
        topic=pb.Resource(name=topic), page_size=min(limit + 1, _PAGE), max_message_nums=limit + 1
    )
    for field, given in (
        (request.begin_timestamp, moment("--since", since)),
        (request.end_timestamp, moment("--until", until)),
    ):
        if given is not None:
            field.FromDatetime(given)
    if tag:
        request.subscription = tag
    if queue is not None:
        request.queue_id = queue
    reached = Reached(gateway, namesrv, token_file, tls_ca)
    found: list[tuple[GatewayCalls, Any]] = []
    cut_off: list[str] = []
    for calls in reached.all():
        found += [(calls, message) for message in _messages(calls, request, key, cut_off)]
    if key and not found:
        fail(f"topic {topic} has no message with id or key {key!r} at {reached.named}")
    found.sort(key=lambda each: each[1].system_properties.store_timestamp.ToNanoseconds(), reverse=True)
    if len(found) > limit:
        warn([f"only the newest {limit} are listed; --limit lists more"])
    rows = [reached.row(calls, _row(message, as_json)) for calls, message in found[:limit]]
    show(rows, reached.columns(*_COLUMNS), as_json)
    if cut_off:
        fail("\n".join(f"older messages are not listed: {each}" for each in cut_off))


def _messages(calls: GatewayCalls, request: Any, key: str, cut_off: list[str]) -> Iterator[Any]:
    """All that are wanted, the newest first, page by page. `cut_off` gets what kept a later page from being had; without a
    message before it, that ends the command."""
    kinds = ["message_id", "message_key"] if _ID.fullmatch(key) else ["message_key"] if key else [""]
    for kind in kinds:
        if kind:
            setattr(request, kind, key)
        some = False
        for message in _paged(calls, request, cut_off):
            some = True
            yield message
        if some:
            return


def _paged(calls: GatewayCalls, request: Any, cut_off: list[str]) -> Iterator[Any]:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request.scroll_id = ""
    some = False
    while True:
        answer = calls.public("QueryMessage", request, rpc.ListMessageResponse, _QUERY_S, checked=False)
        if answer.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            if not some:
                calls.refused("QueryMessage", answer.status)
            cut_off.append(calls.refusal("QueryMessage", answer.status))
            return
        some = some or bool(answer.messages)
        yield from answer.messages
        request.scroll_id = answer.scroll_id
        if not answer.scroll_id:
            return


def _row(message: Any, whole: bool) -> dict[str, Any]:
    system = message.system_properties
    stored = system.store_timestamp.ToDatetime(tzinfo=UTC)
    row = {
        "stored": f"{stored:%Y-%m-%d %H:%M:%S}.{stored.microsecond // 1000:03}",
        "queue": system.queue_id,
        "offset": system.queue_offset,
        "message_id": system.message_id,
        "tag": system.tag,
        "keys": " ".join(system.keys),
        **body_row(message.body, whole),
    }
    return row | {"properties": dict(message.user_properties)} if whole else row
