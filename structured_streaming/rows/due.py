"""When a delayed message is due (`messages.deliver_timestamp`), and the tags code that stands for it.

| record | due |
|---|---|
| in SCHEDULE_TOPIC_XXXX with DELAY | store time and the duration of that level; null where the broker's `messageDelayLevel` is not known. RocketMQ's ConsumeQueue has it as tags code, and so has `consume_queue` |
| else with TIMER_DELIVER_MS | that time: what the client asked for |
| else with TIMER_OUT_MS | that time: when a real broker takes the message out, up to `timerPrecisionMs` before the time asked for. No property has that of a message that was sent with a delay (TIMER_DELAY_SEC, TIMER_DELAY_MS) in place of a time |

A client's delay counts before its TIMER_DELIVER_MS (`HookUtils.transformTimerMessage`), and TIMER_OUT_MS is never before its
time by more than `timerPrecisionMs`, 1,000 at most: a TIMER_DELIVER_MS that is not of its TIMER_OUT_MS does not count.

What is no number, or outside of the years 1 to 9999, is null; the text stays in `properties`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.scan import Bytes, Longs
from structured_streaming.rows.arrays import GREATEST_MS, binary

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
UNKNOWN = np.int64(-(1 << 63))
"""Instead of a time that the record does not say, or that nobody knows."""
_PRECISION_MS = 1000
"""The largest `timerPrecisionMs` that a broker can have, ms."""
_MOST_DIGITS = len(str(GREATEST_MS))


def numbers(buffer: Bytes, start: Longs, length: Longs) -> Longs:
    """The decimal numbers that the slices hold, at most 15 digits; `UNKNOWN` for everything else."""
    found = np.full(len(start), UNKNOWN, dtype=np.int64)
    rows = np.flatnonzero((start >= 0) & (length > 0) & (length <= _MOST_DIGITS))
    if not len(rows):
        return found
    digits = binary(buffer, start[rows], length[rows])
    valid = pc.match_substring_regex(digits, rb"^[0-9]+$").to_numpy(zero_copy_only=False)
    rows = rows[valid]
    found[rows] = digits.filter(pa.array(valid)).cast(pa.string()).cast(pa.int64()).to_numpy()
    return found


def level_times(store_timestamp: Longs, levels: Longs, durations: Sequence[int] | None) -> Longs:
    """Store time and the duration of each level, the longest for higher ones; `UNKNOWN` for no level."""
    due = np.full(len(levels), UNKNOWN, dtype=np.int64)
    given = levels > 0
    if durations:
        table = np.array(durations, dtype=np.int64)
        due[given] = store_timestamp[given] + table[np.minimum(levels[given], len(table)) - 1]
    return due


def timer_times(asked_for: Longs, taken_out: Longs) -> Longs:
    """When each message is due, of its TIMER_DELIVER_MS and TIMER_OUT_MS; `UNKNOWN` where it has neither."""
    fits = (taken_out < asked_for) & (asked_for - taken_out <= _PRECISION_MS)
    exact = (asked_for != UNKNOWN) & ((taken_out == UNKNOWN) | fits)
    return np.where(exact, asked_for, taken_out)
