"""Messages whose time has run out leave `messages`, and what is made of them `consume_queue`, `message_index` and typed tables.

| step | why in this order |
|---|---|
| the bounds are stated in `upkeep` (`expiring`) | from here on nothing below them is promised: `lake check` does not miss it, and who finds an index row below them without its message knows why |
| rows of each typed table, which may hold its topic, then of the others in `REMOVAL_ORDER` | an index row or a typed one that is there has its message |
| `expired` in `upkeep` | a round that finds the same bounds there looks at nothing but what was written since |

A typed table whose turn fails holds its topic (`held_topics.py`): that topic's rows stay in the other tables, too, and those of other
topics go. Any other table whose turn fails keeps the later ones from theirs. A round that failed or was killed is done again by the
next one, which finds less.

Two kinds of rows stay longer, in files of their own (`KEPT`), which are looked at again with any others:

- the last row of each queue in `consume_queue`, of each log: it says where the queue ends. A lake that forgot it would give
  queue offsets out twice, and lag would be unknown. Where `consume_queue` was left out for a time, so it is in the others
- messages that are due later than the bound: a broker that lost its disk takes them from here

Files that hold nothing old are not written anew, and most are not opened: their statistics say when their rows were stored, and
the last round's bounds which of these times are done. Files of typed tables are looked at whatever was done before: a table may be
filled from an older version of `messages`, and none of its rows stays longer. A file with old and new rows is written anew once a step of the bounds
(`retention_rules.py`), so a row of a topic at most 16 times for its own topic's rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.commit.typed_declared import declared_in, stored_tables
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.errors import LakeError
from structured_streaming.held_topics import HeldTopics
from structured_streaming.maintenance.age import (
    CUT_US,
    LATE,
    LONG_AGO,
    NEVER,
    Mask,
    bounds_of,
    longs,
    stated_us,
    stored_before,
    us,
)
from structured_streaming.maintenance.left_out import batches_without
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.queue_ends import QUEUE, QueueEnds, QueueKey, without_later
from structured_streaming.maintenance.reading import FileError, parts
from structured_streaming.maintenance.reports import Expired, Removed, Retention, TableReport
from structured_streaming.retention_rules import Bounds
from structured_streaming.staging.table_file import KEPT, PART, StagedFile
from structured_streaming.stated import extremes
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import CONSUME_QUEUE, REMOVAL_ORDER, Table
from structured_streaming.typed.declaration import DECLARED
from structured_streaming.typed.fields import OWN
from structured_streaming.upkeep import EXPIRED, EXPIRING, Upkeep, row

_FILES_A_COMMIT = 16


def expire(lake: Folder, now: datetime, *, dry: bool = False) -> list[TableReport]:
    """A report of each table that has messages, where there are rules; with `dry`, of what would be done. Raises LakeError,
    OSError where it is not known what to do."""
    upkeep = read_upkeep(lake)
    bounds = upkeep.rules.bounds(now)
    typed = stored_tables(lake)
    reports = {table.name: TableReport(table.name) for table in (*typed, *REMOVAL_ORDER)}
    if bounds.newest is None:
        return list(reports.values())
    window = _Window(upkeep, bounds)
    looks = dict[str, _Look]()
    for table in typed:
        with _holding(lake, table, window, reports[table.name]):
            looks[table.name] = _LookAtTyped(MaintainedTable(lake, table), window)
    try:
        for table in REMOVAL_ORDER:
            looks[table.name] = _Look(MaintainedTable(lake, table), window)
        if not window.moved and not any(look.candidates for look in looks.values()):
            return list(reports.values())
        batches = batches_without(lake, CONSUME_QUEUE, upkeep.expired_batches, upkeep.expired_at)
    except (LakeError, OSError, pa.ArrowException) as error:
        reports[table.name].problems.append(str(error))
        return list(reports.values())
    if not dry and window.moved and not upkeep.promises(bounds):
        add_to_upkeep(lake, row(EXPIRING, bounds=bounds, at=now))
    for table in typed:
        if (look := looks.get(table.name)) is not None:
            with _holding(lake, table, window, reports[table.name]):
                _expire(look, reports[table.name], dry=dry)
    keeps_ends = CONSUME_QUEUE.name in batches  # of each queue, in every table
    for table in REMOVAL_ORDER:
        look, report = looks[table.name], reports[table.name]
        try:
            _expire(look, report, keeps_ends=keeps_ends, dry=dry)
        except (LakeError, OSError, pa.ArrowException) as error:
            report.problems.append(f"retention of {look.table.folder}: {error}")
        if report.problems and not dry:
            return list(reports.values())
    if not dry and window.moved and not any(report.problems for report in reports.values()):
        add_to_upkeep(lake, row(EXPIRED, bounds=bounds, versions=batches, at=now))
    return list(reports.values())


def _expire(look: _Look, report: TableReport, *, keeps_ends: bool = False, dry: bool) -> None:
    """A table's turn. Raises LakeError, OSError, ArrowException."""
    report.problems += look.find(keeps_ends)
    report.retention = look.report
    if not dry:
        report.retention = _Removal(look).run()


