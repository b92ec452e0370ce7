"""What must hold between tables: a row of an index is of a message that is there.

Of the parts of logs that `messages` has rows of, less what is erased and what retention may have removed. So a table that lost
rows is found without the log, whoever removed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.erased import PLACE, Erased
from structured_streaming.maintenance.age import bounds_of, stored_before
from structured_streaming.maintenance.check_progress import Progress
from structured_streaming.maintenance.check_table import CheckedTable, counted_problem
from structured_streaming.maintenance.windows import OffsetFiles
from structured_streaming.retention_rules import Bounds, latest
from structured_streaming.tables import CONSUME_QUEUE, JOURNAL_TOPIC, MESSAGE_INDEX, MESSAGES

_COLUMNS = (*PLACE, "topic", "store_timestamp")
_REMEDY = "rows of it were removed; RESTORE TABLE to a version before that, or fill a new lake from the log"


def lacking(
    progress: Progress, tables: Mapping[str, CheckedTable], gone: Sequence[Bounds], erased: Erased
) -> Iterator[str]:
    """What is wrong with `messages`, of tables that were read before it. Raises FileError."""
    if MESSAGES.name not in tables:
        return
    messages = tables[MESSAGES.name].offset_files()
    for table in (CONSUME_QUEUE, MESSAGE_INDEX):
        if table.name not in tables:
            continue
        missing = []
        for rows in tables[table.name].offset_files().windows(_COLUMNS):
            if rows.num_rows:
                wanted = rows.filter(_wanted(rows, progress, gone, erased)).select(PLACE)
                missing.append(_without(wanted, messages))
        yield from (
            f"{problem}: {_REMEDY}"
            for problem in counted_problem(f"missing, to which rows of {table.name} point", missing)
        )


def _wanted(rows: pa.Table, progress: Progress, gone: Sequence[Bounds], erased: Erased) -> pa.Array:
    """Which rows have a message for sure."""
    kept = pc.fill_null(pc.not_equal(rows["topic"], JOURNAL_TOPIC), False).to_numpy()
    kept &= ~erased.rows(rows) & ~stored_before(rows, bounds_of(rows, partial(latest, gone)))
    return pa.array(kept & progress.covers(MESSAGES.name, rows))


def _without(wanted: pa.Table, messages: OffsetFiles) -> pa.Table:
    """Those that no message stands for."""
    if not wanted.num_rows:
        return wanted
    ends = pc.min_max(wanted["physical_offset"])
    there = messages.between(PLACE, ends["min"].as_py(), ends["max"].as_py() + 1).select(PLACE)
    found: pa.Table = wanted.group_by(PLACE).aggregate([]).join(there, list(PLACE), join_type="left anti")
    return found.sort_by([(name, "ascending") for name in PLACE])
