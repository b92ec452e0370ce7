"""The first page: brokers, rates, freshness of the lake."""

from __future__ import annotations

from datetime import UTC, datetime

from nicegui import ui

from broker_gateway.cli.console.facts import Broker
from broker_gateway.cli.console.pages.parts import (
    Column,
    Lines,
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
from broker_gateway.cli.console.text import duration, number, rate, shown, size, when

_STALE_S = 30.0
NOT_TOLD = "not told by this version"
"""Of a broker of an earlier version."""
_BROKERS = (
    Column("name", "broker"),
    Column("address", "gateway"),
    Column("version", "version"),
    Column("role", "role"),
    Column("up", "up", number=True),
    Column("log", "log", number=True),
    Column("disk", "disk free", number=True),
    Column("left", "disk lasts", number=True),
    Column("behind", "lake behind", number=True),
    Column("incoming", "in", number=True),
    Column("outgoing", "out", number=True),
    Column("clients", "clients", number=True),
)
_LAKE = (
    Column("broker", "broker"),
    Column("batch", "batch", number=True),
    Column("committed", "newest batch (UTC)"),
    Column("age", "age", number=True),
    Column("behind", "log behind it then", number=True),
)


def register(console: Console) -> None:
    """Makes the page known."""

    @ui.page("/", title="Overview · lakebroker")
    def page() -> None:
        with frame(console, "/"):
            _build(console)


def _build(console: Console) -> None:
    poll, with_brokers = console.poll, console.places.reached is not None
    watched(console, Watched)
    note = Note("brokers", _STALE_S)
    tiles = _Tiles(with_brokers)
    with card("Brokers") if with_brokers else card("Lake alone: no gateway was named"):
        brokers = Table(_BROKERS, key="address", test_id="brokers", empty="no broker is known")
        brokers.table.visible = with_brokers
    if with_brokers:
        with card("Messages a second, of all brokers"):
            rates = Lines("messages/s", "rates")
    with (
        card("Lake")
        if console.places.lake is not None
        else card("No lake was named: --lake shows its freshness")
    ):
        lake_note = Note("lake", _STALE_S)
        lake = Table(_LAKE, key="broker", test_id="freshness", empty="no batch yet")
        lake.table.visible = console.places.lake is not None

    def show() -> None:
        note.show(poll.brokers, poll.names)
        tiles.show(console)
        brokers.show([_row(each) for each in poll.brokers.value], unanswered(poll.brokers))
        if with_brokers:
            found = poll.history.rates()
            rates.show({"in": found["in"], "out": found["out"]})
        lake_note.show(poll.freshness)
        now = datetime.now(UTC)
        lake.show(
            [
                {
                    "broker": shown(each.broker),
                    "batch": number(each.batch),
                    "committed": when(each.committed),
                    "age": duration((now - each.committed).total_seconds()),
                    "behind": size(each.behind_bytes),
                }
                for each in poll.freshness.value
            ],
            unanswered(poll.freshness),
        )

    refreshed(show)


class _Tiles:
    """The most wanted figures."""

    def __init__(self, with_brokers: bool) -> None:
        self._values: dict[str, ui.label] = {}
        names = ["topics", "consumer groups", "groups with dead letters"]
        if with_brokers:
            names = ["messages in", "messages out", "clients", "waiting for their time", *names]
        with ui.element("div").classes("lb-tiles"):
            for name in names:
                with ui.element("div").classes("lb-tile"):
                    self._values[name] = ui.label("…").classes("v").props(f'data-testid="{name}"')
                    ui.label(name).classes("k")

    def show(self, console: Console) -> None:
        poll = console.poll
        there = [each for each in poll.brokers.value if not each.error]
        found: dict[str, str] = {}
        if there:
            found |= {
                "messages in": rate(sum(each.in_rate for each in there)),
                "messages out": rate(sum(each.out_rate for each in there)),
                "clients": number(sum(each.connections for each in there)),
                "waiting for their time": NOT_TOLD
                if any(each.earlier for each in there)
                else number(sum(each.waiting for each in there)),
            }
        if poll.names.at_s is not None:
            names = poll.names.value
            found |= {
                "topics": number(len(names.topics)),
                "consumer groups": number(len(names.groups)),
                "groups with dead letters": number(len(names.dead)),
            }
        for name, value in found.items():
            if name in self._values:
                self._values[name].text = value


def _row(broker: Broker) -> dict[str, str]:
    if broker.error:
        return {"name": "does not answer", "address": shown(broker.address), "version": shown(broker.error)}
    flow = {
        "incoming": rate(broker.in_rate),
        "outgoing": rate(broker.out_rate),
        "clients": number(broker.connections),
    }
    if broker.earlier:
        untold = dict.fromkeys(("name", "version", "log", "disk", "behind"), NOT_TOLD)
        return {"address": shown(broker.address), **untold, **flow}
    left = "" if broker.hours_left is None else duration(broker.hours_left * 3600)
    behind = (
        "not known"
        if broker.behind_bytes is None
        else f"{size(broker.behind_bytes)}, {duration(broker.behind_s)}"
    )
    return {
        "name": shown(broker.name),
        "address": shown(broker.address),
        "version": shown(broker.version),
        "role": shown(broker.role),
        "up": duration(broker.up_s),
        "log": size(broker.log_bytes),
        "disk": f"{size(broker.disk_free)} of {size(broker.disk_total)}",
        "left": left,
        "behind": behind,
        **flow,
    }