@contextlib.contextmanager
def _holding(lake: Folder, table: Table, window: _Window, report: TableReport) -> Iterator[None]:
    """What fails of a typed table's turn, or is found there, is told, and its topic is held."""
    before = len(report.problems)
    try:
        yield
    except (LakeError, OSError, pa.ArrowException) as error:
        report.problems.append(f"retention of {lake.child(table.name)}: {error}")
    if len(report.problems) > before:
        report.problems.append(
            window.held.hold(lake.child(table.name), table.name, _topic_in(lake, table.name))
        )


def _topic_in(lake: Folder, table: str) -> str | None:
    """The topic of a typed table, where it can be read."""
    try:
        declared = declared_in(lake, table)
    except (LakeError, OSError):
        return None
    return None if declared is None else declared.topic


class _Window:
    """Which store times have to be looked at: those that bounds have passed since the last round that ended."""

    def __init__(self, upkeep: Upkeep, bounds: Bounds) -> None:
        self._bounds = bounds
        self.held = HeldTopics()
        before = upkeep.expired if upkeep.expired and upkeep.expired.rules == bounds.rules else None
        known = {} if before is None else before.by_pattern
        self._ranges = [
            (us(known.get(pattern), LONG_AGO), us(bound, LONG_AGO))
            for pattern, bound in bounds.by_pattern.items()
            if bound is not None
        ]
        self.moved = any(begin < end for begin, end in self._ranges)
        self._newest = max((end for _, end in self._ranges), default=LONG_AGO)
        since = upkeep.expired_at if before is not None else None
        self._since_ms = LONG_AGO if since is None else us(since - LATE, 0) // 1000

    def bound_of(self, topic: str | None) -> datetime | None:
        """What was stored before it goes, of a topic; None where all of it stays."""
        return None if topic is None or topic in self.held else self._bounds.of(topic)

    def has_old(self, file: DataFile) -> bool:
        """Whether a file may have rows whose time has run out, whoever looked for them before."""
        least, _ = _times_of(file)
        topic = _topic_of(file)
        newest = self._newest if topic is None else us(self.bound_of(topic), LONG_AGO)
        return least < newest

    def may_have(self, file: DataFile) -> bool:
        """Whether a file may have rows whose time has run out, and that nobody looked for yet."""
        least, greatest = _times_of(file)
        if least >= self._newest:
            return False
        if file.label == KEPT:
            return self.moved
        if file.modified >= self._since_ms:
            return True
        return any(begin < end and least < end and greatest >= begin for begin, end in self._ranges)


@dataclass(slots=True)
class _Found:
    """Of a file: rows, those that go, and those that stay although their time has run out."""

    file: DataFile
    rows: int = 0
    gone: int = 0
    kept: int = 0
    topics: dict[str, Expired] = field(default_factory=dict)


