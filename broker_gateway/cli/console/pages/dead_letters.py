"""Dead letters: groups that have some, those of one group, and their replay, which asks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from broker_gateway.cli.console.asking import MOST_LETTERS
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.pages.parts import (
    LOADING,
    NOT_KNOWN,
    Column,
    Note,
    Pages,
    Table,
    card,
    frame,
    message_link,
    refreshed,
    unanswered,
    watched,
)
from broker_gateway.cli.console.poll import Watched
from broker_gateway.cli.console.replays import Mark, Place, Plan
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.text import excerpt, number, shown, when, when_ms
from broker_gateway.cli.questions.rows import Row
from broker_gateway.metadata.names import dead_letter_topic
from store.counting import counted

_STALE_S = 120.0
ANSWER_S = 120.0
"""For so long the question before a replay waits for an answer: what it says is of when it was asked."""
_LATE = "late"
_GROUPS = (
    Column("name", "group", link=True),
    Column("messages", "dead letters", number=True),
    Column("newest", "newest (UTC)"),
)
_LETTERS = (
    Column("at", "dead since (UTC)"),
    Column("message_id", "message id", link=True),
    Column("topic", "from topic"),
    Column("keys", "keys"),
    Column("attempts", "attempts", number=True),
    Column("reason", "reason", wide=True),
    Column("body", "body", wide=True),
    Column("bytes", "bytes", number=True),
)
_AGAIN = Column("again", "sent again from here (UTC)")


def register(console: Console) -> None:
    """Makes the pages known: groups with dead letters, and one of them."""

    @ui.page("/dead-letters", title="Dead letters · lakebroker")
    def page(group: str = "") -> None:
        with frame(console, "/dead-letters"):
            if group:
                _Letters(console, group)
            else:
                _build(console)


def _build(console: Console) -> None:
    poll = console.poll
    note = Note("dead letters", _STALE_S)
    shown_now: list[str] = []

    def show() -> None:
        note.show(poll.names, poll.topics)
        instead = unanswered(poll.names)
        shown_now[:] = pages.of(poll.names.value.dead, str, instead)
        table.show([_group(console, each) for each in shown_now], instead)
        tell()

    tell = watched(console, lambda: Watched(topics=frozenset(map(dead_letter_topic, shown_now))))
    with card("Groups with dead letters"):
        pages = Pages("groups", show)
        table = Table(_GROUPS, key="name", test_id="dead-groups", empty="no group has dead letters")
    refreshed(show)


class _Letters:
    """Those of a group."""

    def __init__(self, console: Console, group: str) -> None:
        self._console = console
        self._group = group
        self._replaying = False
        watched(console, Watched)
        self._problem = ui.label().classes("lb-bad").props("data-testid=letters-problem role=alert")
        self._problem.visible = False
        with card(f"Dead letters of {shown(group)}"):
            self._said = ui.label(LOADING).classes("lb-note").props("data-testid=letters-count")
            allowed = console.replays.allowed
            self._letters = Table(
                (*_LETTERS, _AGAIN) if allowed else _LETTERS,
                key="id",
                test_id="letters",
                selection=allowed,
                empty="none",
            )
            if allowed:
                self._offer()
        self._done = ui.label().classes("lb-card lb-text").props("data-testid=replayed role=status")
        self._done.visible = False
        with ui.element("div").classes("lb-row"):
            ui.link("All groups with dead letters", "/dead-letters").classes("lb-link")
            ui.button("Ask again", on_click=self._ask).props("flat dense no-caps data-testid=again")
        run = console.replays.of(group)
        self._ended_ms = run.ended_ms if run else 0
        """Of the replay that the letters shown know of."""
        ui.timer(0.1, self._ask, once=True)
        refreshed(self._show_run)

    def _offer(self) -> None:
        with ui.element("div").classes("lb-row"):
            ui.button("Replay those chosen…", on_click=self._replay_chosen).props(
                "outline no-caps data-testid=replay-chosen"
            )
            ui.button("Replay all…", on_click=self._replay_all).props(
                "outline no-caps data-testid=replay-all"
            )

    async def _ask(self) -> None:
        try:
            found = await self._console.workers.ask(lambda: self._console.places.dead_letters(self._group))
        except AskError as error:
            self._fail(error)
            if not self._letters.table.rows:
                self._said.text = NOT_KNOWN
                self._letters.show((), NOT_KNOWN)
            return
        self._problem.visible = False
        most = f"the first {MOST_LETTERS} are shown" if len(found.rows) >= MOST_LETTERS else ""
        self._said.text = shown(
            "; ".join([most or counted(len(found.rows), "dead letter"), *found.said]), 2000
        )
        self._letters.show([_letter(self._console, row) for row in found.rows])

    async def _replay_chosen(self) -> None:
        said = [row.get("id") for row in self._letters.table.selected if isinstance(row, dict)]
        chosen = [
            Place(*row["place"]) for row in self._letters.table.rows if row["id"] in said
        ]  # of those shown
        if not chosen:
            self._fail("choose dead letters first, by the boxes at the left")
            return
        await self._replay(chosen)

    async def _replay_all(self) -> None:
        await self._replay(())

    async def _replay(self, places: Sequence[Place]) -> None:
        """One at a time: who presses twice is asked once."""
        if self._replaying:
            return
        self._replaying = True
        try:
            await self._ask_and_send(places)
        finally:
            self._replaying = False

    async def _ask_and_send(self, places: Sequence[Place]) -> None:
        workers, replays = self._console.workers, self._console.replays
        self._problem.visible = False
        try:
            plan = await workers.ask(lambda: replays.plan(self._group, places))
            answer = await _answer(plan)
            if answer is None:
                self._fail(f"nothing was sent: the question was not answered within {ANSWER_S:.0f} s")
            if answer:
                replays.begin(plan)
                self._letters.table.selected = []
                self._show_run()
        except AskError as error:
            self._fail(error)

    def _show_run(self) -> None:
        """How far the group's newest replay is, whichever tab began it, or what became of it."""
        run = self._console.replays.of(self._group)
        self._done.visible = run is not None
        if run is None:
            return
        ended_ms = run.ended_ms
        self._done.text = shown(f"{when_ms(ended_ms)} UTC: {run.said}" if ended_ms else run.said, 1000)
        if ended_ms != self._ended_ms:
            self._ended_ms = ended_ms
            if ended_ms:
                ui.timer(0.1, self._ask, once=True)

    def _fail(self, why: object) -> None:
        self._problem.text, self._problem.visible = shown(why, 1000), True


