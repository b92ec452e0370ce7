"""What a schema registry's clients put before a body: a 0, then the id of the schema, 4 bytes, the greatest first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from structured_streaming.rows.arrays import binary

FRAME_BYTES = 5
NO_FRAME = -1
_MOST_INDEXES = 100


def frame_ids(bodies: pa.BinaryArray) -> NDArray[np.int64]:
    """The id of each body, which none is null of; `NO_FRAME` where there is none."""
    offsets = np.frombuffer(bodies.buffers()[1], dtype=np.int32)[bodies.offset :][: len(bodies) + 1].astype(
        np.int64
    )
    ids = np.full(len(bodies), NO_FRAME, dtype=np.int64)
    long = np.flatnonzero(np.diff(offsets) >= FRAME_BYTES)
    if not len(long):
        return ids
    data = np.frombuffer(bodies.buffers()[2], dtype=np.uint8)
    heads = data[offsets[long][:, None] + np.arange(FRAME_BYTES)].astype(np.int64)
    found = heads[:, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    ids[long] = np.where(heads[:, 0] == 0, found, NO_FRAME)
    return ids


def payloads(bodies: pa.BinaryArray, rows: NDArray[np.int64]) -> pa.BinaryArray:
    """What follows the id in some bodies that have one."""
    offsets = np.frombuffer(bodies.buffers()[1], dtype=np.int32)[bodies.offset :][: len(bodies) + 1].astype(
        np.int64
    )
    data = np.frombuffer(bodies.buffers()[2], dtype=np.uint8)
    begin = offsets[rows] + FRAME_BYTES
    return binary(data, begin, offsets[rows + 1] - begin)


def message_indexes(body: bytes, begin: int) -> tuple[list[int], int]:
    """Of Protobuf, which message of its schema's file a body is, and where the message begins: their number, then each, as
    zigzag varints; a single 0 is the first message. Raises ValueError."""
    count, at = _varint(body, begin)
    if count == 0:
        return [0], at
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"{count} indexes of a message")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return found, at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            break
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
    raise ValueError("an index of a message is cut off")
