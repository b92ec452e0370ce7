"""How answers are printed: as JSON, as a table, or as a narrow table.

JSON has all columns, times in ISO 8601 and UTC, null for what is not known or not there, and whole bodies. A table shows
`unknown` for what is not known, and the beginning of bodies. So that a row has room on a line, its heads are short, and it
leaves out columns that the question itself says; names and places that are the same in all rows stand in a line above it.

Where that does not fit the terminal, a row has the columns `narrow`: the time (the day stands above, where it is one), the
place in one column, and what else is said in another, cut to the width. Ids are never broken. Standard error says what is cut.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer
from rich.cells import cell_len, chop_cells
from rich.text import Text

from broker_gateway.cli.output import (
    body_row,
    lines,
    show_table,
    table_width,
    terminal_width,
    time_for_people,
    warn,
)
from broker_gateway.cli.questions.rows import Columns, Row
from broker_gateway.runtime.printable import printable
from store.counting import counted

_HEADS = {
    "store_timestamp": "stored",
    "event_timestamp": "at",
    "commit_timestamp": "committed_at",
    "dead_lettered_timestamp": "dead_since",
    "consumer_group": "group",
    "queue_id": "queue",
    "queue_offset": "offset",
    "committed_offset": "committed",
    "max_offset": "end",
    "body_bytes": "bytes",
}
"""What tables call columns; others by their names."""
_WHOLE = frozenset(("message_id",))
"""What is never broken: it is copied."""
_PLACE = ("topic", "broker", "queue_id", "queue_offset")
_LEAST = 8
"""Characters that a column of names, or of what is cut, has at least."""
_DAY = len("2026-11-25")
_TO_SECONDS = len("2026-11-25 08:00:00")


def print_rows(
    rows: Sequence[Row], columns: Columns, *, as_json: bool, whole: bool = False, said: Collection[str] = ()
) -> None:
    """Prints an answer; `said` are columns that the question says, `whole` shows whole bodies in a table."""
    if as_json:
        typer.echo(json.dumps([_json(row, columns) for row in rows]))
        return
    if not rows:
        typer.echo(columns.nothing)
        return
    shown = [name for name in columns.shown if name not in said]
    cells = [[_cell(row[name], name in columns.unknown, whole) for name in shown] for row in rows]
    above = _same(rows, [name for name in shown if name in columns.above])
    left = [at for at, name in enumerate(shown) if name not in above]
    heads = [_head(shown[at]) for at in left]
    wide = [[row[at] for at in left] for row in cells]
    width = terminal_width()
    if not whole and table_width(heads, wide, _WHOLE) > width:
        parts = [_Narrow.of(part, columns, said, width) for part in _parts(rows, columns.apart)]
        narrow = [part for part in parts if part is not None]
        if len(narrow) == len(parts):
            _print_narrow(narrow, width)
            return
    _say_above(_named(rows[0], above, columns))
    show_table(heads, wide, whole=_WHOLE)


def shown_time(time: datetime) -> str:
    """For people."""
    return time_for_people(time.astimezone(UTC).isoformat(timespec="microseconds"))


class _Narrow(NamedTuple):
    """Rows that fit the terminal."""

    above: list[str]
    heads: list[str]
    rows: list[list[str]]
    cut: frozenset[str]
    """Heads of what is not shown, or not as a whole."""

    @classmethod
    def of(cls, rows: Sequence[Row], columns: Columns, said: Collection[str], width: int) -> _Narrow | None:
        """None where they do not fit, however much is cut."""
        ids = [name for name in _WHOLE if name in columns.narrow and len(rows) == 1]
        above = _same(rows, [name for name in columns.shown if name in columns.above or name in ids])
        above = [name for name in above if name not in said]
        hidden = {*above, *said}
        names = [name for name in columns.narrow if name not in hidden]
        times = [name for name in names if name.endswith("_timestamp")]
        cells = {name: [_narrow_cell(row, name, columns, hidden) for row in rows] for name in names}
        days = {cell[:_DAY] for name in times for cell in cells[name] if cell[:_DAY].count("-") == 2}
        day = [f"on {next(iter(days))}"] if len(days) == 1 else []
        if day:
            for name in times:
                cells[name] = [each.removeprefix(day[0].removeprefix("on ") + " ") for each in cells[name]]
        lost = {*columns.shown} - {*names, *hidden, *columns.said, *_PLACE, "body_bytes"}
        cut = {_head(name) for name in lost}
        found = _fitted(cells, width)
        if found is None and not day:
            cells |= {name: [each[:_TO_SECONDS] for each in cells[name]] for name in times}
            cut |= {_head(name) for name in times}
            found = _fitted(cells, width)
        if found is None:
            return None
        if "what" in found and found["what"] != cells["what"]:
            cut.add("what")
        heads = [_head(name) for name in found]
        named = [*_named(rows[0], above, columns), *day]
        return cls(named, heads, list(map(list, zip(*found.values(), strict=True))), frozenset(cut))


def _fitted(cells: dict[str, list[str]], width: int) -> dict[str, list[str]] | None:
    """Columns of cells that fit: names may have several lines, `what` is cut; None where that does not do."""
    cells = {name: column for name, column in cells.items() if any(column)}
    needs = {name: max(map(cell_len, (_head(name), *column))) for name, column in cells.items()}
    bending = [name for name in ("where", "consumer_group", "topic") if name in cells]
    rest = width - table_width([" " * need for need in needs.values()], [])
    for name in (*(["what"] if "what" in cells else []), *bending):  # what is cut goes first
        taken = min(-rest, needs[name] - _LEAST) if rest < 0 else 0
        needs[name] -= max(taken, 0)
        rest += max(taken, 0)
    if rest < 0:
        return None
    for name in bending:
        cells[name] = ["\n".join(chop_cells(cell, needs[name])) for cell in cells[name]]
    if "what" in cells:
        cells["what"] = [_cut(cell, needs["what"]) for cell in cells["what"]]
    return cells


def _cut(cell: str, width: int) -> str:
    text = Text(cell)
    text.truncate(width, overflow="ellipsis")
    return text.plain


def _print_narrow(parts: Sequence[_Narrow], width: int) -> None:
    for part in parts:
        _say_above(part.above)
        show_table(part.heads, part.rows)
    cut = sorted(frozenset().union(*(part.cut for part in parts)))
    if cut:
        warn([f"{width} columns do not show all of {', '.join(cut)}; a wider terminal or --json does"])


def _parts(rows: Sequence[Row], column: str) -> Iterator[list[Row]]:
    for _, part in itertools.groupby(rows, lambda row: row[column] if column else None):
        yield list(part)


def _same(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Those of the columns that are the same in all rows."""
    return [name for name in names if rows and all(row[name] == rows[0][name] for row in rows)]


