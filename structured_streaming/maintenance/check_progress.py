"""What must hold of `reput_progress`: of each log, every batch begins where the one before it ended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from structured_streaming.maintenance.check_table import CheckedTable
from structured_streaming.storage.delta_names import BATCH_APPLICATION, SPARK_APPLICATION

Log = tuple[str, str]
"""Broker and log id."""


class Progress:
    """Where the lake's knowledge of each log begins and ends; `problems` tells what is wrong with it.

    `filled` are the parts of a log for which a table has rows: others were left out, or the table came later.
    """

    def __init__(self, checked: CheckedTable) -> None:
        self.starts: dict[Log, int] = {}
        self.ends: dict[Log, int] = {}
        self.filled: dict[tuple[Log, str], list[tuple[int, int]]] = {}
        self.problems = list(self._read(checked))
        self.problems += self._compare(checked)

    def covers(self, table: str, rows: pa.Table) -> NDArray[np.bool_]:
        """Which rows, with the columns `PLACE`, are of a part of a log for which the table has rows."""
        offsets = rows["physical_offset"].to_numpy()
        found = np.zeros(len(offsets), dtype=bool)
        for (log, of), parts in self.filled.items():
            if of != table:
                continue
            begins, ends = (np.array([part[at] for part in parts], dtype=np.int64) for at in (0, 1))
            at = np.searchsorted(begins, offsets, side="right") - 1
            within = (at >= 0) & (offsets < ends[at])
            its = pc.and_(pc.equal(rows["broker"], log[0]), pc.equal(rows["log_id"], log[1]))
            found |= within & pc.fill_null(its, False).to_numpy()
        return found

    def _read(self, checked: CheckedTable) -> Iterator[str]:
        columns = ["broker", "log_id", "start_offset", "end_offset", "table_versions"]
        order = [("broker", "ascending"), ("log_id", "ascending"), ("end_offset", "ascending")]
        for rows in checked.offset_files().windows(columns):
            for row in rows.sort_by(order).to_pylist():  # one a batch, not one a record
                log = row["broker"], row["log_id"]
                start, before = row["start_offset"], self.ends.get(log)
                if before is not None and start != before:
                    yield f"a batch of {'/'.join(log)} begins at {start:,}, the one before it ended at {before:,}"
                self.starts.setdefault(log, start)
                self.ends[log] = row["end_offset"]
                for table, _ in row["table_versions"] or ():
                    self._fill(self.filled.setdefault((log, table), []), start, row["end_offset"])

    def _fill(self, parts: list[tuple[int, int]], start: int, end: int) -> None:
        if parts and parts[-1][1] == start:
            start = parts.pop()[0]
        parts.append((start, end))

    def _compare(self, checked: CheckedTable) -> Iterator[str]:
        """With the versions that the table's commits carry, by which everybody goes until Spark's writer commits to it."""
        if SPARK_APPLICATION in checked.snapshot.transactions:
            return
        ends = {"/".join(log): end for log, end in self.ends.items()}
        for application, version in checked.snapshot.transactions.items():
            if application != BATCH_APPLICATION and ends.get(application) != version:
                last = ends.get(application)
                where = "no batch has rows of it" if last is None else f"its last batch ends at {last:,}"
                yield f"{application} was committed up to {version:,}, but {where}"
