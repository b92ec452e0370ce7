"""Any stretch of log leads to rows or quarantine: records are taken together as long as that works.

What is too much at a time, or fails, is taken in halves, down to the record; a record that fails alone is
rejected, with the reason, and all others have their rows. No record is known for which that is needed: those
that columns cannot hold are found before (`records.py`). It is what keeps an unknown one from stopping the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from store.log.erased import NOTHING, Offsets
from store.log.record import Host, PendingRecord, encode_properties, encode_record
from store.scan import Scan, scan
from structured_streaming.errors import TooMuchError, of_the_system
from structured_streaming.rows.records import Records, Rejected, subset

PIECE_BYTES = 64 << 20
"""Bytes of records that are taken together."""
MOST_WEIGHT = 160 << 20
"""Bytes of memory that rows of records taken together take, but for bodies that grow."""
_REASON_CHARACTERS = 500
T = TypeVar("T")


class Piece(NamedTuple):
    """Records that are taken together; `erased`: where those begin that have no rows, ascending."""

    broker: str
    log_id: str
    delay_levels: tuple[int, ...] | None
    found: Scan
    erased: Offsets = NOTHING

    def records(self) -> Records:
        """Raises TooMuchError when their rows would not fit in memory together."""
        records = Records(self.broker, self.log_id, self.found, self.delay_levels, self.erased)
        if len(self.found) > 1 and records.weight > MOST_WEIGHT:
            raise TooMuchError(f"rows of {len(self.found)} records take {records.weight} bytes")
        return records


def taken(
    piece: Piece, take: Callable[[Records], T], check: Callable[[Records], object]
) -> Iterator[T | Rejected]:
    """What `take` returns for the records, or for parts of them, and records that it fails for.

    Raises what says nothing of a record: errors of the operating system, and those that `check`, which does the
    same as `take` and keeps nothing, raises for a record that is known to be good.
    """
    found = piece.found
    if len(found) > 1 and int(found.size.sum()) > PIECE_BYTES:
        yield from _halves(piece, take, check)
        return
    try:
        result = take(piece.records())
    except TooMuchError:
        if len(found) == 1:
            raise
        yield from _halves(piece, take, check)
    except Exception as error:
        if of_the_system(error):
            raise
        if len(found) > 1:
            yield from _halves(piece, take, check)
            return
        check(piece._replace(found=scan(good_record(), 0), erased=NOTHING).records())
        reason = f"no rows could be made: {type(error).__name__}: {error}"
        yield Rejected(int(found.physical_offset[0]), int(found.size[0]), reason[:_REASON_CHARACTERS])
    else:
        yield result


def _halves(
    piece: Piece, take: Callable[[Records], T], check: Callable[[Records], object]
) -> Iterator[T | Rejected]:
    for rows in np.array_split(np.arange(len(piece.found)), 2):
        yield from taken(piece._replace(found=subset(piece.found, rows)), take, check)


def good_record() -> bytes:
    """One that begins at 0, for which rows are made wherever any are."""
    host = Host("127.0.0.1", 10911).packed
    properties = encode_properties({"UNIQ_KEY": "id", "KEYS": "key", "TAGS": "tag"})
    pending = PendingRecord("topic", 0, b"body", properties, 1, host)
    return b"".join(map(bytes, encode_record(pending, 0, 0, 1, host, append_crc=True)))
