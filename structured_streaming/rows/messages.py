"""Rows of messages, in their table's order. Rows are ordered before their values are gathered from the log, so
that bodies are copied once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.log.record import offset_msg_id
from store.scan import Properties, Scan, take_lists
from structured_streaming import system_topics, tables
from structured_streaming.rows import bodies, due, origins
from structured_streaming.rows.arrays import (
    binary,
    hosts,
    table_of,
    text,
    text_and_whether_replaced,
    timestamps,
)
from structured_streaming.rows.records import Records, TopicTest, every_topic, subset
from structured_streaming.tables import JOURNAL_TOPIC

_MOST_INT = (1 << 31) - 1
_ALL = frozenset(tables.MESSAGES.schema.names)
_OF_BODIES = frozenset(("body", "body_encoding"))


def messages(
    records: Records,
    wanted: Collection[str] = _ALL,
    has_body: TopicTest = every_topic,
) -> Iterator[pa.Table]:
    """Every record but the journal's; one table after another, each with a bounded number of bytes of bodies.

    Columns that are not `wanted` are not made, nor is the compression of bodies undone for them. Messages of topics that
    are none of `has_body` have none.
    """
    scan = records.scan
    rows = np.flatnonzero(~records.rows_on(JOURNAL_TOPIC))
    rows = rows[np.lexsort((scan.store_timestamp[rows], records.ranks(rows)))]
    some = subset(scan, rows)
    columns = records.place(rows) | records.queue(rows)
    columns |= {
        name: make() for name, make in _message_columns(records, some, rows).items() if name in wanted
    }
    if not _OF_BODIES.isdisjoint(wanted):
        for piece in bodies.slices(some, records.rows_of(has_body)[rows]):
            part = {name: values.slice(piece.begin, len(piece.bodies)) for name, values in columns.items()}
            part |= {"body": piece.bodies, "body_encoding": piece.encodings}
            yield table_of(tables.MESSAGES, part, wanted)
    elif len(rows):
        yield table_of(tables.MESSAGES, columns, wanted)


def _message_columns(
    records: Records, some: Scan, rows: NDArray[np.intp]
) -> dict[str, Callable[[], pa.Array]]:
    """What makes each column of messages but row key, queue and bodies."""
    return {
        "size": lambda: pa.array(some.size, pa.int32()),
        "message_id": lambda: message_ids(records, some, rows),
        "tag": lambda: records.value(b"TAGS", rows),
        "keys": lambda: _keys(records, some, rows),
        "message_group": lambda: records.value(b"__SHARDINGKEY", rows),
        "lite_topic": lambda: records.value(b"__LITE_TOPIC", rows),
        "priority": lambda: _priorities(records, rows),
        "properties": lambda: _properties(records.all_properties.take(rows)),
        "flag": lambda: pa.array(some.flag, pa.int32()),
        "sys_flag": lambda: pa.array(some.sys_flag, pa.int32()),
        "born_timestamp": lambda: timestamps(some.born_timestamp),
        "born_host": lambda: hosts(some.buffer, some.born_host_start, some.born_host_length),
        "store_timestamp": lambda: timestamps(some.store_timestamp),
        "store_host": lambda: hosts(some.buffer, some.store_host_start, some.store_host_length),
        "reconsume_times": lambda: pa.array(some.reconsume_times, pa.int32()),
        "prepared_transaction_offset": lambda: pa.array(some.prepared_transaction_offset),
        "deliver_timestamp": lambda: _deliver_timestamps(records, rows),
        "is_system": lambda: pa.array(records.rows_of(_is_system)[rows]),
        "origin": lambda: _origins(records, some, rows),
    }


def _keys(records: Records, some: Scan, rows: NDArray[np.intp]) -> pa.ListArray:
    word_offsets, word_start, word_length = records.key_words
    key_offsets, words = take_lists(word_offsets, rows)
    return pa.ListArray.from_arrays(
        pa.array(key_offsets, pa.int32()), text(some.buffer, word_start[words], word_length[words])
    )


def _properties(held: Properties) -> pa.MapArray:
    """All properties of each record; a key stands once."""
    key_start, key_length, value_start, value_length = held.columns
    keys, replaced = text_and_whether_replaced(held.buffer, key_start, key_length)
    values = text(held.buffer, value_start, value_length)
    found = pa.MapArray.from_arrays(pa.array(held.offsets, pa.int32()), keys, values)
    if not replaced:
        return found
    places = np.split(value_start, held.offsets[1:-1])
    unique = [_unique(pairs, of.tolist()) for pairs, of in zip(found.to_pylist(), places, strict=True)]
    return pa.array(unique, found.type)


def _unique(pairs: list[tuple[str, str]], places: list[int]) -> list[tuple[str, str]]:
    """Pairs whose keys may have become the same: as `wins` in `store/kernels/walk.py`, in the order of their values' places."""
    unique: dict[str, str] = {}
    for _, (key, value) in sorted(zip(places, pairs, strict=True)):
        if value or key not in unique:
            unique[key] = value
    return list(unique.items())


