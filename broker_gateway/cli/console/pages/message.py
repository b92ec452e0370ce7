"""A message by key or id, with its body, its properties and what happened to it."""

from __future__ import annotations

from nicegui import ui

from broker_gateway.cli.console.asking import MOST_MESSAGES
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Found
from broker_gateway.cli.console.pages.parts import Column, Table, card, frame, heading, watched
from broker_gateway.cli.console.poll import Watched
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.text import cut_said, given, number, shown, shown_body, when
from broker_gateway.cli.questions.rows import Row

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
        if not wanted or not (of or of_all):
            go.props(remove="loading")
            problem.text = (
                "give a key or message id"
                if not wanted
                else "give the topic: a broker searches in one; a lake (--lake) has an index of all"
            )
            problem.visible = True
            return
        go.props("loading")
        try:
            answer = await console.workers.ask(lambda: console.places.found(wanted, of))
        except AskError as error:
            if mine == newest:
                problem.text, problem.visible = shown(error, 1000), True
            return
        finally:
            if mine == newest:
                go.props(remove="loading")
        if mine == newest:
            with found:
                _show(answer)

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
    if key:
        ui.timer(0.1, search, once=True)


def _show(answer: Found) -> None:
    for said in answer.said:
        ui.label(shown(said, 1000)).classes("lb-note").props("data-testid=said")
    if len(answer.messages) >= MOST_MESSAGES:
        ui.label(f"The newest {MOST_MESSAGES} messages are shown.").classes("lb-note")
    for row in answer.messages:
        with card():
            _show_message(row)
            events = [event for event in answer.trace if event["message_id"] == row["message_id"]]
            heading("What happened to it")
            Table(_TRACE, key="id", test_id="trace", empty="nothing is known").show(
                [_event(at, event) for at, event in enumerate(events)]
            )


def _show_message(row: Row) -> None:
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
    ui.label(cut_said(row["body_bytes"])).classes("lb-note").props("data-testid=size")
    ui.label(shown_body(row["body"])).classes("lb-body").props("data-testid=body dir=ltr")
    properties = sorted(row["properties"].items())
    if properties:
        Table(_PROPERTIES, key="name", test_id="properties").show(
            [{"name": shown(name), "value": shown(value, 2000)} for name, value in properties[:200]]
        )


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
