"""Options of a batch query, beside those that a stream has too; the table is in `data_source.py`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from structured_streaming.errors import SourceError
from structured_streaming.rows.conditions import STORED, Condition
from structured_streaming.rows.selected import Selection
from structured_streaming.source.options import SourceOptions
from structured_streaming.tables import DATA_TABLES, MESSAGES, QUARANTINE, Table
from structured_streaming.typed.declaration import unpacked
from structured_streaming.typed.topic import TypedRows

OF_BATCHES = ("table", "columns", "startingTimestamp", "endingTimestamp", "pushFilters")
_TABLES = {table.name: table for table in DATA_TABLES}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US = datetime.timedelta(microseconds=1)


class BatchOptions(SourceOptions):
    """What the options say. Raises SourceError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        if self.starting == "latest":
            raise SourceError(
                "option startingOffsets=latest: a batch query would read nothing; give earliest or JSON such as "
                '{"broker-a": 0}, or use startingTimestamp'
            )
        raw = {key.lower(): value for key, value in options.items()}
        self.selection = selection_of(options)
        self.push_filters = _truth(raw.get("pushfilters", "false"))


def selection_of(options: Mapping[str, str]) -> Selection:
    """The rows and columns that the options ask for. Raises SourceError, LakeError."""
    raw = {key.lower(): value for key, value in options.items()}
    name = raw.get("table", MESSAGES.name)
    typed = next((TypedRows(each) for each in unpacked(raw.get("typed", "")) if each.table == name), None)
    if name not in _TABLES and typed is None:
        raise SourceError(f"option table={name}: give one of {', '.join(_TABLES)}")
    table = typed.table if typed is not None else _TABLES[name]
    conditions = []
    for option, relation in (("startingTimestamp", ">="), ("endingTimestamp", "<")):
        text = raw.get(option.lower())
        if text is None:
            continue
        if table is QUARANTINE:
            raise SourceError(f"option {option}={text}: what is in quarantine has no time; leave it out")
        conditions.append(Condition(STORED, relation, _micros(option, text)))  # type: ignore[arg-type]
    return Selection(name, _columns(table, raw.get("columns")), tuple(conditions), typed)


def micros(time: datetime.datetime) -> int:
    """Microseconds since the epoch; a time without a zone is UTC."""
    aware = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // _US


def _columns(table: Table, text: str | None) -> tuple[str, ...]:
    every = tuple(table.schema.names)
    if text is None:
        return every
    named = [name.strip() for name in text.split(",") if name.strip()]
    for name in named:
        if name not in every:
            raise SourceError(
                f"option columns={text}: {table.name} has no column {name!r}, but {', '.join(every)}"
            )
    if not named or len(set(named)) < len(named):
        raise SourceError(f"option columns={text}: give each column once, at least one, divided by commas")
    return tuple(named)


def _micros(option: str, text: str) -> int:
    """ISO 8601 (UTC where it names no zone), or milliseconds since the epoch."""
    try:
        if text.isascii() and text.isdigit():
            return int(text) * 1000
        return micros(datetime.datetime.fromisoformat(text))
    except ValueError as error:
        raise SourceError(
            f"option {option}={text}: give a time such as 2026-11-24T03:40:12Z, or milliseconds since 1970"
        ) from error


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SourceError(f"option pushFilters={text}: give true or false")
    return text.lower() == "true"
