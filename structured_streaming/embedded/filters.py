"""What the scan of a plan says of its filters, as DuckDB 1.5 writes it for people: `topic='it''s' AND queue_id>=5`.

Texts in it are anybody's. In a list of lines, texts are cut into lines too, and what follows a NUL is left out. So:

| what is read | then |
|---|---|
| a line whose quotes do not pair, or a table with a column whose name could be part of a filter | nothing is taken of the scan: no condition, and every column may be needed |
| a line that is not, from its begin to its end, comparisons joined by AND | no condition is taken of it |
| one that is | its conditions on what records can be told by; the others are left to the engine, which checks all of them again |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from structured_streaming.rows.conditions import STORED, Condition

_TEXT = r"'[^']*+(?:''[^']*+)*+'"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_TIME = "::TIMESTAMP WITH TIME ZONE"
_PLAIN = re.compile(r"[\w-]+")
"""Names of columns that are told from the rest of a filter."""
_PART = re.compile(
    rf"(?:optional: )?(?P<column>[\w-]+)"
    rf"(?:(?P<relation>=|!=|<=|>=|<|>)(?:(?P<number>{_NUMBER})|(?P<text>{_TEXT})(?P<time>{_TIME})?)"
    rf"| IN \((?:(?P<numbers>{_NUMBER}(?:, {_NUMBER})*)|(?P<texts>{_TEXT}(?:, {_TEXT})*))\))"
    r"(?:(?P<more> AND )|\Z)"
)
"""`optional` is what a filter above the scan asks for once more."""
_WHOLE = re.compile(r"-?\d{1,18}")
_TEXTS = ("broker", "log_id", "topic")
_NUMBERS = ("queue_id", "queue_offset", "physical_offset")


class Filtered(NamedTuple):
    """Columns that the filters of a scan need, and conditions that all rows meet which it wants."""

    columns: frozenset[str]
    conditions: frozenset[Condition]


def filtered(filters: Sequence[str], columns: Sequence[str]) -> Filtered:
    """`filters` are the lines of a scan of a table with such columns."""
    plain = all(_PLAIN.fullmatch(name) for name in columns)
    if filters and not (plain and all(line.count("'") % 2 == 0 for line in filters)):
        return Filtered(frozenset(columns), frozenset())
    words = {word for line in filters for word in re.findall(r"\w+", line)}
    named = {
        name for name in columns if name in words or ("-" in name and any(name in line for line in filters))
    }
    return Filtered(frozenset(named), frozenset(each for line in filters for each in _of(line)))


def _of(line: str) -> Iterator[Condition]:
    """The conditions of a line; none where it is not understood whole."""
    parts: list[re.Match[str]] = []
    while not parts or parts[-1]["more"]:
        part = _PART.match(line, parts[-1].end() if parts else 0)
        if part is None:
            return
        parts.append(part)
    yield from filter(None, map(_condition, parts))


def _condition(part: re.Match[str]) -> Condition | None:
    """None where records cannot be told by it."""
    column, relation = part["column"], part["relation"]
    if relation == "!=":
        return None
    if column in _NUMBERS:
        numbers = (part["number"] or part["numbers"] or "").split(", ")
        if not all(map(_WHOLE.fullmatch, numbers)):
            return None
        values: tuple[str | int, ...] = tuple(map(int, numbers))
    elif column in _TEXTS and not part["time"]:
        values = tuple(_unquoted(text) for text in re.findall(_TEXT, part["text"] or part["texts"] or ""))
    elif column == STORED and part["time"]:
        values = tuple(_microseconds(_unquoted(part["text"])))
    else:
        return None
    if not values:
        return None
    return Condition(column, "in", values) if relation is None else Condition(column, relation, values[0])  # type: ignore[arg-type]


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _microseconds(text: str) -> Iterator[int]:
    """Since the epoch; nothing of a time that Arrow has no name for, such as infinity."""
    try:
        yield pa.scalar(text, pa.string()).cast(pa.timestamp("us", "UTC")).value
    except pa.ArrowInvalid:
        return
