"""Records on their way into the log, as columns: what `append_columns` of the log takes.

The counterpart of `store/scan.py`: many records without a Python object for each. `records` gives the same
ones as objects, for the plain path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.log.record import PendingRecord

(
    BODY_START,
    BODY_LENGTH,
    PROPERTIES_START,
    PROPERTIES_LENGTH,
    BORN_TIMESTAMP,
    SYS_FLAG,
    TAGS_CODE,
    BODY_CRC,
    FLAG,
    RECONSUME_TIMES,
    PREPARED_TRANSACTION_OFFSET,
    COLUMNS,
) = range(12)
"""Of `PendingColumns.rows`: every field of a record that is its sender's. BODY_CRC is -1 where the writer shall compute
it."""

COMPILED_CRC_BYTES = 4096
"""Of a body; from there on zlib's CRC is faster than the compiled one."""


@dataclass(slots=True)
class PendingColumns:
    """One or more records for one queue, in order.

    `tail` are properties that stand behind those of every record. `rows` has a row of `COLUMNS` (or more) 64-bit integers for each; starts are positions in `bodies` and
    `properties`, whose parts are as records hold them. `size`: bytes of all bodies and properties; `count`: of records.
    """

    topic: str
    queue_id: int
    born_host: bytes
    bodies: bytes
    properties: bytes
    rows: NDArray[np.int64]
    size: int
    count: int
    tail: bytes = b""

    def __len__(self) -> int:
        return self.count

    def compute_long_crcs(self) -> None:
        """Fills BODY_CRC of the bodies that are too long for the compiled CRC."""
        if self.size < COMPILED_CRC_BYTES:
            return
        rows, view = self.rows, memoryview(self.bodies)
        for number in np.flatnonzero(rows[:, BODY_LENGTH] >= COMPILED_CRC_BYTES):
            start = rows[number, BODY_START]
            rows[number, BODY_CRC] = zlib_ng.crc32(view[start : start + rows[number, BODY_LENGTH]])

    def records(self) -> list[PendingRecord]:
        """The records one by one; their bodies are views."""
        bodies = memoryview(self.bodies)
        return [self._record(bodies, row) for row in self.rows.tolist()]

    def _record(self, bodies: memoryview, row: list[Any]) -> PendingRecord:
        body, properties = row[BODY_START], row[PROPERTIES_START]
        return PendingRecord(
            self.topic,
            self.queue_id,
            bodies[body : body + row[BODY_LENGTH]],
            self.properties[properties : properties + row[PROPERTIES_LENGTH]] + self.tail,
            row[BORN_TIMESTAMP],
            self.born_host,
            row[SYS_FLAG],
            row[FLAG],
            row[RECONSUME_TIMES],
            row[PREPARED_TRANSACTION_OFFSET],
            row[TAGS_CODE],
        )
