"""What the lake says is put off: messages of a broker that wait for their time, or for the end of their transaction.

A row of a topic where messages wait is done with once the lake has a copy of it (`messages.origin`), or an op record that names
it. A delivery time that was over for an hour when the lake heard of the broker last is done with, too: a real broker's copies do
not say where they came from. Calls block.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from broker_gateway.lake.messages import LakeMessages
from broker_gateway.lake.reader import Lake, LakeUnreachableError

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSETS = re.compile(rb"\d{1,18}")
_OVER = timedelta(hours=1)
_A_READING = 8 << 20
"""Bytes of records at a time."""
_NEAR = 256
"""Queue offsets between two that are read together."""
Queue = tuple[str, int]


def waiting(lake: Lake, broker: str, topics: Collection[str], ends: dict[str, str]) -> dict[Queue, list[int]]:
    """Queue offsets of what is put off, ascending, by topic and queue id. `ends`: topics of op records, by the topic that they are
    about. Raises LakeUnreachableError."""
    import pyarrow.compute as pc

    latest = _latest(lake, broker)
    if latest is None:
        return {}
    found: dict[Queue, set[int]] = defaultdict(set)
    columns = ["topic", "queue_id", "queue_offset", "deliver_timestamp"]
    for some in _rows(lake, broker, "messages", columns, pc.is_in(pc.field("topic"), _strings(topics))):
        for row in some.to_pylist():
            due = row["deliver_timestamp"]
            if due is None or due > latest - _OVER:
                found[row["topic"], row["queue_id"]].add(row["queue_offset"])
    if not found:
        return {}
    for some in _rows(lake, broker, "messages", ["origin"], pc.is_valid(pc.field("origin"))):
        for row in some["origin"].to_pylist():
            if row is None or row["queue_offset"] is None or row["consumer_group"]:
                continue  # Parquet's filter of a struct lets some through that are null
            if row["topic"] in topics:
                found[row["topic"], row["queue_id"]].discard(row["queue_offset"])
    for about, topic in ends.items():
        for some in _rows(lake, broker, "messages", ["queue_id", "body"], pc.field("topic") == topic):
            for row in some.to_pylist():
                found[about, row["queue_id"]].difference_update(
                    map(int, _OFFSETS.findall(row["body"] or b""))
                )
    return {queue: sorted(offsets) for queue, offsets in found.items() if offsets}


def records(
    lake: Lake, broker: str, waiting: dict[Queue, list[int]]
) -> Iterator[tuple[Queue, int, bytes | None]]:
    """The records of these queue offsets; None where the lake has no body of one. Raises LakeUnreachableError."""
    messages = LakeMessages(lake, broker)
    for (topic, queue_id), offsets in waiting.items():
        at = 0
        while at < len(offsets):
            last = at
            while last + 1 < len(offsets) and offsets[last + 1] - offsets[last] <= _NEAR:
                last += 1
            stretch = messages.read(topic, queue_id, offsets[at], offsets[last] + 1, _A_READING)
            if stretch.end <= offsets[at]:
                raise LakeUnreachableError(
                    f"{lake.location}: {topic} {queue_id} cannot be read at {offsets[at]}"
                )
            while at <= last and offsets[at] < stretch.end:
                yield (topic, queue_id), offsets[at], stretch.record(offsets[at])
                at += 1


def _latest(lake: Lake, broker: str) -> Any:
    """When the lake heard of the broker last; None when it never did."""
    import pyarrow.compute as pc

    times = [
        pc.max(some["commit_timestamp"]).as_py()
        for some in _rows(lake, broker, "reput_progress", ["commit_timestamp"], None)
    ]
    return max(times, default=None)


def _strings(names: Collection[str]) -> Any:
    import pyarrow as pa

    return pa.array(sorted(names), pa.string())


def _rows(lake: Lake, broker: str, table: str, columns: list[str], where: Any) -> Iterator[pa.Table]:
    """The broker's rows of a table, some at a time; none of a table that is not there."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    folder = lake.folder.child(table)
    ours = pc.field("broker") == broker
    try:
        if not folder.exists():
            return
        rows = DeltaTable(folder.uri).to_pyarrow_dataset(filesystem=folder.arrow_filesystem())
        for batch in rows.to_batches(columns=columns, filter=ours if where is None else ours & where):
            lake.go_on()
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
    except TableNotFoundError:
        return
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LakeUnreachableError(f"{folder}: {error}") from error
