"""Checking a store by path: every CRC, length and offset below its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.log_reader import LogReader
from store.record import SYS_COMMIT, SYS_TRANSACTION_MASK
from store.scan import Scan, scan, topic_codes

CHUNK_BYTES = 64 << 20


class Problem(NamedTuple):
    """Something that does not check out, at a physical offset."""

    offset: int
    reason: str


@dataclass(slots=True)
class Verified:
    """What was found between `min_offset` and `max_offset`."""

    min_offset: int
    max_offset: int
    records: int = 0
    bytes: int = 0
    bad: list[Problem] = field(default_factory=list)


def verify(
    reader: LogReader, *, queue_offsets: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Reads the whole log. `progress(done, total)` in bytes.

    With `queue_offsets` those of a queue must grow; a real broker begins anew when a topic is made again.
    """
    result = Verified(reader.min_offset, reader.flushed_offset)
    total = result.max_offset - result.min_offset
    last: dict[tuple[str, int], int] = {}
    for begin, data, stop in reader.read_chunks(result.min_offset, result.max_offset, CHUNK_BYTES):
        found = scan(data, begin)
        result.records += len(found)
        result.bytes += int(found.size.sum())
        result.bad += [
            Problem(offset, f"{reason} ({length} bytes)")
            for offset, length, reason in zip(
                found.bad_offset.tolist(), found.bad_length.tolist(), found.bad_reason, strict=True
            )
        ]
        if queue_offsets:
            result.bad += _going_back(found, last)
        progress(stop - result.min_offset, total)
    result.bad.sort()
    return result


def _going_back(found: Scan, last: dict[tuple[str, int], int]) -> list[Problem]:
    """Records whose queue offset is not above the one before it in the queue; `last` goes on over chunks."""
    kinds = found.sys_flag & SYS_TRANSACTION_MASK
    rows = np.flatnonzero((kinds == 0) | (kinds == SYS_COMMIT))
    if not len(rows):
        return []
    codes, names = topic_codes(found)
    order = rows[np.lexsort((rows, found.queue_id[rows], codes[rows]))]
    topics, queues, offsets = codes[order], found.queue_id[order], found.queue_offset[order]
    same = (np.diff(topics) == 0) & (np.diff(queues) == 0)
    wrong = np.zeros(len(order), dtype=bool)
    wrong[1:] = same & (np.diff(offsets) <= 0)
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    ends = np.concatenate((begins[1:], [len(order)])) - 1
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        key = (names[topics[begin]], int(queues[begin]))
        wrong[begin] = int(offsets[begin]) <= last.get(key, -1)
        last[key] = int(offsets[end])
    return [
        Problem(
            int(found.physical_offset[row]),
            f"queue offset {int(found.queue_offset[row])} of {names[codes[row]]}/{int(found.queue_id[row])} "
            "is not above the one before it",
        )
        for row in order[wrong].tolist()
    ]
