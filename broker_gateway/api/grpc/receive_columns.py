"""The shortcut of a receive: usual records go from the log to what a consumer gets of them, in compiled code.

The plain path is `shortcuts.received`; `tests/unit/broker_gateway/api/grpc/test_receive_columns.py` compares the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from broker_gateway.api.grpc.kernels import receive_walk
from broker_gateway.api.grpc.kernels.receive_walk import MOST_PROPERTIES, OUT_BYTES, PROPERTY, ROW
from broker_gateway.api.grpc.shortcuts import duration_field, received, topic_field
from broker_gateway.delivery.handles import encode_handle, pack_handle
from broker_gateway.messaging.poll import MAX_BATCH, Delivered
from broker_gateway.messaging.stored_message import StoredMessage
from store.kernels.compiled import check_bytes
from store.log.record import Host, PendingRecord, encode_properties, encode_record

Array = NDArray[Any]
_TEXT_BYTES = 64
"""Of two addresses with a port."""


class ReceiveColumns:
    """Makes responses of records; for one thread. Loading the compiler is the caller's, on a thread that may wait."""

    def __init__(self) -> None:
        self._rows = np.zeros((MAX_BATCH, ROW), dtype=np.int64)
        self._found = np.zeros((MOST_PROPERTIES, PROPERTY), dtype=np.int64)
        self._texts = np.zeros(_TEXT_BYTES, dtype=np.uint8)
        self._out = np.zeros(OUT_BYTES, dtype=np.uint8)
        self._view = self._out.data
        self._check()

    def _check(self) -> None:
        """Compiles, or loads what was compiled before, and compares a response with the plain path's.

        Raises StoreError when they differ.
        """
        host = Host("127.0.0.1", 10_911).packed
        properties = encode_properties({"UNIQ_KEY": "id", "TAGS": "tag", "KEYS": "a b", "name": "value"})
        pending = PendingRecord("topic", 3, b"body", properties, 1_700_000_000_123, host)
        record = memoryview(
            b"".join(encode_record(pending, 11, 4096, 1_700_000_000_456, host, append_crc=True))
        )
        plain = received(StoredMessage(record), "topic", encode_handle(5, 11, 7), 1, 30_000)
        start, size, offset = (np.array([each]) for each in (0, len(record), 11))
        found = self.take(record, start, size, offset, 1, "topic", (5, 7), 30_000, None)
        check_bytes("receive", found, [Delivered(plain, "id", 4)])

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
        wanted: Callable[[str | None], bool] | None,
    ) -> list[Delivered | None]:
        """As `UsualWriter`."""
        packed = np.frombuffer(bytearray(pack_handle(handle[0], 0, handle[1])), dtype=np.uint8)
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
        view = self._view
        made: list[Delivered | None] = []
        for start, end, digest, name, name_length, tag_at, tag_length, at, length, crc in self._rows[
            :count
        ].tolist():
            body = data[at : at + length]
            if zlib_ng.crc32(body) & 0x7FFFFFFF != crc:
                break
            if wanted is not None:
                tag = None if tag_length < 0 else str(view[tag_at : tag_at + tag_length], "ascii")
                if not wanted(tag):
                    made.append(None)
                    continue
            view[digest : digest + 32] = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
            message_id = str(view[name : name + name_length], "ascii")
            made.append(Delivered(bytes(view[start:end]), message_id, length))
        return made
