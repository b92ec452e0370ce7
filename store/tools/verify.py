"""Checking a store by path: every CRC, length and offset below its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.log_source import LogSource
from store.scan import Scan, by_queue, scan

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
    log: LogSource, *, queue_offsets: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Reads the whole log. `progress(done, total)` in bytes.

    With `queue_offsets` those of a queue must grow; a real broker begins anew when a topic is made again.
    """
    state = log.describe()
    result = Verified(state.start, state.end)
    total = result.max_offset - result.min_offset
    last: dict[tuple[str, int], int] = {}
    for begin, data in log.read(state.log_id, state.start, state.end, CHUNK_BYTES):
        found = scan(data, begin, segment_size=state.segment_size)
        result.records += len(found)
        result.bytes += int(found.size.sum())
        result.bad += damage(found)
        if queue_offsets:
            result.bad += _going_back(found, last)
        progress(begin + len(data) - result.min_offset, total)
    result.bad.sort()
    return result


def damage(found: Scan) -> list[Problem]:
    """What a scan passed over."""
    return [
        Problem(offset, f"{reason} ({length} bytes)")
        for offset, length, reason in zip(
            found.bad_offset.tolist(), found.bad_length.tolist(), found.bad_reason, strict=True
        )
    ]


def _going_back(found: Scan, last: dict[tuple[str, int], int]) -> list[Problem]:
    """Records whose queue offset is not above the one before it in the queue; `last` goes on over chunks."""
    rows, queues = by_queue(found)
    problems = []
    for (topic, queue_id), begin, end in queues:
        some = rows[begin:end]
        offsets = found.queue_offset[some]
        wrong = np.diff(offsets, prepend=last.get((topic, queue_id), -1)) <= 0
        last[topic, queue_id] = int(offsets[-1])
        problems += [
            Problem(
                int(found.physical_offset[row]),
                f"queue offset {int(found.queue_offset[row])} of {topic}/{queue_id} "
                "is not above the one before it",
            )
            for row in some[wrong].tolist()
        ]
    return problems
