"""What questions are answered with: the columns of each, with the names of the lake's tables and views but for those that these
do not have. How they are printed is in `printing.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

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
    narrow: tuple[str, ...] = ()
    """Where these do not fit the terminal: `where` stands for the place, `what` for the columns `said`."""
    said: tuple[str, ...] = ()
    nothing: str = ""
    """What is said of an answer without rows."""
    apart: str = ""
    """The column that divides a narrow table; above each part it stands with what is the same there."""


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
    narrow=("store_timestamp", "where", "message_id", "what"),
    said=("tag", "keys", "body"),
    nothing="no messages",
)
TRACE = Columns(
    ("message_id", "event_timestamp", "event", "topic", "consumer_group", "attempt", "client", "broker", "queue_id",
     "queue_offset"),
    frozenset(("broker",)),
    frozenset(("message_id", "topic", "broker", "queue_id", "queue_offset")),
    narrow=("event_timestamp", "event", "where", "what"),
    said=("consumer_group", "attempt", "client"),
    nothing="no events",
    apart="message_id",
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
    narrow=("where", "committed_offset", "max_offset", "lag", "commit_timestamp"),
    nothing="no lag is known",
)
TOTALS = Columns(
    ("consumer_group", "topic", "queues", "lag", "unknown", "commit_timestamp"),
    frozenset(("lag", "commit_timestamp")),
    narrow=("consumer_group", "topic", "queues", "lag", "unknown"),
    nothing="no consumer group has received anything yet",
)
DEAD_LETTERS = Columns(
    ("consumer_group", "topic", "broker", "queue_id", "queue_offset", "message_id", "tag", "keys", "attempts", "reason",
     "dead_lettered_timestamp", "body_bytes", "body"),
    frozenset(("broker", "topic", "queue_id", "queue_offset", "attempts", "reason", "body_bytes", "body")),
    frozenset(("consumer_group", "topic", "broker", "queue_id", "queue_offset")),
    bodies=True,
    narrow=("dead_lettered_timestamp", "where", "message_id", "what"),
    said=("consumer_group", "attempts", "reason", "tag", "keys", "body"),
    nothing="no dead letters",
    more=("origin_message_id", "dlq_queue_id", "dlq_queue_offset"),
)  # fmt: skip
"""Topic, queue and offset are those of the message before it died, and ids those of the view `dead_letters`; `dlq_…` are its place in
the group's dead-letter topic."""


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
