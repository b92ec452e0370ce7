"""What rows of `erasures` name, and what of it is settled: see `Upkeep.settled`. Imports no Spark.

A row of a broker's journal stands somewhere in a log itself, and the reput brings rows in the order of their log. So of rows below
the lake's progress none can come any more, and two offsets, of the row and of the record, say whether a round knew of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.erased import PLACE, Erased, Log, Mask
from structured_streaming.tables import ERASURES

BY_HAND = ("", "")
"""The log of rows that no broker's journal has: a command put them there. Each such commit has an offset above all of those before it.
Rows of earlier versions of this program have no broker either, and a log_id for each commit."""
NAMED = ("erased_broker", "erased_log_id", "erased_physical_offset")
"""Columns that name an erased record."""
COLUMNS = (*PLACE, *NAMED)
_NOWHERE = np.iinfo(np.int64).max


class Naming:
    """Rows with the columns `COLUMNS`."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._unsettled: tuple[Mapping[str, int], Erased] | None = None

    @classmethod
    def nothing(cls) -> Naming:
        """No rows."""
        return cls(pa.schema([(name, ERASURES.schema.field(name).type) for name in COLUMNS]).empty_table())

    @cached_property
    def every(self) -> Erased:
        """The records."""
        return _named(self.rows)

    def unsettled(self, settled: Mapping[str, int]) -> Erased:
        """The records that no settled row names. Asked again with the same mapping, it looks at nothing."""
        if self._unsettled is None or self._unsettled[0] is not settled:
            done = self._places.below(settled) & self._records.below(settled)
            found = _named(self.rows.filter(pa.array(~done)))
            self._unsettled = settled, found.without(_named(self.rows.filter(pa.array(done))))
        return self._unsettled[1]

    def settling(self, ends: Mapping[Log, int], settled: Mapping[str, int]) -> dict[str, int]:
        """What is to be stated when everything below the ends is settled, of the logs that rows are of, or name: what `settled` does not
        say."""
        known = {_key(log): end for log, end in ends.items()} | self._by_hand()
        logs = {*self._places.logs, *self._records.logs}
        return {log: known[log] for log in sorted(logs & known.keys()) if known[log] > settled.get(log, 0)}

    def next_by_hand(self) -> int:
        """The offset of the next commit of rows by hand."""
        return self._by_hand().get(_key(BY_HAND), 0)

    def _by_hand(self) -> dict[str, int]:
        """The ends of logs that are no broker's."""
        its = self.rows.filter(pc.equal(self.rows["broker"], BY_HAND[0]))
        last = its.group_by(list(PLACE[:2]), use_threads=False).aggregate([(PLACE[2], "max")])
        return {
            _key((each["broker"], each["log_id"])): each["physical_offset_max"] + 1
            for each in last.to_pylist()
        }

    @cached_property
    def _places(self) -> _Places:
        return _Places(self.rows, PLACE)

    @cached_property
    def _records(self) -> _Places:
        return _Places(self.rows, NAMED)


class _Places:
    """Where rows say that something stands, by three of their columns."""

    def __init__(self, rows: pa.Table, columns: tuple[str, ...]) -> None:
        broker, log_id, offset = (rows[name].combine_chunks() for name in columns)
        encoded = pc.binary_join_element_wise(broker, log_id, _BETWEEN).dictionary_encode()
        self.logs: list[str] = encoded.dictionary.to_pylist()
        self._codes = pc.fill_null(encoded.indices, len(self.logs)).to_numpy(zero_copy_only=False)
        self._offsets = pc.fill_null(offset, _NOWHERE).to_numpy(zero_copy_only=False)

    def below(self, settled: Mapping[str, int]) -> Mask:
        """Which stand below what is settled of their log."""
        ends = np.array([*(settled.get(log, 0) for log in self.logs), 0], np.int64)
        found: Mask = self._offsets < ends[self._codes]
        return found


def _named(rows: pa.Table) -> Erased:
    return Erased.in_rows(rows.select(NAMED).rename_columns(list(PLACE)))


_BETWEEN = "/"


def _key(log: Log) -> str:
    return _BETWEEN.join(log)
