"""`lakebroker lag`: what consumer groups have before them."""

from __future__ import annotations

import signal
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from broker_gateway.cli.gateway_calls import AsJson, TlsCa, TokenFile
from broker_gateway.cli.output import fail, limited, warn
from broker_gateway.cli.questions.asked import Gateway, Lake, NameServers, Strict, asked, opened
from broker_gateway.cli.questions.printing import print_rows
from broker_gateway.cli.questions.rows import LAG, TOTALS, Row, totals
from broker_gateway.cli.questions.wanted import Answers
from broker_gateway.cli.signals import Signalled, status_of
from broker_gateway.cli.units import check_texts, seconds

_LEFT = 128 + signal.SIGINT


def register(app: typer.Typer) -> None:
    """Adds the command `lag`."""
    app.command(
        "lag",
        help="Tells how many messages consumer groups have not settled: a line for each group and topic; of one group, for each "
        "queue.\n\n`unknown` is what cannot be said, such as of a queue on which the group has committed nothing. Of a queue without messages a gateway says 0, and so do both together; a lake alone "
        "says `unknown`, since its messages may have expired before the lake began. By --lake: as of its "
        "newest batch. By --gateway, or by both: as of now.\n\nExamples: lakebroker lag --gateway broker-host:8081; "
        "lakebroker lag audit --lake ./lake --gateway broker-host:8081 --watch 5s",
    )(lag)


def lag(
    group: Annotated[str, typer.Argument(help="The consumer group; none: all")] = "",
    topic: Annotated[str, typer.Option("--topic", help="On this topic")] = "",
    limit: Annotated[int, typer.Option(min=1, help="So many lines at most")] = 1000,
    watch: Annotated[
        str, typer.Option(help="Ask again so often, as 5s, until ctrl-C; with --json a line each time")
    ] = "",
    lake: Lake = "",
    gateway: Gateway = "",
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    check_texts(group, topic)
    pause_s = seconds("--watch", watch) if watch else 0.0
    if watch and pause_s <= 0:
        fail(f"--watch {watch}: give more than 0s", 2)
    with opened(asked(lake, gateway, namesrv, token_file, tls_ca, strict)) as answers:
        if not pause_s:
            _print(_rows(answers, group, topic), group, topic, limit, as_json)
            return
        try:
            while True:
                if sys.stdout.isatty():
                    Console().clear()
                    warn(filter(None, [answers.age()]))
                _print(_rows(answers, group, topic), group, topic, limit, as_json)
                sys.stdout.flush()
                time.sleep(pause_s)
        except KeyboardInterrupt as stopped:
            if status_of(stopped) != _LEFT:  # ctrl-C is the way to leave
                raise
            if isinstance(stopped, Signalled):
                stopped.answered = True


def _rows(answers: Answers, group: str, topic: str) -> list[Row]:
    rows = answers.lag(group, topic)
    if not rows and (why := answers.nothing_read()):
        warn([why])
    if group and not rows:
        of = f" of topic {topic}" if topic else ""
        fail(
            f"group {group!r} has settled nothing and got nothing{of}, as far as {answers.named} knows; `lakebroker lag` without "
            "a group names those that did"
        )
    if topic and not rows:
        warn([f"no group has settled or got anything of a topic {topic!r}, as far as {answers.named} knows"])
    return rows if group else totals(rows)


def _print(rows: list[Row], group: str, topic: str, limit: int, as_json: bool) -> None:
    if len(rows) > limit:
        warn([limited("first", limit, "line")])
    said = [name for name, given in (("consumer_group", group), ("topic", topic)) if given]
    print_rows(rows[:limit], LAG if group else TOTALS, as_json=as_json, said=said)
