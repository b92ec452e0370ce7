"""Bodies of messages, a bounded number of bytes at a time, their compression undone by the type bits in the
system flag."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.log.record import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_LZ4,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
    SYS_COMPRESSION_ZSTD,
)
from store.scan import Bytes, Longs, Scan
from structured_streaming.rows.arrays import binary

LARGEST = 16 << 20
"""Bytes; a body that would grow further stays as stored. RocketMQ's clients compress bodies of up to 4 MiB."""
MOST_GROWTH, ALWAYS = 1100, 64 << 10
"""Times that a body may grow, which is more than zlib can reach (zstd: 30 times that), and bytes that it always may."""
SLICE_BYTES = 32 << 20
"""Of bodies in memory at a time; the one that reaches it is the last of its slice."""
IDENTITY, OMITTED = "identity", "omitted"
_Undo = Callable[[bytes, int], bytes]
"""Undoes a compression, to at most so many bytes. Raises ValueError, OSError or the library's own."""


class Slice(NamedTuple):
    """Bodies of the records [begin, end), and for each `identity`, the compression it still has, or `omitted`."""

    begin: int
    end: int
    bodies: pa.BinaryArray
    encodings: pa.StringArray


def slices(records: Scan, wanted: NDArray[np.bool_]) -> Iterator[Slice]:
    """The bodies of all records, in their order; null for those that are not wanted."""
    lengths = np.where(wanted, records.body_length, 0)
    reached = np.cumsum(lengths)
    begin = 0
    while begin < len(records):
        before = int(reached[begin - 1]) if begin else 0
        stop = min(int(np.searchsorted(reached, before + SLICE_BYTES)) + 1, len(records))
        piece = _slice(records, wanted, begin, stop)
        yield piece
        begin = piece.end


def _slice(records: Scan, wanted: NDArray[np.bool_], begin: int, stop: int) -> Slice:
    """A slice from `begin` on that ends at `stop`, or before it where bodies grow."""
    wanted = wanted[begin:stop]
    start = np.where(wanted, records.body_start[begin:stop], -1)
    length = records.body_length[begin:stop]
    flags = records.sys_flag[begin:stop]
    compressed = np.flatnonzero(((flags & SYS_COMPRESSED) != 0) & wanted)
    plain, left, end = _decompressed(records.buffer, start, length, flags, compressed)
    bodies = binary(records.buffer, start[:end], length[:end])
    encodings = pa.repeat(pa.scalar(IDENTITY, pa.string()), end)
    if not wanted[:end].all():
        encodings = pc.if_else(pa.array(wanted[:end]), encodings, OMITTED)
    if not plain:
        return Slice(begin, begin + end, bodies, encodings)
    mask = np.zeros(end, dtype=bool)
    mask[compressed[: len(plain)]] = True
    return Slice(
        begin,
        begin + end,
        pc.replace_with_mask(bodies, pa.array(mask), pa.array(plain, bodies.type)),
        pc.replace_with_mask(encodings, pa.array(mask), pa.array(left, pa.string())),
    )


def _decompressed(
    buffer: Bytes, start: Longs, length: Longs, flags: Longs, compressed: Longs
) -> tuple[list[bytes], list[str], int]:
    """Bodies of the first compressed records and what they still are, and where they made the slice full."""
    plain, left = [], []
    room = SLICE_BYTES
    for row in compressed.tolist():
        codec, undo = _CODECS.get(int(flags[row]) & SYS_COMPRESSION_MASK, ("unknown", _unknown))
        data = buffer[start[row] : start[row] + length[row]].tobytes()
        try:
            plain.append(undo(data, min(LARGEST, max(ALWAYS, MOST_GROWTH * len(data)))))
            left.append(IDENTITY)
        except MemoryError:  # Arrow's is an ArrowException, too
            raise
        except (ValueError, zlib.error, OSError, pa.ArrowException):
            plain.append(data)
            left.append(codec)
        room -= len(plain[-1])
        if room <= 0:
            return plain, left, row + 1
    return plain, left, len(start)


def _inflate(data: bytes, most: int) -> bytes:
    """zlib or gzip, whichever it is."""
    engine = zlib.decompressobj(wbits=47)
    plain = engine.decompress(data, most + 1)
    if len(plain) > most or not engine.eof:
        raise ValueError("larger than the limit, or cut off")
    return plain


def _stream(codec: str) -> _Undo:
    def undo(data: bytes, most: int) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            plain: bytes = stream.read(most + 1)
        if len(plain) > most:
            raise ValueError("larger than the limit")
        return plain

    return undo


def _unknown(data: bytes, most: int) -> bytes:
    raise ValueError("unknown compression")


_CODECS: dict[int, tuple[str, _Undo]] = {
    0: ("zlib", _inflate),
    SYS_COMPRESSION_ZLIB: ("zlib", _inflate),
    SYS_COMPRESSION_LZ4: ("lz4", _stream("lz4")),
    SYS_COMPRESSION_ZSTD: ("zstd", _stream("zstd")),
}