class _Look:
    """What of a table goes."""

    wanted: Sequence[str] = (*QUEUE, "queue_offset", "store_timestamp", "size", "deliver_timestamp")
    """Columns that are looked at where they are there."""

    def __init__(self, table: MaintainedTable, window: _Window) -> None:
        self.table = table
        self._bound_of = window.bound_of
        self._ends: dict[QueueKey, int] = {}
        self._damaged: dict[str, str] = {}
        self.candidates = self._candidates(window)
        self.found: list[_Found] = []
        self.report = Retention()

    def find(self, keeps_ends: bool) -> list[str]:
        """Looks at the candidates; `keeps_ends`: the last row of each queue stays in every table, not only in `consume_queue`.
        What is wrong with files, which are left as they are. Raises LakeError."""
        self._ends = self._last_rows() if self._keeps_ends(keeps_ends) else {}
        for file in self.candidates:
            if file.path in self._damaged:  # its rows are not among the ends
                continue
            try:
                found = self._look_at(file)
            except FileError as error:
                self._leave(error)
                continue
            if found.gone or (found.kept and file.label != KEPT):
                self.found.append(found)
        self.report = reported(self.found)
        return list(self._damaged.values())

    def _leave(self, error: FileError) -> None:
        self._damaged[error.file.path] = f"retention of {self.table.folder}: {error}; it is left as it is"

    def _candidates(self, window: _Window) -> list[DataFile]:
        found = [file for file in self.table.files if window.may_have(file)]
        if found:
            found += [file for file in self.table.files if file.label == KEPT and file not in found]
        return found

    def _keeps_ends(self, in_all: bool) -> bool:
        return in_all or self.table.table is CONSUME_QUEUE

    def young(self, rows: pa.Table) -> pa.Table:
        """Rows whose time has not run out."""
        old, _ = self._masks(rows)
        return rows.filter(pa.array(~old))

    def kept(self, rows: pa.Table) -> pa.Table:
        """Rows whose time has run out, and that stay."""
        _, kept = self._masks(rows)
        return rows.filter(pa.array(kept))

    def _look_at(self, file: DataFile) -> _Found:
        found = _Found(file)
        for rows in self._rows(file):
            old, kept = self._masks(rows)
            going = old & ~kept
            found.rows += len(old)
            found.gone += int(going.sum())
            found.kept += int(kept.sum())
            if going.any():
                self._count(found, rows.filter(pa.array(going)))
        for each in found.topics.values():
            each.files = 1
        return found

    def _count(self, found: _Found, gone: pa.Table) -> None:
        sized = "size" in gone.column_names
        counts = gone.group_by("topic", use_threads=False).aggregate(
            [("topic", "count"), *([("size", "sum")] if sized else [])]
        )
        for each in counts.to_pylist():
            its = found.topics.setdefault(each["topic"], Expired())
            its.rows += each["topic_count"]
            its.bytes += (each["size_sum"] or 0) if sized else 0

    def _masks(self, rows: pa.Table) -> tuple[Mask, Mask]:
        """Which rows are old, and which of these stay."""
        bounds = bounds_of(rows, self._bound_of)
        old = stored_before(rows, bounds)
        kept = np.zeros(len(old), dtype=bool)
        if "deliver_timestamp" in self.wanted and "deliver_timestamp" in rows.column_names:
            kept |= old & (longs(rows["deliver_timestamp"], LONG_AGO) >= bounds)
        if self._ends and old.any():
            kept[self._last_of(rows, old)] = True
        return old, kept

    def _last_of(self, rows: pa.Table, old: Mask) -> list[int]:
        """Places of old rows that are the last of their queue."""
        ends = pa.array(sorted(set(self._ends.values())), pa.int64())
        near = old & pc.fill_null(pc.is_in(rows["queue_offset"], ends), False).to_numpy()
        at = np.flatnonzero(near)
        some = rows.select([*QUEUE, "queue_offset"]).take(pa.array(at))
        columns = (column.to_pylist() for column in some.columns)
        return [
            int(place)
            for place, (*queue, offset) in zip(at, zip(*columns, strict=True), strict=True)
            if self._ends.get(tuple(queue)) == offset
        ]

    def _last_rows(self) -> dict[QueueKey, int]:
        """Of each queue that has old rows and no newer ones, in each log: its greatest queue offset."""
        old_ends, ends = QueueEnds(), QueueEnds()
        for file in self.candidates:
            try:
                for rows in self._rows(file):
                    old, _ = self._masks(rows)
                    old_ends.add(rows.filter(pa.array(old)))
                    ends.add(rows)
            except FileError as error:
                self._leave(error)
        waiting = {queue: end for queue, end in old_ends.all.items() if ends.all[queue] == end}
        others = [file for file in self.table.files if file not in self.candidates]
        return without_later(waiting, sorted(others, key=_times_of, reverse=True), self._rows)

    def _rows(self, file: DataFile) -> Iterator[pa.Table]:
        """What is looked at of a file, a row group at a time. Raises as `parts`."""
        schema = self.table.snapshot.schema
        columns = [name for name in self.wanted if name in schema.names]
        for part in parts(self.table.folder, file, schema):
            yield part.read(columns)


