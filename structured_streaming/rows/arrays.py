"""Arrow arrays from slices of a buffer and from NumPy columns."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.scan import Bytes, Longs, gather
from structured_streaming.tables import TIMESTAMP, Table

MAX_BYTES = (1 << 31) - 1
"""What the offsets of an Arrow array of 32 bits reach."""
LEAST_MS, GREATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: times beyond count as absent, since most readers know no others."""


def binary(buffer: Bytes, start: Longs, length: Longs) -> pa.BinaryArray:
    """The slices as one array, less than 2 GiB of them; a negative start is null."""
    offsets, data = gather(buffer, start, length)
    if len(data) > MAX_BYTES:
        raise OverflowError(f"{len(data)} bytes in one array, at most {MAX_BYTES}; read smaller partitions")
    validity = None
    absent = start < 0
    if absent.any():
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(start), buffers)


def text(buffer: Bytes, start: Longs, length: Longs) -> pa.StringArray:
    """The slices as UTF-8 text; what is none has its bad bytes replaced. A negative start is null."""
    return text_and_whether_replaced(buffer, start, length)[0]


def text_and_whether_replaced(buffer: Bytes, start: Longs, length: Longs) -> tuple[pa.StringArray, bool]:
    """As `text`, and whether bytes were replaced anywhere: different bytes may then be the same text."""
    raw = binary(buffer, start, length)
    try:
        return raw.cast(pa.string()), False
    except pa.ArrowInvalid:
        values = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        return pa.array(values, pa.string()), True


def representable(ms: Longs) -> NDArray[np.bool_]:
    """Which times, in ms since the epoch, a timestamp column holds."""
    return (ms >= LEAST_MS) & (ms <= GREATEST_MS)


def timestamps(ms: Longs) -> pa.TimestampArray:
    """Milliseconds since the epoch as timestamps; null outside of the years 1 to 9999."""
    ms = np.ascontiguousarray(ms)
    if not len(ms) or (ms.min() >= LEAST_MS and ms.max() <= GREATEST_MS):
        return pa.array(ms * 1000, pa.int64()).cast(TIMESTAMP)
    null = ~representable(ms)
    return pa.array(np.where(null, 0, ms) * 1000, pa.int64(), mask=null).cast(TIMESTAMP)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """The same text `count` times."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), pa.array([value], pa.string()))


def hosts(buffer: Bytes, start: Longs, length: Longs) -> pa.Array:
    """Packed hosts as `ip:port`, `[ip]:port` for IPv6; each distinct one is formatted once."""
    from store.log.record import unpack_host

    encoded = binary(buffer, start, length).dictionary_encode()
    names = [str(unpack_host(packed)) for packed in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(names, pa.string()))


def table_of(table: Table, columns: dict[str, pa.Array], wanted: Collection[str] | None = None) -> pa.Table:
    """The columns, or those that are wanted, in the table's order and types; dictionaries stay dictionaries."""
    kept = [column for column in table.columns if wanted is None or column.name in wanted]
    arrays = [
        columns[column.name].cast(column.type)
        if columns[column.name].type != column.type and not pa.types.is_dictionary(columns[column.name].type)
        else columns[column.name]
        for column in kept
    ]
    return pa.table(arrays, names=[column.name for column in kept])
