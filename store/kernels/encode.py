"""The compiled part of an append (numba): records from columns into the mapped segment, bodies copied once.

Writes what `encode_record` of `store/log/record.py` gives, which is the plain path and the layout's description.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.columns import (
    BODY_CRC,
    BODY_LENGTH,
    BODY_START,
    BORN_TIMESTAMP,
    COLUMNS,
    FLAG,
    PREPARED_TRANSACTION_OFFSET,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    RECONSUME_TIMES,
    SYS_FLAG,
)
from store.kernels.compiled import check_bytes, compiled, inlined
from store.kernels.crc32 import crc32, joined
from store.kernels.fields import copy
from store.log.record import (
    CRC_BYTES,
    FIXED_BYTES,
    PROPERTIES_MAX_BYTES,
    SYS_COMPRESSED,
    PendingRecord,
    encode_record,
    encode_topic,
)

Array = NDArray[Any]
_CRC_PREFIX = np.frombuffer(b"__CRC32#\x01", dtype=np.uint8)


@inlined
def _u32(out: Array, at: int, value: int) -> int:
    first = np.uint64(at)
    out[first] = (value >> 24) & 0xFF
    out[first + np.uint64(1)] = (value >> 16) & 0xFF
    out[first + np.uint64(2)] = (value >> 8) & 0xFF
    out[first + np.uint64(3)] = value & 0xFF
    return at + 4


@inlined
def _u64(out: Array, at: int, value: int) -> int:
    return _u32(out, _u32(out, at, value >> 32), value)


@compiled
def encode(
    out: Array,
    position: int,
    base: int,
    hold: bool,
    magic: int,
    topic: Any,
    queue_id: int,
    queue_offset: int,
    store_timestamp: int,
    born_host: Any,
    store_host: Any,
    flags: int,
    append_crc: bool,
    bodies: Any,
    properties: Any,
    tail: Any,
    rows: Array,
    sizes: Array,
) -> int:
    """Writes the records of `rows` from `position` of `out` on; returns where the next one goes.

    `out` is a segment that begins at physical offset `base`; `topic` has its length before it; `tail` goes behind
    each record's properties, `flags` into every SYSFLAG. `sizes` gets each record's. With `hold` the first four bytes stay as they are. Returns -1, with
    anything behind `position` + 4 written, when a row does not fit its buffers or `out`.
    """
    hosts = len(born_host) + len(store_host)
    for number in range(len(rows)):
        row = rows[number]
        body_start, body_length = row[BODY_START], row[BODY_LENGTH]
        start, length = row[PROPERTIES_START], row[PROPERTIES_LENGTH]
        if body_start < 0 or body_length < 0 or body_start + body_length > len(bodies):
            return -1
        if start < 0 or length < 0 or start + length > len(properties):
            return -1
        length += len(tail)
        last = tail[len(tail) - 1] if len(tail) else properties[start + length - 1] if length else 2
        separator = append_crc and last != 2
        property_bytes = length + (CRC_BYTES + separator if append_crc else 0)
        size = FIXED_BYTES + hosts + body_length + len(topic) + property_bytes
        if property_bytes > PROPERTIES_MAX_BYTES or position + size > len(out):
            return -1
        crc = row[BODY_CRC]
        if crc < 0:
            crc = np.int64(crc32(bodies, body_start, body_start + body_length, 0))
        at = position + 4
        if number or not hold:
            _u32(out, position, size)
        at = _u32(out, at, magic)
        at = _u32(out, at, crc & 0x7FFFFFFF)
        at = _u32(out, at, queue_id)
        at = _u32(out, at, row[FLAG])
        at = _u64(out, at, queue_offset + number)
        at = _u64(out, at, base + position)
        at = _u32(out, at, row[SYS_FLAG] | flags)
        at = _u64(out, at, row[BORN_TIMESTAMP])
        at = copy(out, at, born_host, 0, len(born_host))
        at = _u64(out, at, store_timestamp)
        at = copy(out, at, store_host, 0, len(store_host))
        at = _u32(out, at, row[RECONSUME_TIMES])
        at = _u64(out, at, row[PREPARED_TRANSACTION_OFFSET])
        at = _u32(out, at, body_length)
        body_at = at
        at = copy(out, at, bodies, body_start, body_length)
        tail_at = at
        at = copy(out, at, topic, 0, len(topic))
        out[at] = (property_bytes >> 8) & 0xFF
        out[at + 1] = property_bytes & 0xFF
        at = copy(out, at + 2, properties, start, length - len(tail))
        at = copy(out, at, tail, 0, len(tail))
        if append_crc:
            if separator:
                out[at] = 2
                at += 1
            whole = _size_crc(size)
            whole = crc32(out, position + 4, body_at, whole)
            whole = joined(whole, crc, body_length)
            digits = np.int64(crc32(out, tail_at, at, whole)) & 0x7FFFFFFF
            at = copy(out, at, _CRC_PREFIX, 0, len(_CRC_PREFIX))
            for _ in range(10):
                out[at] = 48 + digits % 10
                digits //= 10
                at += 1
            out[at] = 2
        sizes[number] = size
        position += size
    return position


@inlined
def _size_crc(size: int) -> Any:
    """The CRC of TOTALSIZE, which may not be in place yet."""
    head = np.empty(4, dtype=np.uint8)
    _u32(head, 0, size)
    return crc32(head, 0, 4, 0)


def warm() -> None:
    """Compiles, or loads what was compiled before, and compares a record with the plain path's bytes.

    Raises StoreError when they differ: such code must not write to a log.
    """
    host, body, properties, tail = bytes(range(8)), b"body", b"k\x01v\x02", b"t\x01v"
    record = PendingRecord(
        "topic", 3, body, properties + tail, 1_700_000_000_123, host, SYS_COMPRESSED, 5, 6, 1 << 40
    )
    plain = b"".join(encode_record(record, 11, 4096, 1_700_000_000_456, host, append_crc=True))
    magic, topic = encode_topic(record.topic)
    rows, sizes = np.zeros((1, COLUMNS + 4), dtype=np.int64), np.zeros(1, dtype=np.int64)
    columns = {
        BODY_LENGTH: len(body),
        PROPERTIES_LENGTH: len(properties),
        BORN_TIMESTAMP: record.born_timestamp,
        SYS_FLAG: record.sys_flag,
        FLAG: record.flag,
        RECONSUME_TIMES: record.reconsume_times,
        PREPARED_TRANSACTION_OFFSET: record.prepared_transaction_offset,
        BODY_CRC: -1,
    }
    rows[0, list(columns)] = list(columns.values())
    out = np.zeros(512, dtype=np.uint8)
    end = encode(
        out,
        0,
        4096,
        False,
        magic,
        topic,
        record.queue_id,
        11,
        1_700_000_000_456,
        host,
        host,
        0,
        True,
        body,
        properties,
        tail,
        rows,
        sizes,
    )
    check_bytes("encoder", out[:end].tobytes(), plain)