class _LookAtTyped(_Look):
    """What of a typed table goes. Beside its own columns it has those of a schema, whatever their names: these are not looked at."""

    wanted = ("topic", "store_timestamp")

    def __init__(self, table: MaintainedTable, window: _Window) -> None:
        schema = table.snapshot.schema
        lacks = [
            f"{column.name} of {column.type}"
            for column in OWN
            if column.name in self.wanted
            and (column.name not in schema.names or schema.field(column.name).type != column.type)
        ]
        if lacks and DECLARED in table.log.metadata["configuration"]:
            raise LakeError(
                f"table {table.folder} has no column {' and none '.join(lacks)}, which every typed table has: how old its rows are "
                "is not known"
            )
        self._is_typed = not lacks
        super().__init__(table, window)

    def _candidates(self, window: _Window) -> list[DataFile]:
        return [file for file in self.table.files if self._is_typed and window.has_old(file)]

    def _keeps_ends(self, in_all: bool) -> bool:
        return False


class _Removal:
    """Takes what was found out of a table."""

    def __init__(self, look: _Look) -> None:
        self._table = look.table
        self._look = look
        self._done: list[_Found] = []

    def run(self) -> Retention:
        """What was done. Raises LakeError, OSError."""
        found = self._look.found
        whole = [each for each in found if each.gone == each.rows]
        rest = [each for each in found if each.gone < each.rows]
        if whole:
            self._commit(whole, [])
        written: list[StagedFile] = []
        waiting: list[_Found] = []
        for each in rest:
            written += self._written(each)
            waiting.append(each)
            if len(waiting) == _FILES_A_COMMIT:
                self._commit(waiting, written)
                written, waiting = [], []
        if waiting:
            self._commit(waiting, written)
        return reported(self._done)

    def _written(self, found: _Found) -> list[StagedFile]:
        """What stays of a file."""
        files = [found.file]
        written: list[StagedFile] = []
        if found.rows > found.gone + found.kept:
            label = PART if found.file.label == KEPT else found.file.label
            written += self._table.written(files, label, some_of=self._look.young)
        if found.kept:
            written += self._table.written(files, KEPT, some_of=self._look.kept)
        return written

    def _commit(self, found: Sequence[_Found], written: Sequence[StagedFile]) -> None:
        """Raises LakeError where another maintenance has replaced a file: the next round finds what is left."""
        table, schema = self._table, self._table.snapshot.schema_json
        if not table.replace([each.file for each in found], schema, written, deletes=True):
            raise LakeError(
                "its files were rewritten by another maintenance meanwhile; the next round goes on"
            )
        self._done += found


def reported(found: Sequence[_Found]) -> Retention:
    """The sum of what was found in files."""
    report = Retention()
    for each in found:
        for topic, its in each.topics.items():
            total = report.topics.setdefault(topic, Expired())
            total.files += its.files
            total.rows += its.rows
            total.bytes += its.bytes
        whole = each.gone == each.rows
        before = report.dropped if whole else report.rewritten
        after = Removed(before.files + 1, before.bytes + each.file.size)
        if whole:
            report.dropped = after
        else:
            report.rewritten = after
    return report


def _topic_of(file: DataFile) -> str | None:
    """The topic of all rows of a file, where its statistics say so."""
    stated: dict[str, Any] = file.statistics
    least, greatest = extremes(stated, "topic")
    some_null = (stated.get("nullCount") or {}).get("topic") != 0
    return least if isinstance(least, str) and least == greatest and not some_null else None


def _times_of(file: DataFile) -> tuple[int, int]:
    """Least and greatest store time of a file, µs; what is not stated rules nothing out. Raises LakeError."""
    least, greatest = extremes(file.statistics, "store_timestamp")
    return (
        LONG_AGO if least is None else stated_us(least),
        NEVER if greatest is None else stated_us(greatest) + CUT_US,
    )
