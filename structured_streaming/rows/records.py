"""Rows of consume_queue, message_index, messages and quarantine from a scan, each in its table's order.

Rows are ordered before their values are gathered from the log, so that bodies are copied once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.record import SYS_COMMIT, SYS_COMPRESSED, SYS_ROLLBACK, SYS_TRANSACTION_MASK
from store.scan import Longs, Scan, find_properties, split_properties, split_words, topic_codes
from structured_streaming import tables
from structured_streaming.rows.arrays import binary, constant, hosts, text, timestamps
from structured_streaming.rows.bodies import decompressed

JOURNAL_TOPIC = "rmq_sys_lakebroker_journal"
RAW_BYTES = 1 << 20
_SYSTEM_TOPICS = frozenset(
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    ]
)
_FOUND = (
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"__SHARDINGKEY",
    b"TIMER_OUT_MS",
    b"TIMER_DELIVER_MS",
    b"LB_ORIGIN",
)
"""Properties that columns are made of."""


class Records:
    """A scan of one log, with what several tables need of it worked out once."""

    def __init__(self, broker: str, log_id: str, scan: Scan) -> None:
        self.broker = broker
        self.log_id = log_id
        self.scan = scan
        self.codes, self.topic_names = topic_codes(scan)
        self.properties = dict(zip(_FOUND, find_properties(scan, _FOUND), strict=True))
        order = sorted(range(len(self.topic_names)), key=self.topic_names.__getitem__)
        self._ranks = np.empty(len(order), dtype=np.int32)
        self._ranks[order] = np.arange(len(order))

    def topics(self, rows: NDArray[np.intp]) -> pa.Array:
        """Topics of some rows, as a dictionary array."""
        return pa.DictionaryArray.from_arrays(
            pa.array(self.codes[rows], pa.int32()), pa.array(self.topic_names, pa.string())
        )

    def ranks(self, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """The place of some rows' topics in the order of all topics of the scan."""
        return self._ranks[self.codes[rows]]

    def value(self, name: bytes, rows: NDArray[np.intp]) -> pa.StringArray:
        """A property's value (null: absent) in some rows; `name` is one of those found once for all tables."""
        starts, lengths = self.properties[name]
        return text(self.scan.buffer, starts[rows], lengths[rows])

    def rows_of(self, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Which records have a topic that is wanted."""
        chosen = np.array([wanted(name) for name in self.topic_names], dtype=bool)
        return chosen[self.codes] if len(chosen) else np.zeros(0, dtype=bool)

    def place(self, rows: NDArray[np.intp]) -> dict[str, pa.Array]:
        return {
            "broker": constant(self.broker, len(rows)),
            "log_id": constant(self.log_id, len(rows)),
            "physical_offset": pa.array(self.scan.physical_offset[rows]),
        }

    def queue(self, rows: NDArray[np.intp]) -> dict[str, pa.Array]:
        return {
            "topic": self.topics(rows),
            "queue_id": pa.array(self.scan.queue_id[rows], pa.int32()),
            "queue_offset": pa.array(self.scan.queue_offset[rows]),
        }


def consume_queue(records: Records) -> pa.Table:
    """Prepared and rolled-back records have no row."""
    scan = records.scan
    kind = scan.sys_flag & SYS_TRANSACTION_MASK
    rows = np.flatnonzero((kind == 0) | (kind == SYS_COMMIT))
    rows = rows[np.lexsort((scan.queue_offset[rows], scan.queue_id[rows], records.ranks(rows)))]
    return _table(
        tables.CONSUME_QUEUE,
        records.place(rows)
        | records.queue(rows)
        | {
            "size": pa.array(scan.size[rows], pa.int32()),
            "tags_code": pa.array(scan.tags_code[rows]),
            "store_timestamp": timestamps(scan.store_timestamp[rows]),
        },
    )


def message_index(records: Records) -> tuple[pa.Table, pa.Table]:
    """Rows of UNIQ_KEY and rows of KEYS; rolled-back records and the journal have none."""
    scan = records.scan
    listed = (scan.sys_flag & SYS_TRANSACTION_MASK) != SYS_ROLLBACK
    starts, lengths = records.properties[b"UNIQ_KEY"]
    rows = np.flatnonzero(listed & (starts >= 0) & (lengths > 0))
    unique = _index_rows(records, rows, "UNIQ_KEY", starts[rows], lengths[rows])
    starts, lengths = records.properties[b"KEYS"]
    rows = np.flatnonzero(listed & (starts >= 0) & (lengths > 0))
    offsets, word_start, word_length = split_words(scan.buffer, starts[rows], lengths[rows])
    repeated = np.repeat(rows, np.diff(offsets))
    named = _index_rows(records, repeated, "KEYS", word_start, word_length)
    return unique, _distinct(named)


def messages(records: Records) -> pa.Table:
    """Every record but the journal's."""
    scan = records.scan
    rows = np.flatnonzero(~records.rows_of(lambda topic: topic == JOURNAL_TOPIC))
    rows = rows[np.lexsort((scan.store_timestamp[rows], records.ranks(rows)))]
    some = _subset(scan, rows)
    starts, lengths = records.properties[b"KEYS"]
    key_offsets, word_start, word_length = split_words(scan.buffer, starts[rows], lengths[rows])
    row_offsets, key_start, key_length, value_start, value_length = split_properties(some)
    properties = pa.MapArray.from_arrays(
        pa.array(row_offsets, pa.int32()),
        text(scan.buffer, key_start, key_length),
        text(scan.buffer, value_start, value_length),
    )
    body, encoding = decompressed(
        binary(scan.buffer, some.body_start, some.body_length), some.sys_flag, SYS_COMPRESSED
    )
    system = records.rows_of(_is_system)[rows]
    return _table(
        tables.MESSAGES,
        records.place(rows)
        | records.queue(rows)
        | {
            "size": pa.array(some.size, pa.int32()),
            "message_id": _message_ids(records, some, rows),
            "tag": records.value(b"TAGS", rows),
            "keys": pa.ListArray.from_arrays(
                pa.array(key_offsets, pa.int32()), text(scan.buffer, word_start, word_length)
            ),
            "message_group": records.value(b"__SHARDINGKEY", rows),
            "properties": properties,
            "body": body,
            "body_encoding": encoding,
            "flag": pa.array(some.flag, pa.int32()),
            "sys_flag": pa.array(some.sys_flag, pa.int32()),
            "born_timestamp": timestamps(some.born_timestamp),
            "born_host": hosts(scan.buffer, some.born_host_start, some.born_host_length),
            "store_timestamp": timestamps(some.store_timestamp),
            "store_host": hosts(scan.buffer, some.store_host_start, some.store_host_length),
            "reconsume_times": pa.array(some.reconsume_times, pa.int32()),
            "prepared_transaction_offset": pa.array(some.prepared_transaction_offset),
            "deliver_timestamp": _deliver_timestamps(records, rows),
            "is_system": pa.array(system),
            "origin": _origins(records, rows),
        },
    )


def quarantine(records: Records) -> pa.Table:
    """What the scan could not read."""
    scan = records.scan
    start = scan.bad_offset - scan.base_offset
    count = len(start)
    now = np.full(count, time.time_ns() // 1_000_000, dtype=np.int64)
    return _table(
        tables.QUARANTINE,
        {
            "broker": constant(records.broker, count),
            "log_id": constant(records.log_id, count),
            "physical_offset": pa.array(scan.bad_offset),
            "reason": pa.array(scan.bad_reason, pa.string()),
            "raw": binary(scan.buffer, start, np.minimum(scan.bad_length, RAW_BYTES)),
            "length": pa.array(scan.bad_length),
            "found_timestamp": timestamps(now),
        },
    )


def _table(table: tables.Table, columns: dict[str, pa.Array]) -> pa.Table:
    arrays = [
        columns[column.name].cast(column.type)
        if columns[column.name].type != column.type and not pa.types.is_dictionary(columns[column.name].type)
        else columns[column.name]
        for column in table.columns
    ]
    return pa.table(arrays, names=[column.name for column in table.columns])


def _subset(scan: Scan, rows: NDArray[np.intp]) -> Scan:
    return Scan(
        scan.buffer,
        scan.base_offset,
        scan.rows[rows],
        scan.next_offset,
        scan.ended,
        scan.bad_offset,
        scan.bad_length,
        scan.bad_reason,
    )


def _index_rows(records: Records, rows: NDArray[np.intp], kind: str, start: Longs, length: Longs) -> pa.Table:
    keys = text(records.scan.buffer, start, length)
    by = pa.table({"topic": pa.array(records.ranks(rows)), "key": keys})
    order = pc.sort_indices(by, [("topic", "ascending"), ("key", "ascending")])
    rows = rows[order.to_numpy()]
    return _table(
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


def _message_ids(records: Records, some: Scan, rows: NDArray[np.intp]) -> pa.Array:
    ids = records.value(b"UNIQ_KEY", rows)
    if not ids.null_count:
        return ids
    from store.record import offset_msg_id

    missing = np.flatnonzero(np.asarray(ids.is_null()))
    stored = binary(some.buffer, some.store_host_start[missing], some.store_host_length[missing]).to_pylist()
    made = [
        offset_msg_id(host, int(offset))
        for host, offset in zip(stored, some.physical_offset[missing], strict=True)
    ]
    mask = np.zeros(len(ids), dtype=bool)
    mask[missing] = True
    return pc.replace_with_mask(ids, pa.array(mask), pa.array(made, pa.string()))


def _deliver_timestamps(records: Records, rows: NDArray[np.intp]) -> pa.Array:
    for name in (b"TIMER_OUT_MS", b"TIMER_DELIVER_MS"):
        start, length = (values[rows] for values in records.properties[name])
        if (start >= 0).any():
            digits = text(records.scan.buffer, start, np.minimum(length, 18))
            valid = pc.match_substring_regex(digits, r"^\d{1,15}$")
            ms = pc.if_else(valid, digits, pa.scalar(None, pa.string())).cast(pa.int64())
            return pc.multiply(ms, 1000).cast(tables.TIMESTAMP)
    return pa.nulls(len(rows), tables.TIMESTAMP)


def _origins(records: Records, rows: NDArray[np.intp]) -> pa.Array:
    start = records.properties[b"LB_ORIGIN"][0][rows]
    moved = np.flatnonzero(start >= 0)
    if not len(moved):
        return pa.nulls(len(rows), tables.ORIGIN)
    origins: list[dict[str, object] | None] = [None] * len(rows)
    for row, value in zip(moved.tolist(), records.value(b"LB_ORIGIN", rows[moved]).to_pylist(), strict=True):
        origins[row] = _origin(value)
    return pa.array(origins, tables.ORIGIN)


def _origin(value: str) -> dict[str, object] | None:
    """`queueId:queueOffset:attempt:characters of group:group topic`, as `broker_gateway/delivery/moves.py` writes it."""
    parts = value.split(":", 4)
    if len(parts) != 5 or not all(part.isdigit() for part in parts[:4]):
        return None
    queue_id, queue_offset, attempt, length = (int(part) for part in parts[:4])
    return {
        "topic": parts[4][length:],
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "consumer_group": parts[4][:length],
        "attempt": attempt,
    }


def _is_system(topic: str) -> bool:
    return (
        topic in _SYSTEM_TOPICS or topic.startswith(("rmq_sys_", "%RETRY%")) or topic.endswith("_REPLY_TOPIC")
    )
