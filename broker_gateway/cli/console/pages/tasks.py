"""Scheduled tasks of brokers, and what waits for its time."""

from __future__ import annotations

from nicegui import ui

from broker_gateway.cli.console.facts import Broker, Task
from broker_gateway.cli.console.pages.parts import (
    Column,
    Note,
    Table,
    card,
    frame,
    refreshed,
    unanswered,
    watched,
)
from broker_gateway.cli.console.poll import Watched
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.text import duration, number, shown, when_ms
from broker_gateway.runtime.clock import now_ms

_STALE_S = 60.0
_TASKS = (
    Column("broker", "gateway"),
    Column("name", "task"),
    Column("period", "every", number=True),
    Column("runs", "runs", number=True),
    Column("failures", "failures", number=True),
    Column("ago", "last run", number=True),
    Column("took", "took", number=True),
    Column("error", "newest error", wide=True),
)
_WAITING = (
    Column("broker", "broker"),
    Column("waiting", "messages that wait for their time", number=True),
    Column("halves", "pending halves of transactions", number=True),
)


def register(console: Console) -> None:
    """Makes the page known."""

    @ui.page("/tasks", title="Tasks · lakebroker")
    def page() -> None:
        with frame(console, "/tasks"):
            _build(console)


def _build(console: Console) -> None:
    poll = console.poll
    watched(console, Watched)
    if console.places.reached is None:
        with card("Scheduled tasks are a broker's: name one with --gateway"):
            return
    note = Note("tasks", _STALE_S)
    with card("Waiting"):
        waiting = Table(_WAITING, key="id", test_id="waiting", empty="no broker answers")
    with card("Scheduled tasks"):
        tasks = Table(_TASKS, key="id", test_id="tasks")

    def show() -> None:
        note.show(poll.tasks, poll.brokers)
        waiting.show(
            [_waiting(each) for each in poll.brokers.value if not (each.error or each.earlier)],
            unanswered(poll.brokers),
        )
        tasks.show([_row(each) for each in poll.tasks.value], unanswered(poll.tasks))

    refreshed(show)


def _waiting(broker: Broker) -> dict[str, str]:
    return {
        "id": broker.address,
        "broker": shown(broker.name),
        "waiting": number(broker.waiting),
        "halves": number(broker.halves),
    }


def _row(task: Task) -> dict[str, str]:
    ago = "never" if not task.last_ms else f"{duration(max(now_ms() - task.last_ms, 0) / 1000)} ago"
    error = f"{when_ms(task.last_error_ms)} {shown(task.last_error, 300)}" if task.last_error else ""
    return {
        "id": f"{task.broker} {task.name}",
        "broker": shown(task.broker),
        "name": shown(task.name),
        "period": duration(task.period_s),
        "runs": number(task.runs),
        "failures": number(task.failures),
        "ago": ago,
        "took": f"{task.took_s * 1000:,.1f} ms",
        "error": error,
    }
