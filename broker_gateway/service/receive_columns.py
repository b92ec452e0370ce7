"""The shortcut of a receive: usual records go from the log to what a consumer gets of them, in compiled code.

The plain path is `shortcuts.StoredMessage`; `tests/unit/broker_gateway/test_receive_columns.py` compares the two.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from broker_gateway.service import receive_walk
from broker_gateway.service.poll import MAX_BATCH
from broker_gateway.service.receive_walk import MOST_PROPERTIES, OUT_BYTES, ROW
from broker_gateway.service.shortcuts import duration_field, topic_field

Array = NDArray[Any]
_HANDLE = struct.Struct(">BIQQ")
_TEXT_BYTES = 64
"""Of two addresses with a port."""


class Delivered(NamedTuple):
    """What a consumer gets of a record, and what the broker needs to know of it."""

    response: bytes
    message_id: str
    tag: str | None
    body_length: int


class ReceiveColumns:
    """Makes responses of records; for one thread. Loading the compiler is the caller's, on a thread that may wait."""

    def __init__(self) -> None:
        self._rows = np.zeros((MAX_BATCH, ROW), dtype=np.int64)
        self._found = np.zeros((MOST_PROPERTIES, 6), dtype=np.int64)
        self._texts = np.zeros(_TEXT_BYTES, dtype=np.uint8)
        self._out = np.zeros(OUT_BYTES, dtype=np.uint8)
        self._view = self._out.data
        none = np.zeros(0, dtype=np.int64)
        self.take(
            memoryview(b"x"), none, none, none, 0, "t", (0, 0), 0
        )  # compiles, or loads what was compiled

    def take(
        self,
        data: memoryview,
        starts: Array,
        sizes: Array,
        offsets: Array,
        most_bytes: int,
        topic: str,
        handle: tuple[int, int],
        invisible_ms: int,
    ) -> list[Delivered]:
        """Of the first records those that are usual and whole; bodies are taken until they have `most_bytes`.

        `starts` and `sizes` say where in `data` records are, `offsets` their queue offsets, `handle` is the
        queue and the delivery that receipt handles name. Deliveries are first attempts.
        """
        packed = np.frombuffer(bytearray(_HANDLE.pack(1, handle[0], 0, handle[1])), dtype=np.uint8)
        count = receive_walk.walk(  # always with arrays of the same kinds: others would be compiled for
            np.frombuffer(data.toreadonly(), dtype=np.uint8),
            starts.astype(np.int64),
            sizes.astype(np.int64),
            offsets.astype(np.int64),
            most_bytes,
            topic_field(topic),
            duration_field(invisible_ms),
            packed,
            self._found,
            self._texts,
            self._out,
            self._rows,
        )
        view, made = self._view, []
        for start, end, digest, name, name_length, tag, tag_length, at, length, crc in self._rows[
            :count
        ].tolist():
            body = data[at : at + length]
            if zlib_ng.crc32(body) & 0x7FFFFFFF != crc:
                break
            view[digest : digest + 32] = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
            response = bytes(view[start:end])
            made.append(
                Delivered(
                    response,
                    str(view[name : name + name_length], "ascii"),
                    None if tag_length < 0 else str(view[tag : tag + tag_length], "ascii"),
                    length,
                )
            )
        return made
