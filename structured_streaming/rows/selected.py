"""Some rows and columns of one table from a scan: records that are not wanted are dropped before rows are made.

| condition on | drops records of |
|---|---|
| `physical_offset`, the time a record was stored | any table but quarantine |
| `topic`, `queue_id`, `queue_offset` | consume_queue, message_index, messages, typed tables, whose rows say them of their record |

A condition on another column drops nothing: who asks for rows still has to filter them. Records that cannot have
rows in the table (the journal's in `messages`, all others in `consumer_offsets`) are dropped always.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.scan import Scan, topic_codes
from structured_streaming import tables
from structured_streaming.rows.conditions import STORED, Condition, Relation
from structured_streaming.rows.indexes import consume_queue, message_index
from structured_streaming.rows.messages import messages
from structured_streaming.rows.pieces import Piece, taken
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records, Rejected, subset
from structured_streaming.tables import JOURNAL_TOPIC

_OF_TEXTS: dict[Relation, Callable[[pa.StringArray, str], pa.BooleanArray]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OF_ANY: dict[str, Callable[[Scan], NDArray[np.int64]]] = {
    "physical_offset": lambda scan: scan.physical_offset,
    STORED: lambda scan: scan.store_timestamp * 1000,
}
_OF_RECORDS: dict[str, Callable[[Scan], NDArray[np.int64]]] = {
    **_OF_ANY,
    "queue_id": lambda scan: scan.queue_id,
    "queue_offset": lambda scan: scan.queue_offset,
}
_JOURNAL_TABLES = (
    tables.CONSUMER_OFFSETS,
    tables.DELIVERY_EVENTS,
    tables.BROKER_STATS,
    tables.TOPICS,
    tables.CONSUMER_GROUPS,
    tables.ERASURES,
)


class OfTopic(Protocol):
    """A table with the messages of one topic. It can be pickled."""

    @property
    def topic(self) -> str:
        """Whose messages."""

    @property
    def table(self) -> tables.Table:
        """With which columns."""

    def rows(self, records: Records) -> Iterator[pa.Table]:
        """Of the records that are on the topic, a bounded number of bytes at a time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a table that are wanted, as far as `conditions` tell, and its columns, at least one."""

    name: str
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    typed: OfTopic | None = None
    """Of a table that no lake has by itself: what makes its rows."""

    @property
    def table(self) -> tables.Table:
        return tables.TABLES[self.name] if self.typed is None else self.typed.table

    @property
    def schema(self) -> pa.Schema:
        whole = self.table.schema
        return pa.schema([whole.field(name) for name in self.columns])

    def records(self, found: Scan) -> Scan:
        """The records of a scan that may have such rows."""
        if self.table is tables.QUARANTINE or not len(found):
            return found
        kept = np.ones(len(found), dtype=bool)
        of_journal = self.table in _JOURNAL_TABLES
        columns = _OF_ANY if of_journal else _OF_RECORDS
        for condition in self.conditions:
            if condition.column in columns:
                kept &= condition.mask(columns[condition.column](found))
        kept &= self._topics(found, of_journal)
        return found if kept.all() else subset(found, np.flatnonzero(kept))

    def _topics(self, found: Scan, of_journal: bool) -> NDArray[np.bool_]:
        """Which records have a topic with such rows."""
        codes, found_names = topic_codes(found)
        names = pa.array(found_names, pa.string())
        if of_journal:
            wanted = pc.equal(names, JOURNAL_TOPIC)
        else:
            # its own consume_queue rows need the journal read: a record of it that is none has no row
            without = JOURNAL_TOPIC if self.table is not tables.CONSUME_QUEUE else ""
            wanted = pc.not_equal(names, without)
            if self.typed is not None:
                wanted = pc.equal(names, self.typed.topic)
            for each in self.conditions:
                if each.column == "topic":
                    wanted = pc.and_(wanted, _that_meet(names, each))
        mask: NDArray[np.bool_] = wanted.to_numpy(zero_copy_only=False)[codes]
        return mask


def _that_meet(texts: pa.StringArray, condition: Condition) -> pa.BooleanArray:
    """Which texts meet a condition."""
    if condition.relation == "in":
        return pc.is_in(texts, pa.array(condition.value, pa.string()))
    return _OF_TEXTS[condition.relation](texts, condition.value)


def batches(piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a scan in the selection's table, with its exact schema."""

    def take(records: Records) -> tuple[Iterator[pa.Table], list[Rejected]]:
        parts = _parts(records, selection)
        first = next(parts, None)  # what fails for a record fails here
        return itertools.chain(() if first is None else (first,), parts), records.rejected

    rejected: list[Rejected] = []
    for result in taken(piece._replace(found=selection.records(piece.found)), take, take):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        rejected += result[1]
        for rows in result[0]:
            yield from _of_schema(rows, selection)
    if selection.table is tables.QUARANTINE:
        yield from _of_schema(quarantine(piece.broker, piece.log_id, piece.found, rejected), selection)


def _parts(records: Records, selection: Selection) -> Iterator[pa.Table]:
    """The rows of the records, all columns but those of `messages` that are not wanted."""
    table = selection.table
    if selection.typed is not None:
        yield from selection.typed.rows(records)
    elif table is tables.MESSAGES:
        yield from messages(records, selection.columns)
    elif table is tables.CONSUME_QUEUE:
        yield consume_queue(records)
    elif table is tables.MESSAGE_INDEX:
        yield from message_index(records)
    else:
        yield from (rows for of, rows in records.journal.tables() if of is table)


def _of_schema(rows: pa.Table, selection: Selection) -> list[pa.RecordBatch]:
    found = rows.select(selection.columns).cast(selection.schema)
    return list(found.combine_chunks().to_batches())
