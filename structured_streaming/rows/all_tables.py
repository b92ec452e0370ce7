"""The rows that some records have in every table."""

from __future__ import annotations

from collections.abc import Container, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.rows.indexes import consume_queue, message_index
from structured_streaming.rows.messages import messages
from structured_streaming.rows.records import Records, TopicTest, every_topic
from structured_streaming.tables import CONSUME_QUEUE, MESSAGE_INDEX, MESSAGES, TABLES, Table


def rows_of(
    records: Records,
    wanted: Container[str] = frozenset(TABLES),
    has_body: TopicTest = every_topic,
) -> Iterator[tuple[Table, Iterator[pa.Table]]]:
    """What each file holds: the rows of some records in all tables that are `wanted`, but quarantine. Messages have
    bodies where their topic `has_body`."""
    if CONSUME_QUEUE.name in wanted:
        yield CONSUME_QUEUE, iter((consume_queue(records),))
    if MESSAGE_INDEX.name in wanted:
        for kind in message_index(records):
            yield MESSAGE_INDEX, iter((kind,))
    if MESSAGES.name in wanted:
        yield MESSAGES, messages(records, has_body=has_body)
    for table, rows in records.journal.tables():
        if table.name in wanted:
            yield table, iter((_ordered(table, rows),))


def _ordered(table: Table, rows: pa.Table) -> pa.Table:
    keys = [(column, "ascending") for column in table.order]
    return rows.take(pc.sort_indices(rows, keys)) if rows.num_rows else rows
