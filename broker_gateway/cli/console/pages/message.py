"""A message by key or id, with its body, its properties and what happened to it; and the newest messages of a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import urlencode

from nicegui import ui

from broker_gateway.cli.console.asking import MOST_MESSAGES
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Found, Told
from broker_gateway.cli.console.pages.parts import Column, Table, card, frame, heading, message_link, watched
from broker_gateway.cli.console.poll import Watched
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.stories import again_from
from broker_gateway.cli.console.text import cut_said, excerpt, given, number, shown, shown_body, when
from broker_gateway.cli.questions.rows import Row
from broker_gateway.metadata.names import DLQ_PREFIX

_MOST = 256
_TRACE = (
    Column("at", "at (UTC)"),
    Column("event", "event"),
    Column("group", "group"),
    Column("attempt", "attempt", number=True),
    Column("client", "client"),
    Column("topic", "topic"),
    Column("queue", "queue", number=True),
    Column("offset", "offset", number=True),
)
_NEWEST = (
    Column("at", "stored (UTC)"),
    Column("message_id", "message id", link=True),
    Column("queue", "queue", number=True),
    Column("offset", "offset", number=True),
    Column("tag", "tag"),
    Column("keys", "keys"),
    Column("body", "body"),
    Column("bytes", "bytes", number=True),
)
_PROPERTIES = (Column("name", "property", wide=True), Column("value", "value", wide=True))


def register(console: Console) -> None:
    """Makes the page known."""

    @ui.page("/message", title="Message · lakebroker")
    def page(key: str = "", topic: str = "") -> None:
        with frame(console, "/message"):
            _build(console, key[:_MOST], topic[:_MOST])


def _build(console: Console, key: str, topic: str) -> None:
    watched(console, Watched)
    of_all = console.places.lake is not None

    newest = 0

    async def search() -> None:
        """Of several under way, what was asked for last is shown."""
        nonlocal newest
        newest += 1
        mine = newest
        wanted, of = given(asked.value, _MOST), given(named.value, _MOST)
        problem.visible = False
        found.clear()
        if not of and not (wanted and of_all):
            go.props(remove="loading")
            problem.text = (
                "give the topic: a broker searches in one; a lake (--lake) has an index of all"
                if wanted
                else "give a key or message id; or a topic alone, for its newest messages"
            )
            problem.visible = True
            return
        go.props("loading")
        try:
            show = await console.workers.ask(lambda: _answer(console, wanted, of))
        except AskError as error:
            if mine == newest:
                problem.text, problem.visible = shown(error, 1000), True
            return
        finally:
            if mine == newest:
                go.props(remove="loading")
        if mine == newest:
            with found:
                show()

    with card("A message by key or id"), ui.element("div").classes("lb-row"):
        asked = (
            ui.input("Key or message id", value=key)
            .props(f"dense outlined maxlength={_MOST} data-testid=key")
            .style("flex: 2 1 240px")
        )
        named = (
            ui.input("Topic" + (" (or all)" if of_all else ""), value=topic)
            .props(f"dense outlined maxlength={_MOST} data-testid=topic")
            .style("flex: 1 1 160px")
        )
        go = ui.button("Find", on_click=search).props("unelevated no-caps color=primary data-testid=find")
        for each in (asked, named):
            each.on("keydown.enter", search)
    problem = ui.label().classes("lb-bad").props("data-testid=message-problem role=alert")
    problem.visible = False
    found = ui.element("div").classes("lb-main").style("padding: 0")
    if key or topic:
        ui.timer(0.1, search, once=True)


def _answer(console: Console, key: str, topic: str) -> Callable[[], None]:
    """What shows it. Raises AskError."""
    if key:
        return partial(_show, console, console.places.found(key, topic))
    return partial(_show_newest, console, console.places.newest(topic), topic)


def _say(lines: tuple[str, ...]) -> None:
    for said in lines:
        ui.label(shown(said, 1000)).classes("lb-note").props("data-testid=said")


def _show_newest(console: Console, answer: Told, topic: str) -> None:
    _say(answer.said)
    with card(f"Newest messages of {shown(topic)}"):
        most = f"the newest {MOST_MESSAGES}" if len(answer.rows) >= MOST_MESSAGES else "all that there are"
        if answer.rows:
            ui.label(most).classes("lb-note")
        Table(_NEWEST, key="id", test_id="newest", empty="no messages").show(
            [_listed(console, at, row) for at, row in enumerate(answer.rows)]
        )


def _show(console: Console, answer: Found) -> None:
    _say(answer.said)
    if answer.messages >= MOST_MESSAGES:
        ui.label(f"The newest {MOST_MESSAGES} messages are shown.").classes("lb-note")
    for story in answer.stories:
        with card():
            for row in story.messages:
                _show_message(console, row)
            for row in story.copies:
                _show_copy(row)
            for row in story.again:
                said = f"sent again at {when(row['store_timestamp'])} UTC as"
                to = message_link(console, row["message_id"], row["topic"])
                _show_again(said, row["message_id"], to, "again-as")
            heading("What happened to it")
            Table(_TRACE, key="id", test_id="trace", empty="nothing is known").show(
                [_event(at, event) for at, event in enumerate(story.trace)]
            )


def _show_copy(row: Row) -> None:
    group = row["topic"].removeprefix(DLQ_PREFIX)
    place = f"queue {number(row['queue_id'])}, offset {number(row['queue_offset'])}"
    with ui.element("div").classes("lb-row lb-gap"):
        ui.label(f"dead letter since {when(row['store_timestamp'])} UTC, {place}, of group").classes(
            "lb-note"
        )
        ui.link(shown(group), f"/dead-letters?{urlencode({'group': group})}").classes(
            "lb-link lb-text"
        ).props("data-testid=copy")


def _show_again(said: str, message_id: str, to: str, test_id: str) -> None:
    """A message that this one is sent again from, or as."""
    with ui.element("div").classes("lb-row lb-gap"):
        ui.label(said).classes("lb-note")
        ui.link(shown(message_id), to).classes("lb-link lb-text").props(f"data-testid={test_id}")


def _show_message(console: Console, row: Row) -> None:
    heading(f"{shown(row['topic'])} · {shown(row['message_id'])}")
    facts = {
        "stored": f"{when(row['store_timestamp'])} UTC",
        "broker": shown(row["broker"]) or "unknown",
        "queue": number(row["queue_id"]),
        "offset": number(row["queue_offset"]),
        "tag": shown(row["tag"]),
        "keys": shown(" ".join(row["keys"])),
    }
    said = " · ".join(f"{name} {value}" for name, value in facts.items() if value)
    ui.label(said).classes("lb-note lb-text").props("data-testid=facts")
    if before := again_from(row):
        _show_again("sent again from", before, message_link(console, before, row["topic"]), "again-from")
    ui.label(cut_said(row["body_bytes"])).classes("lb-note").props("data-testid=size")
    ui.label(shown_body(row["body"])).classes("lb-body").props("data-testid=body dir=ltr")
    properties = sorted(row["properties"].items())
    if properties:
        Table(_PROPERTIES, key="name", test_id="properties").show(
            [{"name": shown(name), "value": shown(value, 2000)} for name, value in properties[:200]]
        )


def _listed(console: Console, at: int, row: Row) -> dict[str, str | int]:
    return {
        "id": at,
        "at": when(row["store_timestamp"]),
        "message_id": shown(row["message_id"]),
        "message_id_link": message_link(console, row["message_id"], row["topic"]),
        "queue": number(row["queue_id"]),
        "offset": number(row["queue_offset"]),
        "tag": shown(row["tag"]),
        "keys": shown(" ".join(row["keys"])),
        "body": excerpt(row["body"]),
        "bytes": number(row["body_bytes"]),
    }


def _event(at: int, event: Row) -> dict[str, str | int]:
    return {
        "id": at,
        "at": when(event["event_timestamp"]),
        "event": shown(event["event"]),
        "group": shown(event["consumer_group"]),
        "attempt": "" if event["attempt"] is None else number(event["attempt"]),
        "client": shown(event["client"]),
        "topic": shown(event["topic"]),
        "queue": "" if event["queue_id"] is None else number(event["queue_id"]),
        "offset": "" if event["queue_offset"] is None else number(event["queue_offset"]),
    }