def _named(row: Row, names: Sequence[str], columns: Columns) -> list[str]:
    return [f"{_head(name)} {_cell(row[name], name in columns.unknown, False)}" for name in names]


def _say_above(named: Sequence[str]) -> None:
    if named:
        typer.echo(lines(", ".join(named)))


def _head(name: str) -> str:
    return _HEADS.get(name, name)


def _narrow_cell(row: Row, name: str, columns: Columns, hidden: Collection[str]) -> str:
    """On one line, without what has no effect on a terminal."""
    if name == "where":
        there = [each for each in _PLACE[:2] if each in columns.shown and each not in hidden]
        named = [_cell(row[each], each in columns.unknown, False) for each in there]
        numbers = [each for each in _PLACE[2:] if each in columns.shown and each not in hidden]
        place = ":".join("?" if row[each] is None else str(row[each]) for each in numbers)
        return printable(" ".join([*named, place] if place else named))
    if name != "what":
        return printable(_cell(row[name], name in columns.unknown, False))
    told = [
        _told(each, row[each]) for each in columns.said if each not in hidden and row[each] not in (None, [])
    ]
    return printable(" ".join(filter(None, told)))


def _told(name: str, value: Any) -> str:
    """A column's value, as it reads without its head."""
    if name == "attempt":
        return f"#{value}"
    if name == "attempts":
        return f"{counted(value, 'attempt')}:"
    return _cell(value, False, False)


def _json(row: Row, columns: Columns) -> dict[str, Any]:
    found = {name: _plain(row[name]) for name in (*columns.shown, *columns.more) if name != "body"}
    if not columns.bodies:
        return found
    body: bytes | None = row["body"]
    text = None if body is None else body.decode("utf-8", "replace")
    exact = body is None or (text or "").encode() == body
    return found | {
        "body": text,
        "body_base64": None if exact or body is None else base64.b64encode(body).decode(),
        "properties": row["properties"],
    }


def _plain(value: Any) -> Any:
    return f"{shown_time(value).replace(' ', 'T')}Z" if isinstance(value, datetime) else value


def _cell(value: Any, unknown: bool, whole: bool) -> str:
    if value is None:
        return "unknown" if unknown else ""
    if isinstance(value, datetime):
        return shown_time(value)
    if isinstance(value, bytes):
        return body_row(value, whole)["body"]
    return " ".join(value) if isinstance(value, list) else str(value)
