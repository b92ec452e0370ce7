"""Topics: searched on the server, a page at a time."""

from __future__ import annotations

from urllib.parse import urlencode

from nicegui import ui

from broker_gateway.cli.console.facts import Topic
from broker_gateway.cli.console.pages.parts import (
    Column,
    Note,
    Pages,
    Table,
    card,
    frame,
    refreshed,
    unanswered,
    watched,
)
from broker_gateway.cli.console.poll import Watched
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.text import number, shown, when_ms

_STALE_S = 120.0
_COLUMNS = (
    Column("name", "topic", link=True),
    Column("types", "message types"),
    Column("queues", "queues", number=True),
    Column("messages", "messages", number=True),
    Column("newest", "newest message (UTC)"),
)


def register(console: Console) -> None:
    """Makes the page known."""

    @ui.page("/topics", title="Topics · lakebroker")
    def page() -> None:
        with frame(console, "/topics"):
            _build(console)


def _build(console: Console) -> None:
    poll = console.poll
    note = Note("topics", _STALE_S)
    shown_now: list[Topic] = []

    def show() -> None:
        note.show(poll.names, poll.topics)
        instead = unanswered(poll.names)
        shown_now[:] = pages.of(poll.names.value.topics, lambda topic: topic.name, instead)
        table.show([_row(console, each) for each in shown_now], instead)
        tell()

    tell = watched(console, lambda: Watched(topics=frozenset(each.name for each in shown_now)))
    with card("Topics"):
        pages = Pages("topics", show)
        table = Table(_COLUMNS, key="name", test_id="topics", empty="no topics")
        where = "in the brokers' logs" if console.places.reached is not None else "in the lake"
        ui.label(f"Messages are those {where}.").classes("lb-note")
    refreshed(show)


def _row(console: Console, topic: Topic) -> dict[str, str]:
    status = console.poll.topics.value.get(topic.name)
    return {
        "name": shown(topic.name),
        "name_link": f"/message?{urlencode({'topic': topic.name})}",
        "types": shown(topic.types),
        "queues": number(topic.queues),
        "messages": "" if status is None else number(status.messages),
        "newest": "" if status is None else when_ms(status.newest_ms),
    }
