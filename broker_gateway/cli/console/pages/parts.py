"""Common parts of pages: the frame, tables, charts, and what was answered when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nicegui import context, ui

from broker_gateway.cli.console.poll import Fact, Watched
from broker_gateway.cli.console.server import Console
from broker_gateway.cli.console.text import distinct, duration, given, shown

PAGES = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/message", "Message"),
    ("/dead-letters", "Dead letters"),
    ("/tasks", "Tasks"),
)
REFRESH_S = 1.0
LOADING = "loading…"
"""Of what was not answered yet."""
NOT_KNOWN = "not known: the reason is above"
"""Of what was asked for, and could not be answered."""
_OF_NONE = "no-data-label"
_MOST_SEARCHED = 255
"""Characters of a search."""
_COLOURS = ("#2f6f9f", "#c2703d", "#3f8f6b", "#8a63a8", "#b0894a", "#5b6b7b", "#a84f5f", "#4a9aa8")
_AXIS = "#8592a0"
_STYLE = """
:root { --line: #dfe4ea; --soft: #5d6b7a; --card: #ffffff; --page: #f4f6f8; --ink: #1d2733; --link: #1f6392; --bad: #a3341f; --badbg: #fbeae6 }
.body--dark { --line: #2c3742; --soft: #9aa8b6; --card: #1b232b; --page: #12181e; --ink: #e3e9ef; --link: #7fbbe6; --bad: #f0a795; --badbg: #3a211c }
body { background: var(--page); color: var(--ink); font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 14px }
.nicegui-content { padding: 0 !important; gap: 0 !important }
.lb-head { background: var(--card); border-bottom: 1px solid var(--line); width: 100%; padding: 0 20px; display: flex; flex-wrap: wrap; align-items: center; gap: 2px 18px }
.lb-name { font-weight: 650; padding: 12px 0; white-space: nowrap }
.lb-nav { display: flex; gap: 4px; overflow-x: auto; flex: 1 1 auto; min-width: 0 }
.lb-nav a { color: var(--soft); text-decoration: none; padding: 13px 10px 11px; border-bottom: 2px solid transparent; white-space: nowrap }
.lb-nav a.now { color: var(--ink); border-bottom-color: var(--link) }
.lb-nav a:hover { color: var(--ink) }
.lb-where { color: var(--soft); font-size: 12px; overflow-wrap: anywhere; padding: 4px 0 }
.lb-main { width: 100%; max-width: 1320px; margin: 0 auto; padding: 18px 20px 40px; display: flex; flex-direction: column; gap: 16px }
.lb-card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; width: 100%; min-width: 0 }
.lb-title { font-size: 15px; font-weight: 620; margin: 0 }
.lb-row { display: flex; flex-wrap: wrap; gap: 10px 14px; align-items: center; width: 100% }
.lb-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; width: 100% }
.lb-tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px }
.lb-tile .v { font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
.lb-tile .k { color: var(--soft); font-size: 12px }
.lb-note { color: var(--soft); font-size: 12px }
.lb-bad { color: var(--bad); background: var(--badbg); border-radius: 6px; padding: 8px 12px; width: 100%; overflow-wrap: anywhere }
.lb-gap { margin-top: 6px }
.lb-text { unicode-bidi: isolate; overflow-wrap: anywhere }
.lb-body { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 420px; overflow: auto; border: 1px solid var(--line); border-radius: 6px; padding: 10px; width: 100%; unicode-bidi: isolate }
.lb-link, .lb-table a { color: var(--link); text-decoration: none }
.lb-link:hover, .lb-table a:hover { text-decoration: underline }
.lb-table { width: 100%; background: transparent; box-shadow: none }
.lb-table .q-table { min-width: 100%; width: auto }
body { --q-primary: #2f6f9f !important }
.lb-table th, .lb-table td { border-color: var(--line) !important }
.lb-title:not(:first-child) { margin-top: 14px }
.lb-table th { color: var(--soft); font-weight: 550; font-size: 12px }
.lb-table td { font-variant-numeric: tabular-nums; max-width: 420px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate }
.lb-table td.wide { white-space: normal; overflow-wrap: anywhere; min-width: 180px }
.body--dark .q-table, .body--dark .q-card { background: transparent; color: var(--ink) }
.body--dark .q-dialog .q-card { background: var(--card) }
@media (max-width: 600px) { .lb-head, .lb-main { padding-left: 12px; padding-right: 12px } .lb-nav { flex-basis: 100% } .lb-name { padding: 10px 0 0 } .lb-card { padding: 12px } }
"""


class Column(NamedTuple):
    """Of a table. `number`: aligned to the right. `link`: cells whose row has `NAME_link` lead there. `wide`: may have several lines."""

    name: str
    label: str
    number: bool = False
    link: bool = False
    wide: bool = False


@contextlib.contextmanager
def frame(console: Console, path: str) -> Iterator[None]:
    """The head, and around what is built within."""
    ui.add_css(_STYLE)
    with ui.element("header").classes("lb-head"):
        ui.label("lakebroker").classes("lb-name")
        with ui.element("nav").classes("lb-nav"):
            for to, name in PAGES:
                ui.link(name, to).classes("now" if to == path else "", remove="nicegui-link")
        mode = "replay allowed" if console.replays.allowed else "read-only"
        ui.label(f"{shown(console.places.named)} · {mode}").classes("lb-where")
    with ui.element("main").classes("lb-main"):
        yield


@contextlib.contextmanager
def card(title: str = "") -> Iterator[None]:
    """A framed part of the page."""
    with ui.element("section").classes("lb-card"):
        if title:
            heading(title)
        yield


def heading(title: str) -> None:
    """Of a card."""
    ui.label(title).classes("lb-title").props("role=heading aria-level=2")


def watched(console: Console, what: Callable[[], Watched]) -> Callable[[], None]:
    """Tells the poll what this tab shows, now and whenever the returned function is called; nothing when the tab is gone."""
    client = context.client
    client.on_disconnect(lambda: console.poll.left(client.id))
    client.on_delete(lambda: console.poll.left(client.id))

    def tell() -> None:
        console.poll.watched(client.id, what())

    client.on_connect(tell)
    return tell


def message_link(console: Console, message_id: str, topic: str) -> str:
    """To its page. A broker alone looks in one topic."""
    place = {} if console.places.lake is not None else {"topic": topic}
    return f"/message?{urlencode({'key': message_id, **place})}"


def refreshed(show: Callable[[], None]) -> None:
    """Calls it now, and again as long as the tab is open."""
    show()
    ui.timer(REFRESH_S, show, immediate=False)


class Note:
    """When a fact was answered, why it is not newer, and what it lacks."""

    def __init__(self, what: str, stale_s: float) -> None:
        """`stale_s`: from what age on it is said."""
        self._what = what
        self._stale_s = stale_s
        self._bad = ui.label().classes("lb-bad").props("data-testid=problem role=alert")
        self._bad.visible = False
        self._lacks = ui.label().classes("lb-note").props("data-testid=lacks")
        self._lacks.visible = False

    def show(self, *facts: Fact[Any]) -> None:
        """Of several that are shown together: the first that has something to say."""
        said = next(filter(None, map(self._said, facts)), "")
        self._bad.visible = bool(said)
        self._bad.text = said
        lacks = "; ".join(dict.fromkeys(line for fact in facts for line in fact.said))
        self._lacks.text, self._lacks.visible = shown(lacks, 2000), bool(lacks)

    def _said(self, fact: Fact[Any]) -> str:
        age = fact.age_s()
        known = f"; shown is what was known {duration(age)} ago" if age is not None else ""
        if fact.error:
            return f"{self._what}: {shown(fact.error, 1000)}{known}"
        if age is not None and age > self._stale_s:
            return f"{self._what}: no answer yet to what was asked last{known}"
        return ""


def unanswered(*facts: Fact[Any]) -> str:
    """What stands in the place of facts of which one was never answered; empty where all were."""
    missing = [fact for fact in facts if fact.at_s is None]
    return "" if not missing else NOT_KNOWN if any(fact.error for fact in missing) else LOADING


class Table:
    """Rows of texts and numbers for people, all of them sent to the tab: give it a page of them. Until the first are shown, it is
    loading. `empty` is what it says then where there are none."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        key: str,
        test_id: str,
        selection: bool = False,
        empty: str = "none",
    ) -> None:
        self._columns = columns
        self._empty = empty
        self.table = ui.table(
            columns=[
                {
                    "name": each.name,
                    "label": each.label,
                    "field": each.name,
                    "align": "right" if each.number else "left",
                    "classes": "wide" if each.wide else "",
                }
                for each in columns
            ],
            rows=[],
            row_key=key,
            selection="multiple" if selection else None,
        ).classes("lb-table")
        self.table.props(f"flat dense data-testid={test_id}")
        self.table.add_slot("no-data", '<span class="lb-note">{{ props.message }}</span>')
        self._say(LOADING)
        for each in columns:
            if each.link:
                self.table.add_slot(
                    f"body-cell-{each.name}",
                    f'<q-td :props="props"><a v-if="props.row.{each.name}_link" :href="props.row.{each.name}_link" '
                    ':title="props.value">{{ props.value }}</a><span v-else>{{ props.value }}</span></q-td>',
                )

    def show(self, rows: Sequence[Mapping[str, Any]], instead: str = "") -> None:
        """Sends them where they differ from those that are shown. `instead`: why no rows are no answer; empty where they are one."""
        self._say(instead or self._empty)
        made = [dict(row) for row in rows]
        if self.table.rows != made:
            self.table.rows = made

    def _say(self, of_none: str) -> None:
        if self.table.props.get(_OF_NONE) != of_none:
            self.table.props[_OF_NONE] = of_none
            self.table.update()


class Pages:
    """A search by name, and pages of what it finds: the tab gets a page, never all of it."""

    SIZE = 25

    def __init__(self, what: str, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._what = what
        self._page = 0
        self._last = 0
        with ui.element("div").classes("lb-row"):
            self._search = ui.input(placeholder=f"Search {what}", on_change=self._searched)
            self._search.props(
                f"dense outlined clearable debounce=200 maxlength={_MOST_SEARCHED} data-testid=search"
            )
            ui.space()
            self._said = ui.label().classes("lb-note").props("data-testid=count")
            self._before = ui.button(icon="chevron_left", on_click=lambda: self._go(-1))
            self._behind = ui.button(icon="chevron_right", on_click=lambda: self._go(1))
            for button, name in ((self._before, "previous page"), (self._behind, "next page")):
                button.props(f'flat dense round aria-label="{name}"')

    def of(self, names: Sequence[Any], name: Callable[[Any], str], instead: str = "") -> Sequence[Any]:
        """Those of the page that is shown. `instead` as of `Table.show`."""
        wanted = given(self._search.value, _MOST_SEARCHED).casefold()
        found = [each for each in names if wanted in name(each).casefold()] if wanted else names
        self._last = max((len(found) - 1) // self.SIZE, 0)
        self._page = min(self._page, self._last)
        start = self._page * self.SIZE
        page = found[start : start + self.SIZE]
        of = f" of {len(names):,}" if wanted else ""
        self._said.text = (
            f"{start + 1:,} to {start + len(page):,} of {len(found):,}{' found' if wanted else ''}{of}"
            if page
            else instead or f"no {self._what}{' found' if wanted else ''}"
        )
        self._before.set_enabled(self._page > 0)
        self._behind.set_enabled(self._page < self._last)
        return page

    def _searched(self) -> None:
        self._page = 0
        self._changed()

    def _go(self, by: int) -> None:
        self._page = min(max(self._page + by, 0), self._last)
        self._changed()


class Lines:
    """A chart of lines over time."""

    def __init__(self, unit: str, test_id: str, height: int = 260) -> None:
        """`unit`: what its axis counts."""
        self._shown: dict[str, list[list[float]]] = {}
        self.chart = ui.echart(
            {
                "animation": False,
                "color": list(_COLOURS),
                "grid": {"left": 56, "right": 16, "top": 34, "bottom": 26},
                "legend": {
                    "top": 0,
                    "type": "scroll",
                    "textStyle": {"color": _AXIS},
                    "icon": "roundRect",
                    "itemHeight": 4,
                },
                "tooltip": {"trigger": "axis", "renderMode": "richText"},
                "xAxis": {
                    "type": "time",
                    "axisLabel": {"color": _AXIS},
                    "axisLine": {"lineStyle": {"color": _AXIS}},
                },
                "yAxis": {
                    "type": "value",
                    "name": unit,
                    "min": 0,
                    "nameTextStyle": {"color": _AXIS, "align": "left"},
                    "nameGap": 10,
                    "axisLabel": {"color": _AXIS},
                    "splitLine": {"lineStyle": {"color": "#8592a033"}},
                },
                "series": [],
            }
        )
        self.chart.style(f"height: {height}px; width: 100%").props(f"data-testid={test_id}")

    def show(self, lines: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """By name: times in ms since the epoch, and values."""
        made: dict[str, list[list[float]]] = {}
        for name, points in lines.items():
            made[distinct(shown(name, 60), made)] = [[at, value] for at, value in points]
        if made == self._shown:
            return
        self._shown = made
        self.chart.options["series"] = [
            {
                "type": "line",
                "name": name,
                "data": points,
                "showSymbol": len(points) < 3,
                "lineStyle": {"width": 2},
            }
            for name, points in made.items()
        ]
        self.chart.update()
