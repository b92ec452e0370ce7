"""What questions are answered with: the columns of each, and how they are printed.

Columns have the names of the lake's tables and views, but for those that these do not have. JSON has all, times in ISO 8601 and UTC, null for what is not known or
not there, and whole bodies. A table shows `unknown` for what is not known, and the beginning of bodies. So that a row has room
on a line, its heads are short, and it leaves out columns that the question itself says; names and places that are the same in
all rows stand in a line above it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer

from broker_gateway.cli.output import body_row, lines, show_table, time_for_people
from broker_gateway.metadata.names import RESERVED_PROPERTIES

Row = dict[str, Any]
"""Values by column; times are datetimes in UTC, bodies bytes."""


class Columns(NamedTuple):
    """Of an answer, in their order. `unknown`: None is what is not known there; elsewhere it is what there is not."""

    shown: tuple[str, ...]
    unknown: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    """What stands above a table where it is the same in all rows."""
    bodies: bool = False
    """Whether there are bodies, and in JSON properties."""
    more: tuple[str, ...] = ()
    """What only JSON has."""


MESSAGES = Columns(
    (
        "store_timestamp",
        "topic",
        "broker",
        "queue_id",
        "queue_offset",
        "message_id",
        "tag",
        "keys",
        "body_bytes",
        "body",
    ),
    frozenset(("broker", "body_bytes", "body")),
    frozenset(("topic", "broker")),
    bodies=True,
)
TRACE = Columns(
    ("message_id", "event_timestamp", "event", "topic", "consumer_group", "attempt", "client", "broker", "queue_id",
     "queue_offset"),
    frozenset(("broker",)),
    frozenset(("message_id", "topic", "broker", "queue_id", "queue_offset")),
)  # fmt: skip
LAG = Columns(
    (
        "consumer_group",
        "topic",
        "broker",
        "queue_id",
        "committed_offset",
        "max_offset",
        "lag",
        "commit_timestamp",
    ),
    frozenset(("broker", "committed_offset", "max_offset", "lag", "commit_timestamp")),
    frozenset(("topic", "broker")),
)
TOTALS = Columns(
    ("consumer_group", "topic", "queues", "lag", "unknown", "commit_timestamp"),
    frozenset(("lag", "commit_timestamp")),
)
DEAD_LETTERS = Columns(
    ("consumer_group", "topic", "broker", "queue_id", "queue_offset", "message_id", "tag", "keys", "attempts", "reason",
     "dead_lettered_timestamp", "body_bytes", "body"),
    frozenset(("broker", "topic", "queue_id", "queue_offset", "attempts", "reason", "body_bytes", "body")),
    frozenset(("consumer_group", "topic", "broker", "queue_id", "queue_offset")),
    bodies=True,
    more=("origin_message_id", "dlq_queue_id", "dlq_queue_offset"),
)  # fmt: skip
"""Topic, queue and offset are those of the message before it died, and ids those of the view `dead_letters`; `dlq_…` are its place in
the group's dead-letter topic."""
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


def message_row(
    topic: str,
    broker: str | None,
    queue: int,
    offset: int,
    message_id: str,
    tag: str | None,
    keys: Sequence[str],
    stored: datetime,
    body: bytes | None,
    properties: dict[str, str],
    body_bytes: int | None = None,
) -> Row:
    """A message; its properties are those that its sender gave it. `body_bytes`: of a body that is cut, how many it has."""
    return {
        "store_timestamp": stored,
        "topic": topic,
        "broker": broker,
        "queue_id": queue,
        "queue_offset": offset,
        "message_id": message_id,
        "tag": tag or None,
        "keys": list(keys),
        "body_bytes": len(body) if body is not None and body_bytes is None else body_bytes,
        "body": body,
        "properties": {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES},
    }


def stored_row(message: Row) -> Row:
    """The event of a trace that says where a message was stored."""
    return {
        "message_id": message["message_id"],
        "event_timestamp": message["store_timestamp"],
        "event": "stored",
        "topic": message["topic"],
        "consumer_group": None,
        "attempt": None,
        "client": None,
        "broker": message["broker"],
        "queue_id": message["queue_id"],
        "queue_offset": message["queue_offset"],
    }


def totals(rows: Sequence[Row]) -> list[Row]:
    """A row for each group and topic of lag: what is known together, and of how many queues it is not known."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        one = found.setdefault(
            (row["consumer_group"], row["topic"]),
            {"consumer_group": row["consumer_group"], "topic": row["topic"], "queues": 0, "lag": None, "unknown": 0,
             "commit_timestamp": None},
        )  # fmt: skip
        one["queues"] += 1
        if row["lag"] is None:
            one["unknown"] += 1
        else:
            one["lag"] = (one["lag"] or 0) + row["lag"]
        at = row["commit_timestamp"]
        if at is not None:
            one["commit_timestamp"] = max(one["commit_timestamp"] or at, at)
    return list(found.values())


def print_rows(
    rows: Sequence[Row], columns: Columns, *, as_json: bool, whole: bool = False, said: Collection[str] = ()
) -> None:
    """Prints an answer; `said` are columns that the question says, `whole` shows whole bodies in a table."""
    if as_json:
        typer.echo(json.dumps([_json(row, columns) for row in rows]))
        return
    shown = [name for name in columns.shown if name not in said]
    cells = [[_cell(row[name], name in columns.unknown, whole) for name in shown] for row in rows]
    above = {
        name
        for at, name in enumerate(shown)
        if name in columns.above and len({row[at] for row in cells}) == 1
    }
    if above:
        same = (
            f"{_HEADS.get(name, name)} {cell}"
            for name, cell in zip(shown, cells[0], strict=True)
            if name in above
        )
        typer.echo(lines(", ".join(same)))
    left = [at for at, name in enumerate(shown) if name not in above]
    show_table([_HEADS.get(shown[at], shown[at]) for at in left], ([row[at] for at in left] for row in cells))


def shown_time(time: datetime) -> str:
    """For people."""
    return time_for_people(time.astimezone(UTC).isoformat(timespec="microseconds"))


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