def message_ids(records: Records, some: Scan, rows: NDArray[np.intp]) -> pa.Array:
    """Of some rows of the records, which `some` has alone."""
    ids = records.value(b"UNIQ_KEY", rows)
    missing = np.flatnonzero(records.properties[b"UNIQ_KEY"][1][rows] == 0)
    if not len(missing):
        return ids
    stored = binary(some.buffer, some.store_host_start[missing], some.store_host_length[missing]).to_pylist()
    made = [
        offset_msg_id(host, int(offset))
        for host, offset in zip(stored, some.physical_offset[missing], strict=True)
    ]
    mask = np.zeros(len(ids), dtype=bool)
    mask[missing] = True
    return pc.replace_with_mask(ids, pa.array(mask), pa.array(made, pa.string()))


def _priorities(records: Records, rows: NDArray[np.intp]) -> pa.Array:
    if not (records.properties[b"_SYS_MSG_PRIORITY_"][0][rows] >= 0).any():
        return pa.nulls(len(rows), pa.int32())
    found = records.number(b"_SYS_MSG_PRIORITY_", rows)
    absent = (found == due.UNKNOWN) | (found > _MOST_INT)
    return pa.array(np.where(absent, 0, found), pa.int32(), mask=absent)


def _deliver_timestamps(records: Records, rows: NDArray[np.intp]) -> pa.Array:
    waiting, until = records.level_times(rows)
    taken_out = records.properties[b"TIMER_OUT_MS"][0][rows] >= 0
    asked_for = records.properties[b"TIMER_DELIVER_MS"][0][rows] >= 0
    if not (waiting.any() or taken_out.any() or asked_for.any()):
        return pa.nulls(len(rows), tables.TIMESTAMP)
    timed = due.timer_times(records.number(b"TIMER_DELIVER_MS", rows), records.number(b"TIMER_OUT_MS", rows))
    return timestamps(np.where(waiting, until, timed))


def _origins(records: Records, some: Scan, rows: NDArray[np.intp]) -> pa.Array:
    copies = records.rows_of(origins.may_be_copies)[rows]
    moved = np.flatnonzero(copies | (records.properties[b"LB_ORIGIN"][0][rows] >= 0))
    if not len(moved):
        return pa.nulls(len(rows), tables.ORIGIN)
    found: list[origins.Value | None] = [None] * len(rows)
    values = [records.value(name, rows[moved]).to_pylist() for name in origins.FOUND]
    for row, *texts in zip(moved.tolist(), *values, strict=True):
        topic = records.topic(rows[row])
        properties = dict(zip(origins.FOUND, texts, strict=True))
        found[row] = origins.origin(topic, properties, int(some.reconsume_times[row]))
    return pa.array(found, tables.ORIGIN)


def _is_system(topics: pa.StringArray) -> pa.BooleanArray:
    named = pc.is_in(
        topics, pa.array(system_topics.NAMES)
    )  # not at import: pyarrow's first array imports pandas
    found = pc.or_(named, pc.ends_with(topics, system_topics.SUFFIX))
    for prefix in system_topics.PREFIXES:
        found = pc.or_(found, pc.starts_with(topics, prefix))
    return found
