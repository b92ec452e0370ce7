"""Where a log that is open in this process may be cut for readers: between records, or anywhere within damage."""

from __future__ import annotations

import itertools
import struct

from store.index.queue_index import NO_LIMIT, QueueIndex
from store.log.commit_log import CommitLog
from store.log.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2

_SIZE_AND_MAGIC = struct.Struct(">iI")


def is_boundary(log: CommitLog, index: QueueIndex, offset: int) -> bool:
    """Whether a range may begin or end at `offset`, which the log holds: not within a record or blank."""
    record = index.floor(offset)
    return record is None or record == offset or _end_of(log, record) <= offset


def split(
    log: CommitLog, index: QueueIndex, start: int, end: int, max_bytes: int, limit_bytes: int = NO_LIMIT
) -> list[int]:
    """Boundaries of ranges of at most `max_bytes`, or one record; the first is `start`.

    The last is `end`, or the one at which `limit_bytes` are full; the first range may pass them. Raises
    OffsetOutOfRangeError.
    """
    cuts = [start]
    for begin, following in itertools.pairwise(index.split(start, end, max_bytes, limit_bytes)):
        pieces = [following]
        if following - begin > max_bytes:  # what the index knows no record of
            first = max(_end_of(log, begin), begin + max_bytes)
            pieces = [*range(first, following, max_bytes), following]
        for cut in pieces:
            if cut - start > limit_bytes and len(cuts) > 1:
                return cuts
            cuts.append(cut)
    return cuts


def _end_of(log: CommitLog, start: int) -> int:
    """Where the record at `start` ends, with a blank behind it; `start` when what stands there is no record."""
    segment = log.segment_at(start)
    end = start - segment.start
    for kinds in ((MAGIC_V1, MAGIC_V2), (BLANK_MAGIC,)):
        if end + _SIZE_AND_MAGIC.size > segment.size:
            break
        size, magic = _SIZE_AND_MAGIC.unpack_from(segment.view, end)
        room = segment.size - end
        if magic not in kinds or not _SIZE_AND_MAGIC.size <= size <= room:
            break
        if magic == BLANK_MAGIC and size != room:  # damaged
            break
        end += size
    return segment.start + end