async def _answer(plan: Plan) -> bool | None:
    """Asks; names how many, of which group, and where they go. None: nobody answered in time."""
    count = sum(number for _, number in plan.targets)
    with ui.dialog() as dialog, ui.card().classes("lb-card").props("data-testid=confirm"):
        ui.label(f"Send {counted(count, 'dead letter')} of {shown(plan.group)} again?").classes("lb-title")
        for topic, number_there in plan.targets[:20]:
            ui.label(f"{number_there:,} to topic {shown(topic)}").classes("lb-text")
        if len(plan.targets) > 20:
            ui.label(f"and to {len(plan.targets) - 20} more topics").classes("lb-note")
        if plan.again:
            ui.label(
                f"{plan.again:,} of them this console has sent again already; they would be there once more."
            ).classes("lb-bad")
        if plan.maybe:
            ui.label(
                f"{plan.maybe:,} of them may have been sent again by this console: the gateway did not answer."
            ).classes("lb-bad")
        if plan.missing:
            ui.label(
                f"{plan.missing:,} of those chosen were not found at {shown(plan.gateway)}: another broker has them, or they are gone."
            ).classes("lb-bad")
        if plan.failing:
            ui.label(f"{plan.failing:,} more cannot be sent: {shown(plan.why)}").classes("lb-note")
        ui.label(
            f"By the gateway at {shown(plan.gateway)}. They are new messages to every group that reads these topics; the dead "
            "letters stay where they are."
        ).classes("lb-note")
        with ui.element("div").classes("lb-row"):
            ui.button("Send again", on_click=lambda: dialog.submit(True)).props(
                "unelevated no-caps color=primary data-testid=confirm-send"
            ).set_enabled(count > 0)
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
        ui.timer(ANSWER_S, lambda: dialog.submit(_LATE), once=True)
    answer = await dialog
    dialog.clear()
    return None if answer == _LATE else bool(answer)


def _group(console: Console, group: str) -> dict[str, str]:
    status = console.poll.topics.value.get(dead_letter_topic(group))
    return {
        "name": shown(group),
        "name_link": f"/dead-letters?{urlencode({'group': group})}",
        "messages": "" if status is None else number(status.messages),
        "newest": "" if status is None else when_ms(status.newest_ms),
    }


def _letter(console: Console, row: Row) -> dict[str, Any]:
    place = Place(row["dlq_queue_id"], row["dlq_queue_offset"], str(row["message_id"]), row["broker"] or "")
    return {
        "id": shown(f"{row['broker']} {row['dlq_queue_id']} {row['dlq_queue_offset']}", 1000),
        "place": list(place),
        "again": _again(console.replays.mark(row["consumer_group"], place)),
        "at": when(row["dead_lettered_timestamp"]),
        "message_id": shown(row["message_id"]),
        "message_id_link": message_link(
            console, str(row["message_id"]), dead_letter_topic(row["consumer_group"])
        ),
        "topic": "unknown" if row["topic"] is None else shown(row["topic"]),
        "keys": shown(" ".join(row["keys"])),
        "attempts": number(row["attempts"]),
        "reason": "unknown" if row["reason"] is None else shown(row["reason"]),
        "body": excerpt(row["body"]),
        "bytes": number(row["body_bytes"]),
    }


def _again(mark: Mark | None) -> str:
    if mark is None:
        return ""
    return when_ms(mark.at_ms) if mark.sure else f"perhaps, {when_ms(mark.at_ms)}"
