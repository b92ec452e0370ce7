"""Rows of consume_queue and message_index: what RocketMQ's files of the same names hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.log.record import SYS_COMMIT, SYS_ROLLBACK, SYS_TRANSACTION_MASK
from store.scan import Longs
from structured_streaming import tables
from structured_streaming.rows import due
from structured_streaming.rows.arrays import constant, table_of, text, timestamps
from structured_streaming.rows.records import Records
from structured_streaming.tables import JOURNAL_TOPIC


def consume_queue(records: Records) -> pa.Table:
    """Prepared and rolled-back records have no row; an erased one has where it is the last of its queue."""
    rows = _queue_rows(records)
    if records.queue_ends is None:
        return rows
    return pa.concat_tables([rows, _queue_rows(records.queue_ends)]).unify_dictionaries().combine_chunks()


def _queue_rows(records: Records) -> pa.Table:
    scan = records.scan
    kind = scan.sys_flag & SYS_TRANSACTION_MASK
    rows = np.flatnonzero((kind == 0) | (kind == SYS_COMMIT))
    rows = rows[np.lexsort((scan.queue_offset[rows], scan.queue_id[rows], records.ranks(rows)))]
    waiting, until = records.level_times(rows)
    tags_code = np.where(waiting, until, scan.tags_code[rows])
    unknown = waiting & (until == due.UNKNOWN)
    return table_of(
        tables.CONSUME_QUEUE,
        records.place(rows)
        | records.queue(rows)
        | {
            "size": pa.array(scan.size[rows], pa.int32()),
            "tags_code": pa.array(tags_code, mask=unknown if unknown.any() else None),
            "store_timestamp": timestamps(scan.store_timestamp[rows]),
        },
    )


def message_index(records: Records) -> tuple[pa.Table, pa.Table]:
    """Rows of UNIQ_KEY and rows of KEYS; rolled-back records and the journal have none."""
    scan = records.scan
    listed = (scan.sys_flag & SYS_TRANSACTION_MASK) != SYS_ROLLBACK
    listed &= ~records.rows_on(JOURNAL_TOPIC)
    starts, lengths = records.properties[b"UNIQ_KEY"]
    rows = np.flatnonzero(listed & (starts >= 0) & (lengths > 0))
    unique = _index_rows(records, rows, "UNIQ_KEY", starts[rows], lengths[rows])
    offsets, word_start, word_length = records.key_words
    repeated = np.repeat(np.arange(len(scan)), np.diff(offsets))
    if not listed.all():
        kept = listed[repeated]
        repeated, word_start, word_length = repeated[kept], word_start[kept], word_length[kept]
    named = _index_rows(records, repeated, "KEYS", word_start, word_length)
    several = len(repeated) and int(np.diff(offsets).max()) > 1
    return unique, _distinct(named) if several else named


def _index_rows(records: Records, rows: NDArray[np.intp], kind: str, start: Longs, length: Longs) -> pa.Table:
    keys = text(records.scan.buffer, start, length)
    by = pa.table({"topic": pa.array(records.ranks(rows)), "key": keys})
    order = pc.sort_indices(by, [("topic", "ascending"), ("key", "ascending")])
    rows = rows[order.to_numpy()]
    return table_of(
        tables.MESSAGE_INDEX,
        records.place(rows)
        | {"key_type": constant(kind, len(rows)), "key": keys.take(order)}
        | records.queue(rows)
        | {"store_timestamp": timestamps(records.scan.store_timestamp[rows])},
    )


def _distinct(rows: pa.Table) -> pa.Table:
    """A message that repeats a key has one row for it."""
    pairs = pa.table({"o": rows["physical_offset"], "k": rows["key"], "i": pa.array(np.arange(len(rows)))})
    firsts = pairs.group_by(["o", "k"], use_threads=False).aggregate([("i", "min")])["i_min"]
    return rows if len(firsts) == len(rows) else rows.take(firsts.take(pc.sort_indices(firsts)))
