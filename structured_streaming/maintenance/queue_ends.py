"""The last row of each queue in `consume_queue`, of each log: it says where the queue ends, so it stays whatever goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.stated import may_hold_any

QUEUE = ("broker", "log_id", "topic", "queue_id")
QueueKey = tuple[Any, ...]


class QueueEnds:
    """The greatest queue offset of each queue, in each log."""

    def __init__(self) -> None:
        self.all: dict[QueueKey, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Looks at further rows."""
        last = rows.group_by(QUEUE, use_threads=False).aggregate([("queue_offset", "max")])
        columns = (last[name].to_pylist() for name in (*QUEUE, "queue_offset_max"))
        for *queue, offset in zip(*columns, strict=True):
            if offset is not None:
                key = tuple(queue)
                self.all[key] = max(offset, self.all.get(key, -1))


def without_later(
    waiting: dict[QueueKey, int],
    files: Sequence[DataFile],
    rows_of: Callable[[DataFile], Iterator[pa.Table]],
) -> dict[QueueKey, int]:
    """Of queues with an offset those that have no greater one in files; the first files are the likeliest to have it."""
    for file in files:
        if not waiting:
            break
        topics = {queue[2] for queue in waiting if queue[2] is not None}
        if not may_hold_any(file.statistics, "topic", sorted(topics)):
            continue
        beyond = QueueEnds()
        for rows in rows_of(file):
            beyond.add(rows)
        waiting = {queue: end for queue, end in waiting.items() if beyond.all.get(queue, -1) <= end}
    return waiting
