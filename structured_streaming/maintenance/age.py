"""Which rows of a table are older than their topic's bound."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from structured_streaming.errors import LakeError

LONG_AGO, NEVER = -(1 << 63), (1 << 63) - 1
"""In µs since the epoch, as all times here."""
CUT_US = 1000
"""Other writers cut the greatest time of a file to ms."""
LATE = timedelta(days=1)
"""Between the time at which a writer says that it wrote a file, and its commit, at most."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


def bounds_of(rows: pa.Table, bound_of: Callable[[str | None], datetime | None]) -> Longs:
    """The bound of each row's topic; `LONG_AGO` where there is none."""
    topics = rows["topic"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    bounds = [us(bound_of(topic), LONG_AGO) for topic in topics.dictionary.to_pylist()]
    by_index = np.array([*bounds, LONG_AGO], dtype=np.int64)
    found: Longs = by_index[pc.fill_null(topics.indices, len(bounds)).to_numpy(zero_copy_only=False)]
    return found


def stored_before(rows: pa.Table, bounds: Longs) -> Mask:
    """Which rows were stored before their bound; one without a time was not."""
    found: Mask = longs(rows["store_timestamp"], NEVER) < bounds
    return found


def longs(times: pa.ChunkedArray, null: int) -> Longs:
    """Times; `null` where there is none."""
    found: Longs = pc.fill_null(times.cast(pa.int64()), null).to_numpy()
    return found


def us(time: datetime | None, otherwise: int) -> int:
    """A time; `otherwise` where there is none."""
    return otherwise if time is None else (time - _EPOCH) // timedelta(microseconds=1)


def stated_us(text: Any) -> int:
    """A time in the statistics of a file. Raises LakeError."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise LakeError(f"the time {text!r:.80} in the statistics of a file is none") from error
    return us(time.replace(tzinfo=time.tzinfo or UTC), NEVER)
