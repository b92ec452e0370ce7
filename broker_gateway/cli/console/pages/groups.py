"""Consumer groups, their lag now, and of one group over time and by queue."""

from __future__ import annotations

from urllib.parse import urlencode

from nicegui import ui

from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Group
from broker_gateway.cli.console.pages.parts import (
    LOADING,
    NOT_KNOWN,
    Column,
    Lines,
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
from broker_gateway.cli.console.text import UNKNOWN, number, shown, when
from broker_gateway.cli.questions.rows import Row

_STALE_S = 120.0
_MOST_LINES = 8
_MOST_QUEUES = 500
_COLUMNS = (
    Column("name", "group", link=True),
    Column("lag", "lag", number=True),
    Column("topics", "topics", number=True),
    Column("unknown", "queues unknown", number=True),
    Column("order", "order"),
    Column("retry_max", "retries", number=True),
)
_QUEUES = (
    Column("topic", "topic"),
    Column("broker", "broker"),
    Column("queue", "queue", number=True),
    Column("committed", "committed", number=True),
    Column("end", "end", number=True),
    Column("lag", "lag", number=True),
    Column("at", "committed at (UTC)"),
)


def register(console: Console) -> None:
    """Makes the pages known: all groups, and one of them."""

    @ui.page("/groups", title="Groups · lakebroker")
    async def page(group: str = "") -> None:
        with frame(console, "/groups"):
            if group:
                await _build_one(console, group)
            else:
                _build(console)


def _build(console: Console) -> None:
    poll = console.poll
    note = Note("groups", _STALE_S)
    shown_now: list[Group] = []

    def show() -> None:
        note.show(poll.names, poll.lag)
        instead = unanswered(poll.names)
        shown_now[:] = pages.of(poll.names.value.groups, lambda group: group.name, instead)
        table.show([_row(each, poll.lag.value.get(each.name)) for each in shown_now], instead)
        tell()

    tell = watched(console, lambda: Watched(groups=frozenset(each.name for each in shown_now)))
    with card("Consumer groups"):
        pages = Pages("groups", show)
        table = Table(_COLUMNS, key="name", test_id="groups", empty="no consumer groups")
        ui.label(
            f"Lag: messages that a group has not settled. It is {UNKNOWN} of queues on which the group has committed nothing, or of "
            "which there is no message."
        ).classes("lb-note")
    refreshed(show)


async def _build_one(console: Console, group: str) -> None:
    poll = console.poll
    watched(console, lambda: Watched(groups=frozenset((group,)), queues_of=group))
    note = Note("lag", _STALE_S)
    past: dict[str, list[tuple[int, int]]] = {}
    unknown_past = ""
    with card(f"Lag of {shown(group)}"):
        total = ui.label().classes("lb-note").props("data-testid=lag-now")
        lag = Lines("messages", "lag", 320)
    with card("By queue"):
        failed = ui.label().classes("lb-bad").props("data-testid=queues-problem")
        failed.visible = False
        said = ui.label().classes("lb-note").props("data-testid=queues-said")
        said.visible = False
        queues = Table(_QUEUES, key="id", test_id="queues", empty="this group has read nothing yet")
        more = ui.label().classes("lb-note")
        more.visible = False
    with ui.element("div").classes("lb-row"):
        ui.link("All groups", "/groups").classes("lb-link")
        ui.link("Its dead letters", f"/dead-letters?{urlencode({'group': group})}").classes("lb-link")

    def show() -> None:
        note.show(poll.names, poll.lag, poll.queues)
        rows = poll.lag.value.get(group)
        total.text = (NOT_KNOWN if poll.lag.error else LOADING) if rows is None else f"now {_sum(rows)}"
        lag.show(_lines(past, poll.history.lag(group)))
        found = poll.queues.value.get(group)
        if found is None:
            if poll.queues.error:
                queues.show((), NOT_KNOWN)
            return
        why = found.error or unknown_past
        failed.text, failed.visible = shown(why, 1000), bool(why)
        said.text, said.visible = shown("; ".join(found.said), 2000), bool(found.said)
        if found.error:
            queues.show(queues.table.rows, NOT_KNOWN)
        else:
            queues.show([_queue(row) for row in found.rows[:_MOST_QUEUES]])
            more.text = f"The first {_MOST_QUEUES:,} of {len(found.rows):,} queues are shown."
            more.visible = len(found.rows) > _MOST_QUEUES

    async def look_back() -> None:
        nonlocal unknown_past
        try:
            past.update(await console.workers.ask(lambda: console.places.lag_by_minute(group)))
        except AskError as error:
            unknown_past = f"lag of before: {error}"

    refreshed(show)
    ui.timer(0.1, look_back, once=True)


def _lines(
    past: dict[str, list[tuple[int, int]]], now: dict[str, list[tuple[int, float]]]
) -> dict[str, list[tuple[int, float]]]:
    """What the lake has until the poll began, and what that took down since; the topics that are furthest behind."""
    joined: dict[str, list[tuple[int, float]]] = {}
    for topic in sorted({*past, *now}):
        recent = now.get(topic, [])
        begin = recent[0][0] if recent else None
        joined[topic] = [
            (at, float(lag)) for at, lag in past.get(topic, ()) if begin is None or at < begin
        ] + recent
    furthest = sorted(joined, key=lambda topic: -joined[topic][-1][1] if joined[topic] else 0.0)[:_MOST_LINES]
    return {topic: joined[topic] for topic in joined if topic in furthest}


def _sum(lag: list[Row]) -> str:
    known = [row["lag"] for row in lag if row["lag"] is not None]
    return number(sum(known) if known else None)


def _row(group: Group, lag: list[Row] | None) -> dict[str, str]:
    return {
        "name": shown(group.name),
        "name_link": f"/groups?{urlencode({'group': group.name})}",
        "lag": "" if lag is None else _sum(lag),
        "topics": "" if lag is None else number(len(lag)),
        "unknown": "" if lag is None else number(sum(row["unknown"] for row in lag)),
        "order": "" if group.fifo is None else "in order" if group.fifo else "any",
        "retry_max": "" if group.retry_max is None else number(group.retry_max),
    }


def _queue(row: Row) -> dict[str, str]:
    return {
        "id": shown(f"{row['topic']} {row['broker']} {row['queue_id']}", 1000),
        "topic": shown(row["topic"]),
        "broker": shown(row["broker"]) if row["broker"] is not None else "unknown",
        "queue": number(row["queue_id"]),
        "committed": number(row["committed_offset"]),
        "end": number(row["max_offset"]),
        "lag": number(row["lag"]),
        "at": when(row["commit_timestamp"]),
    }
