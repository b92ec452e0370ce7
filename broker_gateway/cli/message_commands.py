"""`lakebroker message` and `lakebroker trace`: messages looked up, and what happened to them."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_gateway.cli.gateway_calls import AsJson, TlsCa, TokenFile
from broker_gateway.cli.output import fail, limited, warn
from broker_gateway.cli.questions.asked import Gateway, Lake, NameServers, Strict, asked, opened
from broker_gateway.cli.questions.printing import print_rows
from broker_gateway.cli.questions.rows import MESSAGES, TRACE
from broker_gateway.cli.questions.wanted import Answers, Wanted
from broker_gateway.cli.units import check_texts, moment

Topic = Annotated[str, typer.Option("--topic", help="The topic of the messages; by --lake every topic, too")]
Since = Annotated[str, typer.Option(help="Stored since this time, ISO 8601 (UTC where it names no zone)")]


def register(app: typer.Typer) -> None:
    """Adds the commands `message` and `trace`."""
    app.command(
        "message",
        help="Looks messages up by id or key, or those of a time, the newest first.\n\nBy --lake: in all topics, or one. By "
        "--gateway: in one topic, in the broker's log and its own lake. By both: in the lake and what is newer in the log."
        "\n\n--json has the properties that the sender gave a message, without the system's own (KEYS, UNIQ_KEY and the like), which "
        "`lakebroker sql` has in `messages.properties`."
        "\n\nExamples: lakebroker message order-4711 --lake ./lake; lakebroker message --gateway broker-host:8081 --topic orders "
        "--since 2026-11-25T08:00 --tag 'paid || sent' --limit 20",
    )(look_up)
    app.command(
        "trace",
        help="Tells what happened to a message, by its id or key: where it was stored, then each delivery and what became of "
        "it, in every group.\n\nThat is in a lake; --gateway beside it adds what is newer, and alone tells where the message was "
        "stored.\n\nExample: lakebroker trace order-4711 --lake ./lake --gateway broker-host:8081",
    )(trace)


def look_up(
    key: Annotated[str, typer.Argument(metavar="[ID|KEY]", help="Message id or key; none: all")] = "",
    topic: Topic = "",
    since: Since = "",
    until: Annotated[str, typer.Option(help="Stored until this time")] = "",
    tag: Annotated[str, typer.Option(help="Of these tags, such as 'paid || sent'")] = "",
    queue: Annotated[int | None, typer.Option(help="Of this queue")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most")] = 32,
    body: Annotated[
        bool,
        typer.Option("--body", help="Show whole bodies, not their beginnings; JSON always has them whole"),
    ] = False,
    lake: Lake = "",
    gateway: Gateway = "",
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    check_texts(key, topic, tag)
    if key and tag:
        fail("a message is looked up by its id or key, or by --tag: leave one of them out", 2)
    if not key and not topic:
        fail("--topic is missing: name the topic of the messages, or give an id or key", 2)
    _check_tags(tag)
    wanted = Wanted(limit + 1, key, topic, tag, queue, moment("--since", since), moment("--until", until))
    with opened(asked(lake, gateway, namesrv, token_file, tls_ca, strict)) as answers:
        rows = answers.messages(wanted)
        if key and not rows:
            _not_found(answers, wanted, since, until)
        if not rows:
            warn([f"no such message {answers.looked(topic)}"])
    if len(rows) > limit:
        warn([limited("newest", limit, "message")])
    print_rows(rows[:limit], MESSAGES, as_json=as_json, whole=body, said=["topic"] if topic else [])
    if answers.cut_off:
        fail("\n".join(f"older messages are not listed: {each}" for each in answers.cut_off))


def trace(
    key: Annotated[str, typer.Argument(metavar="ID|KEY", help="Message id or key")],
    topic: Topic = "",
    since: Annotated[
        str, typer.Option(help="What happened since this time, ISO 8601 (UTC where it names no zone)")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="So many events at most")] = 1000,
    lake: Lake = "",
    gateway: Gateway = "",
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    check_texts(key, topic)
    wanted = Wanted(limit + 1, key, topic, since=moment("--since", since))
    with opened(asked(lake, gateway, namesrv, token_file, tls_ca, strict)) as answers:
        rows = answers.trace(wanted)
        if not rows:
            _not_found(answers, wanted, since)
    if len(rows) > limit:
        warn([limited("first", limit, "event")])
    print_rows(rows[:limit], TRACE, as_json=as_json)
    if answers.cut_off:
        fail("\n".join(f"older messages are not listed: {each}" for each in answers.cut_off))


def _check_tags(expression: str) -> None:
    """Ends the command for tags that are not divided by `||` as a consumer writes them."""
    if expression and not all(part.strip() for part in expression.split("||")):
        fail(
            f"--tag {expression!r}: a tag is missing beside ||; give one, or tags divided by it: 'paid || sent'",
            2,
        )


def _not_found(answers: Answers, wanted: Wanted, since: str, until: str = "") -> None:
    """Ends the command, and says where it was looked."""
    narrowed = [f"since {since}" if since else "", f"until {until}" if until else ""]
    narrowed += [f"in queue {wanted.queue}" if wanted.queue is not None else ""]
    stored = " ".join(filter(None, narrowed))
    fail(
        f"no message with id or key {wanted.key!r}{' that was stored ' if stored else ''}{stored} "
        f"{answers.looked(wanted.topic)}"
    )
