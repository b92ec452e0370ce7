"""Undoing the compression of bodies, by the type bits in the system flag."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.record import (
    SYS_COMPRESSION_LZ4,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
    SYS_COMPRESSION_ZSTD,
)
from store.scan import Longs

LARGEST = 64 << 20
"""Bytes; a body that would grow further stays as stored."""


def _inflate(data: bytes) -> bytes:
    """zlib or gzip, whichever it is."""
    engine = zlib.decompressobj(wbits=47)
    plain = engine.decompress(data, LARGEST)
    if not engine.eof:
        raise ValueError("larger than the limit, or cut off")
    return plain


def _stream(codec: str) -> Callable[[bytes], bytes]:
    def undo(data: bytes) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            plain: bytes = stream.read(LARGEST + 1)
        if len(plain) > LARGEST:
            raise ValueError("larger than the limit")
        return plain

    return undo


_CODECS: dict[int, tuple[str, Callable[[bytes], bytes]]] = {
    0: ("zlib", _inflate),
    SYS_COMPRESSION_ZLIB: ("zlib", _inflate),
    SYS_COMPRESSION_LZ4: ("lz4", _stream("lz4")),
    SYS_COMPRESSION_ZSTD: ("zstd", _stream("zstd")),
}


def decompressed(bodies: pa.Array, sys_flags: Longs, compressed_bit: int) -> tuple[pa.Array, pa.Array]:
    """Bodies with their compression undone, and `identity` or what could not be undone, for each."""
    rows = np.flatnonzero(sys_flags & compressed_bit)
    encoding = pa.repeat(pa.scalar("identity", pa.string()), len(bodies))
    if not len(rows):
        return bodies, encoding
    plain, left = [], []
    for row in rows.tolist():
        name, undo = _CODECS.get(int(sys_flags[row]) & SYS_COMPRESSION_MASK, ("unknown", _unknown))
        data = bodies[row].as_py()
        try:
            plain.append(undo(data))
            left.append("identity")
        except (ValueError, zlib.error, OSError, pa.ArrowException):
            plain.append(data)
            left.append(name)
    mask = np.zeros(len(bodies), dtype=bool)
    mask[rows] = True
    return (
        pc.replace_with_mask(bodies, pa.array(mask), pa.array(plain, bodies.type)),
        pc.replace_with_mask(encoding, pa.array(mask), pa.array(left, pa.string())),
    )


def _unknown(data: bytes) -> bytes:
    raise ValueError("unknown compression")
