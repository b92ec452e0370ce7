"""Records that are erased, by their logs, and which rows of a table are theirs. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.log.erased import NOTHING, Offsets
from structured_streaming.stated import extremes, may_hold
from structured_streaming.tables import MESSAGE_INDEX, MESSAGES, QUARANTINE, TABLES

Log = tuple[str, str]
"""Broker and log_id."""
Mask = NDArray[np.bool_]
_OF_MESSAGES = (MESSAGE_INDEX.name, MESSAGES.name, QUARANTINE.name)
"""And typed tables."""
PLACE = ("broker", "log_id", "physical_offset")
"""Columns that name a record."""


class Erased:
    """By log: where erased records begin, ascending, each once; no log without any."""

    def __init__(self, by_log: Mapping[Log, Offsets]) -> None:
        self.by_log = {log: offsets for log, offsets in by_log.items() if len(offsets)}

    @classmethod
    def in_rows(cls, rows: pa.Table) -> Erased:
        """Of the columns `PLACE`, in any order, repeated or not."""
        found = {}
        for broker, log_id in _logs(rows):
            offsets = rows.filter(_of_log(rows, broker, log_id))["physical_offset"]
            found[broker, log_id] = np.unique(offsets.to_numpy())
        return cls(found)

    def __len__(self) -> int:
        return sum(map(len, self.by_log.values()))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Erased)
            and self.by_log.keys() == other.by_log.keys()
            and all(np.array_equal(offsets, other.by_log[log]) for log, offsets in self.by_log.items())
        )

    def __hash__(self) -> int:
        return hash(frozenset((log, len(offsets)) for log, offsets in self.by_log.items()))

    def of(self, log: Log) -> Offsets:
        """Of one log."""
        return self.by_log.get(log, NOTHING)

    def together(self, other: Erased) -> Erased:
        """Both."""
        logs = {**self.by_log, **other.by_log}
        return Erased({log: np.union1d(self.of(log), other.of(log)) for log in logs})

    def without(self, other: Erased) -> Erased:
        """Those that the other has not."""
        return Erased(
            {
                log: np.setdiff1d(offsets, other.of(log), assume_unique=True)
                for log, offsets in self.by_log.items()
            }
        )

    def below(self, ends: Mapping[Log, int]) -> Erased:
        """Those below an end of their log; of a log without one none."""
        return Erased(
            {
                log: offsets[: np.searchsorted(offsets, ends.get(log, 0))]
                for log, offsets in self.by_log.items()
            }
        )

    def table(self) -> pa.Table:
        """The columns `PLACE`."""
        logs = list(self.by_log)
        counts = [len(self.by_log[log]) for log in logs]
        return pa.table(
            {
                "broker": pa.array(np.repeat(np.array([log[0] for log in logs], dtype=object), counts), pa.string()),
                "log_id": pa.array(np.repeat(np.array([log[1] for log in logs], dtype=object), counts), pa.string()),
                "physical_offset": pa.array(np.concatenate([NOTHING, *self.by_log.values()]), pa.int64()),
            }
        )  # fmt: skip

    def rows(self, rows: pa.Table) -> Mask:
        """Which rows, with the columns `PLACE`, are of an erased record."""
        return self._rows(rows, None)

    def reached(self, rows: pa.Table) -> Mask:
        """Which rows, with the columns `PLACE` and `length`, stand for bytes in which an erased record begins."""
        return self._rows(rows, pc.fill_null(rows["length"], 0).to_numpy())

    def may_be_in(self, statistics: Mapping[str, Any], *, reaching: bool = False) -> bool:
        """Whether a file with Delta's statistics may have rows of erased records; `reaching`: as of `reached`."""
        begin, end = extremes(statistics, "physical_offset")
        end = None if reaching else end
        for (broker, log_id), offsets in self.by_log.items():
            if not (
                may_hold(statistics, "broker", broker, broker)
                and may_hold(statistics, "log_id", log_id, log_id)
            ):
                continue
            first = 0 if begin is None else int(np.searchsorted(offsets, begin))
            behind = len(offsets) if end is None else int(np.searchsorted(offsets, end, side="right"))
            if first < behind:
                return True
        return False

    def _rows(self, rows: pa.Table, lengths: Offsets | None) -> Mask:
        found = np.zeros(rows.num_rows, dtype=bool)
        for broker, log_id in _logs(rows):
            erased = self.of((broker, log_id))
            if not len(erased):
                continue
            offsets = rows["physical_offset"].to_numpy()
            firsts = np.searchsorted(erased, offsets)
            nearest = erased[np.minimum(firsts, len(erased) - 1)]
            hit = nearest == offsets
            if lengths is not None:
                hit |= (nearest >= offsets) & (nearest < offsets + lengths)
            found |= hit & _of_log(rows, broker, log_id).to_numpy()
        return found


NOTHING_ERASED = Erased({})


def hides(table: str) -> bool:
    """Whether rows of erased records are left out of what is read of a table. A row of `consume_queue` says nothing of a message but
    that there was one, and the last one where its queue ends; other tables have rows of the journal."""
    return table in _OF_MESSAGES or table not in TABLES


def _logs(rows: pa.Table) -> Iterator[Log]:
    """Those that rows are of."""
    for row in rows.select(PLACE[:2]).group_by(list(PLACE[:2]), use_threads=False).aggregate([]).to_pylist():
        yield row["broker"], row["log_id"]


def _of_log(rows: pa.Table, broker: str, log_id: str) -> Any:
    its = pc.and_(pc.equal(rows["broker"], broker), pc.equal(rows["log_id"], log_id))
    return pc.fill_null(its, False)
