"""Where a log that a real broker had begins to say what is put off.

That broker delivers timers and ends transactions without telling which records they were. So an import copies what waits to the
end of the log, and records of timers, delay levels and halves before those copies are done with, for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_gateway.journal.contributor import Contributor, Target
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb


class TakenOver(Contributor):
    """Owns `Batch.put_off_from`. Only snapshots have it: an import ends with one."""

    def __init__(self) -> None:
        self.offset = 0
        """Physical offset below which nothing is put off."""

    def fill(self, record: pb.Batch) -> Iterable[pb.Batch]:
        return ()

    def written(self) -> None:
        pass

    def lost(self) -> None:
        pass

    def snapshot(self, target: Target) -> Iterator[int]:
        if self.offset:
            target.part.put_off_from = self.offset
            yield 1

    def apply(self, record: pb.Batch) -> None:
        self.offset = max(self.offset, record.put_off_from)
