"""Queues of lite topics: each a queue of its own, of the records that its parent topic's queues hold.

A record of a lite topic stands in a queue of its parent topic as any record. Its properties say the rest, as in RocketMQ 5.5:

| property | value |
|---|---|
| `__LITE_TOPIC` | the lite topic's name, `NAME` |
| `INNER_MULTI_DISPATCH` | the further queue, `%LMQ%$PARENT$NAME`; queue id 0 |
| `INNER_MULTI_QUEUE_OFFSET` | the record's offset there; added when the record is appended |

The queue has entries in the queue index, made from these properties again where a start scans the log. Other further queues
(`store/tools/rebuild.py` has all) get none: nobody delivers from them. Names come from the log, which another broker may
have written: a name counts only where the record is of that parent topic, so that no copy gets into the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from store.index.run_file import Key, Longs
from store.log.record import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET, Record
from store.scan import Scan, find_properties, topic_codes

PREFIX = "%LMQ%$"
_SEPARATOR = "$"
_OFFSET = re.compile(r"[0-9]{1,18}", re.ASCII)
_MOST_BYTES = 1024
"""Of a queue's name."""
LITE_BYTES = 512
"""Of the three properties, at most: no name that is taken is longer."""


class LiteTopic(NamedTuple):
    """A lite topic `name` of the topic `parent`."""

    parent: str
    name: str

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return f"{PREFIX}{self.parent}{_SEPARATOR}{self.name}"


def lite_topic_of(queue: str) -> LiteTopic | None:
    """The lite topic of a queue; None when it is of none."""
    if not queue.startswith(PREFIX):
        return None
    parent, separator, name = queue[len(PREFIX) :].partition(_SEPARATOR)
    if not (parent and separator and name) or _SEPARATOR in name:
        return None
    return LiteTopic(parent, name)


def lite_name(queue: str) -> str:
    """The lite topic's name in the name of its queue."""
    return queue.rpartition(_SEPARATOR)[2]


def offset_property(queue_offset: int) -> bytes:
    """What the append adds to a record's properties."""
    return b"%b\x01%d\x02" % (PROPERTY_INNER_MULTI_QUEUE_OFFSET.encode(), queue_offset)


def lite_entry_of(record: Record) -> tuple[str, int] | None:
    """The lite topic's queue that a record stands in, and its offset there; None when it is of none."""
    properties = record.properties_map()
    queue = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "")
    offset = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "")
    lite = lite_topic_of(queue)
    if lite is None or lite.parent != record.topic or _OFFSET.fullmatch(offset) is None:
        return None
    return queue, int(offset)


def lite_entries(found: Scan, rows: Longs) -> Iterator[tuple[Key, Longs, Longs]]:
    """Every lite topic's queue that the records `rows` of a scan stand in: the rows, in log order, and their offsets in it."""
    if not len(rows):
        return
    names = [PROPERTY_INNER_MULTI_DISPATCH.encode(), PROPERTY_INNER_MULTI_QUEUE_OFFSET.encode()]
    (queues, queue_lengths), (offsets, offset_lengths) = find_properties(found, names)
    listed = rows[(queues[rows] >= 0) & (offsets[rows] >= 0) & (queue_lengths[rows] <= _MOST_BYTES)]
    if not len(listed):
        return
    codes, topics = topic_codes(found)
    places: dict[str, list[tuple[int, int]]] = {}
    for row in np.sort(listed).tolist():
        queue = _text(found, int(queues[row]), int(queue_lengths[row]))
        offset = _text(found, int(offsets[row]), int(offset_lengths[row]))
        lite = lite_topic_of(queue)
        if lite is not None and lite.parent == topics[codes[row]] and _OFFSET.fullmatch(offset):
            places.setdefault(queue, []).append((row, int(offset)))
    for queue, some in places.items():
        columns = np.array(some, dtype=np.int64)
        yield (queue, 0), columns[:, 0], columns[:, 1]


def _text(found: Scan, start: int, length: int) -> str:
    return bytes(found.buffer[start : start + min(length, _MOST_BYTES)]).decode("utf-8", "replace")
