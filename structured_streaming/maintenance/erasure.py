"""Rows of erased records leave the tables for good: what a version has, what older versions had, statistics, checkpoints, the
Iceberg mirror. `erasures` says whose, before anything is removed.

Of each table, in an order in which an index row that is there has its message (`REMOVAL_ORDER`); a typed table or `quarantine` that
is damaged keeps no other from its turn:

| step | killed behind it, the next round |
|---|---|
| files with such rows are written anew without them, and committed in their place (`maintained_table.py`), until there are none | finds fewer |
| the mirror is made anew: its manifests hold least and greatest values of columns | makes it once more |
| the log forgets the statistics of files that went (`log_cleaning.py`) | finds what is left |
| files of no version that have such rows are removed; also what maintenance replaced more than an hour ago, and the log tells no statistics of any more, which would all have to be opened | finds what is left |

At the end `upkeep` says from which versions on the rows are out (`erased`), and, once nothing of them was left, up to where in the
logs: of records below the lake's progress no batch that was read before the erasure can bring rows back any more, of one beyond it
may. What is settled so is looked for no more, and who reads leaves out the others.

| stays | why |
|---|---|
| the last row of a queue in `consume_queue`, of each log | it says where the queue ends; it holds nothing of the message but sizes, times and the hash of its tag |
| rows of `delivery_events` | counts and times of deliveries are of groups; `message_id` becomes null. One that comes later, of a message that was in flight, names it again, until the erasure is asked for once more |
| a file that a version had, of which the log says that it has no such rows | older versions can be read as far as their logs go |
| a file of no version that a batch may be about to commit, and one that is being written | removed once the progress is beyond it, or when it is an hour old |
| one of a typed table that awaits a fill | removed once it does not (`typed_fill.py`) |
| scratch files of others, commits that other writers did not put in place | removed when they are an hour old |

Of the last three nobody can say that it is nothing of the erased, so a round that finds one is not settled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from store.counting import counted
from structured_streaming.catalog.places import STAGING
from structured_streaming.commit.ends import Ends, FollowedEnds
from structured_streaming.commit.erasures_log import Erasures
from structured_streaming.commit.log_cleaning import LogCleaning, is_unfinished, remove_checkpoints
from structured_streaming.commit.snapshot import DataFile
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_declared import stored_tables
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.erased import NOTHING_ERASED, PLACE, Erased, Mask
from structured_streaming.errors import LakeError
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.queue_ends import QUEUE, QueueEnds, without_later
from structured_streaming.maintenance.reading import FileError, parts
from structured_streaming.maintenance.reports import Removed
from structured_streaming.staging.table_file import StagedFile
from structured_streaming.stated import may_hold_any
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import SCRATCH_PREFIX
from structured_streaming.tables import (
    CONSUME_QUEUE,
    DELIVERY_EVENTS,
    MESSAGE_INDEX,
    MESSAGES,
    QUARANTINE,
    REMOVAL_ORDER,
    REPUT_PROGRESS,
    Table,
)
from structured_streaming.upkeep import ERASED, row

if TYPE_CHECKING:
    from structured_streaming.iceberg.mirror import LakeMirror

YOUNG_S = 3600
"""No batch takes as long: a file of no version that is older is nobody's."""
_FILES_A_COMMIT = 16
_WHY = "rows were erased"


@dataclass(slots=True)
class Purged:
    """What went of a table, or would: rows; files that had them; files of no version with their bytes; commits and checkpoints
    that were changed or removed. `problems`: what is left, and why. `waits`: files that somebody may be about to commit, or writes;
    `awaits_fill`: it is a typed table, and who fills it may bring rows back."""

    table: str
    rows: int = 0
    files: int = 0
    removed: Removed = field(default_factory=Removed)
    log_files: int = 0
    waits: int = 0
    problems: list[str] = field(default_factory=list)
    awaits_fill: bool = False

    @property
    def is_left(self) -> bool:
        """Whether something of the kind may be left, or come back."""
        return bool(self.waits or self.problems or self.awaits_fill)

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing of the kind."""
        return not (
            self.rows or self.files or self.removed.files or self.log_files or self.waits or self.problems
        )


@dataclass(slots=True)
class Erasure:
    """Of a round. `settled`: nothing of what `erasures` names below the lake's progress is left; `ahead`: records that the lake has
    not come to; `scratch`: scratch files and folders of others, and commits that are being written, that were there when their table's
    rows were out, and are still there at the end."""

    tables: list[Purged] = field(default_factory=list)
    settled: bool = True
    ahead: int = 0
    scratch: int = 0

    @property
    def awaiting_fill(self) -> list[str]:
        """Typed tables that await a fill."""
        return [each.table for each in self.tables if each.awaits_fill]

    def left(self) -> list[str]:
        """For people: what keeps it from being settled, but problems."""
        found = []
        if any(each.waits for each in self.tables):
            found.append(
                "files that are being written, or that a batch may be about to commit, hold some of them or may; run `lakebroker maintain` "
                "when they are done, or an hour later"
            )
        if names := self.awaiting_fill:
            found.append(
                f"{', '.join(names)} {'lacks' if len(names) == 1 else 'lack'} messages of the lake, and who fills it may have read some of "
                "them; run `lakebroker maintain` when the reput was started and has filled it, or, of one in state `filling`, `maintain` or "
                "`lakebroker typed fill` has"
            )
        if self.scratch:
            found.append(
                f"{counted(self.scratch, 'scratch file')} of other processes may hold some of them; run "
                "`lakebroker maintain` when they are done, or an hour later"
            )
        return found


class _Rule(Protocol):
    """What of a table's rows goes."""

    @property
    def columns(self) -> Sequence[str]:
        """That `mask` looks at."""

    def mask(self, rows: pa.Table) -> Mask:
        """Which rows cannot stay as they are."""

    def left(self, rows: pa.Table) -> pa.Table:
        """What stays of rows."""

    def may_be_in(self, statistics: Any) -> bool:
        """Whether a file may have such rows, by Delta's statistics."""


class _Records:
    """See `_Rule`. Rows of erased records."""

    columns: Sequence[str] = PLACE

    def __init__(self, erased: Erased) -> None:
        self._erased = erased

    def mask(self, rows: pa.Table) -> Mask:
        return self._erased.rows(rows)

    def left(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(~self.mask(rows)))

    def may_be_in(self, statistics: Any) -> bool:
        return self._erased.may_be_in(statistics)


class _Bytes(_Records):
    """See `_Rule`. Rows that stand for bytes in which an erased record begins."""

    columns = (*PLACE, "length")

    def mask(self, rows: pa.Table) -> Mask:
        return self._erased.reached(rows)

    def may_be_in(self, statistics: Any) -> bool:
        return self._erased.may_be_in(statistics, reaching=True)


class _Ids:
    """See `_Rule`. Message ids of erased records become null."""

    columns: Sequence[str] = ("message_id",)

    def __init__(self, ids: set[str]) -> None:
        self._sorted = sorted(ids)
        self._ids = pa.array(self._sorted, pa.string())

    def mask(self, rows: pa.Table) -> Mask:
        found: Mask = pc.is_in(rows["message_id"], self._ids, skip_nulls=True).to_numpy()
        return found

    def left(self, rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("message_id")
        cleared = pc.if_else(pa.array(self.mask(rows)), pa.scalar(None, pa.string()), rows["message_id"])
        return rows.set_column(at, rows.schema.field(at), cleared)

    def may_be_in(self, statistics: Any) -> bool:
        return may_hold_any(statistics, "message_id", self._sorted)


class _Gone(NamedTuple):
    """A file that a version had. `may_have`: whether it may have such rows, None where the log does not tell any more; `young`: one
    had it until lately."""

    may_have: bool | None
    young: bool

    @property
    def is_forgotten(self) -> bool:
        """Whether neither the log tells of it any more, nor anybody reads it."""
        return self.may_have is None and not self.young


class _Found(NamedTuple):
    file: DataFile
    rows: int
    gone: int


def would_purge(lake: Folder, erased: Erased) -> Erasure:
    """What a round would remove of the newest versions if `erasures` named these records; nothing is changed. As `purge`."""
    ends = _ends(lake)
    found = _Round(lake, None, ends, erased, (), {}, dry=True).run()
    found.ahead = len(erased) - len(erased.below(ends))
    return found


def purge(
    lake: Folder, mirror: LakeMirror | None, ids: Collection[str] = (), again: Erased = NOTHING_ERASED
) -> Erasure:
    """One round, about what no round has settled; nothing where there is nothing to do. `ids`: of erased messages, beside those that
    the lake tells; `again`: erased records that are looked for whatever rounds before found. Raises LakeError, OSError where it is not
    known what to do."""
    upkeep = read_upkeep(lake)
    for name, version in upkeep.erased.items():
        if lake.child(name).exists():
            remove_checkpoints(lake.child(name), version)
    ends = _ends(lake)
    erasures = Erasures(lake)
    wanted = erasures.unsettled(upkeep.settled).together(again)
    erased = wanted.below(ends)
    ahead = len(wanted) - len(erased)
    if not (len(erased) or ids):
        return Erasure(ahead=ahead)
    found = _Round(lake, mirror, ends, erased, ids, erasures.settling(ends, upkeep.settled), dry=False).run()
    found.ahead = ahead
    return found


def _ends(lake: Folder) -> Ends:
    return FollowedEnds(lake).at(TableLog(lake.child(REPUT_PROGRESS.name), reads=True))


class _Round:
    def __init__(
        self,
        lake: Folder,
        mirror: LakeMirror | None,
        ends: Ends,
        erased: Erased,
        ids: Collection[str],
        settling: Mapping[str, int],
        *,
        dry: bool,
    ) -> None:
        """`ends` are those of the lake, read before any table: what is below is committed, or never will be. `settling`: what is settled
        when nothing of the erased is left (`Erasures.settling`)."""
        self._lake = lake
        self._mirror = mirror
        self._erased = erased
        self._given = ids
        self._settling = settling
        self._dry = dry
        self._ends = ends
        self._report = Erasure()
        self._turns: list[Turn] = []

    def run(self) -> Erasure:
        """All tables."""
        report = self._report
        typed = stored_tables(self._lake)
        scratch = set[tuple[str, str]]()
        # before rows of messages go: they say which ids are meant
        ids = self._ids() | set(self._given)
        rules: dict[str, Callable[[MaintainedTable], _Rule]] = {
            DELIVERY_EVENTS.name: lambda table: _Ids(ids),
            CONSUME_QUEUE.name: self._but_ends,
            QUARANTINE.name: lambda table: _Bytes(self._erased),
        }
        in_order = [DELIVERY_EVENTS, *typed, QUARANTINE, *REMOVAL_ORDER]
        for table in in_order:
            rule = rules.get(table.name, lambda table: _Records(self._erased))
            turn = Turn(self._lake, self._mirror, table, self._ends)
            with turn.problems():
                # asked before its files are looked at: what a fill commits until then is seen there
                awaits_fill = table in typed and self._awaits_fill(table)
                turn.run(rule, awaits_fill=awaits_fill, dry=self._dry)
            report.tables.append(turn.report)
            self._turns.append(turn)
            scratch |= _scratch(self._folders(table))
            if turn.report.problems and not self._dry and table not in (*typed, QUARANTINE):
                break  # an index row that is there has its message, and ids are told by messages
        if self._dry:
            return report
        scratch |= _scratch([self._lake])
        for turn in self._turns:
            with turn.problems():
                turn.look_again()
        every = [folder for table in in_order for folder in self._folders(table)]
        report.scratch = len(scratch & _scratch([self._lake, *every]))
        self._say()
        return report

    def _say(self) -> None:
        report = self._report
        left = report.scratch or any(each.is_left for each in report.tables)
        if not left:  # a table that was declared meanwhile, too
            by_name = {each.table: each for each in report.tables}
            for table in filter(self._awaits_fill, stored_tables(self._lake)):
                if table.name not in by_name:
                    report.tables.append(by_name.setdefault(table.name, Purged(table.name)))
                by_name[table.name].awaits_fill = left = True
        report.settled = not left
        versions = {turn.report.table: turn.version for turn in self._turns if turn.version >= 0}
        if report.settled:
            versions |= self._settling
        if report.settled or not all(each.is_nothing for each in report.tables):
            add_to_upkeep(self._lake, row(ERASED, versions=versions))

    def _awaits_fill(self, table: Table) -> bool:
        from structured_streaming.commit.typed_fill import awaits_fill  # compiled code

        return awaits_fill(self._lake, table.name, self._ends)

    def _folders(self, table: Table) -> list[Folder]:
        """Of a table, with scratch files of who works at it."""
        folder = self._lake.child(table.name)
        return [folder, folder.child(LOG)]

    def _ids(self) -> set[str]:
        """Message ids of erased records, as far as the lake has them."""
        rule, found = _Records(self._erased), set[str]()
        for table, column in ((MESSAGE_INDEX, "key"), (MESSAGES, "message_id")):
            opened = MaintainedTable(self._lake, table)
            kinds = ["key_type"] if table is MESSAGE_INDEX else []
            for file in _candidates(opened.files, rule):
                for part in parts(opened.folder, file, opened.snapshot.schema):
                    rows = part.read([*PLACE, column, *kinds])
                    rows = rows.filter(pa.array(rule.mask(rows)))
                    if kinds:
                        rows = rows.filter(pc.equal(rows["key_type"], "UNIQ_KEY"))
                    found.update(each for each in rows[column].to_pylist() if each)
        return found

    def _but_ends(self, table: MaintainedTable) -> _Rule:
        """Rows of erased records that are not the last of their queue."""
        rule, schema = _Records(self._erased), table.snapshot.schema
        columns = [*QUEUE, "physical_offset", "queue_offset"]

        def rows_of(file: DataFile) -> Iterator[pa.Table]:
            for part in parts(table.folder, file, schema):
                yield part.read(columns)

        ends, found = QueueEnds(), [pa.schema([schema.field(name) for name in columns]).empty_table()]
        for file in _candidates(table.files, rule):
            for rows in rows_of(file):
                found.append(rows.filter(pa.array(rule.mask(rows))))
                ends.add(found[-1])
        newest_first = sorted(table.files, key=lambda file: file.modified, reverse=True)
        last = without_later(ends.all, newest_first, rows_of)
        rows = pa.concat_tables(found)
        keys = zip(*(rows[name].to_pylist() for name in QUEUE), strict=True)
        offsets = rows["queue_offset"].to_pylist()
        kept = [last.get(key) == offset for key, offset in zip(keys, offsets, strict=True)]
        return _Records(self._erased.without(Erased.in_rows(rows.filter(pa.array(kept, pa.bool_())))))


class Turn:
    """A table's turn. `version`: that from which on nothing of the kind is in it; -1 where that is not known."""

    def __init__(self, lake: Folder, mirror: LakeMirror | None, table: Table, ends: Ends) -> None:
        self.report = Purged(table.name)
        self.version = -1
        self._lake = lake
        self._mirror = mirror
        self._of = table
        self._ends = ends
        self._table: MaintainedTable | None = None
        self._rule: _Rule = _Records(Erased({}))
        self._cleaning: LogCleaning | None = None

    @contextlib.contextmanager
    def problems(self) -> Iterator[None]:
        """What fails is a problem of the report."""
        try:
            yield
        except (LakeError, OSError, pa.ArrowException) as error:
            self.version = -1
            self.report.problems.append(f"erasure in {self._lake.child(self._of.name)}: {error}")

    def run(
        self, rule_of: Callable[[MaintainedTable], _Rule], *, awaits_fill: bool = False, dry: bool
    ) -> None:
        """All steps. Raises LakeError, OSError."""
        self.report.awaits_fill = awaits_fill
        table = MaintainedTable(self._lake, self._of)
        self._rule = rule_of(table)
        clean = set[str]()
        while candidates := [file for file in _candidates(table.files, self._rule) if file.path not in clean]:
            found = [self._look_at(table, file) for file in candidates]
            clean |= {each.file.path for each in found if not each.gone or dry}
            going = [each for each in found if each.gone]
            if dry:
                self._count(going)
                continue
            for begin in range(0, len(going), _FILES_A_COMMIT):
                clean |= self._replace(table, going[begin : begin + _FILES_A_COMMIT])
            table.follow()
        if dry:
            return
        if elsewhere := [file.path for file in table.snapshot.files.values() if file.is_elsewhere]:
            raise LakeError(
                f"its file {elsewhere[0]} is outside of its folder; what is in there is not looked at"
            )
        self._table, self.version = table, table.snapshot.version
        self._renew_mirror(table)
        self.report.log_files += self._cleaned(table).run()
        self._remove_files(table)

    def look_again(self) -> None:
        """At the log, all of it: a checkpoint that another writer made meanwhile may be of an older version, and another round of other
        records may have put back a commit as it was. At files that were being written: they may be a version's, or gone. Raises
        LakeError, OSError."""
        if self._table is None or self.report.is_nothing:
            return
        if self.report.waits:
            self.report.waits = 0
            self._table.follow()
            self._remove_files(self._table)
        self._cleaning = None
        self.report.log_files += self._cleaned(self._table).run()

    def _look_at(self, table: MaintainedTable, file: DataFile) -> _Found:
        rows = gone = 0
        for part in parts(table.folder, file, table.snapshot.schema):
            rows += part.rows
            gone += int(self._rule.mask(part.read(list(self._rule.columns))).sum())
        return _Found(file, rows, gone)

    def _count(self, found: Sequence[_Found]) -> None:
        self.report.rows += sum(each.gone for each in found)
        self.report.files += len(found)

    def _replace(self, table: MaintainedTable, found: Sequence[_Found]) -> set[str]:
        """The paths of what was written. Files that another maintenance replaced meanwhile are found again."""
        written: list[StagedFile] = []
        for each in found:
            written += table.written([each.file], each.file.label, some_of=self._rule.left)
        schema = table.snapshot.schema_json
        if not table.replace([each.file for each in found], schema, written, deletes=True):
            return set()
        self._count(found)
        return {each.path for each in written}

    def _renew_mirror(self, table: MaintainedTable) -> None:
        mirror, name = self._mirror, self._of.name
        if (
            mirror is None
            or not mirror.has(name)
            or not (self.report.rows or self._cleaned(table).is_needed())
        ):
            return
        mirror.renew(name, table.snapshot, table.read_at, _WHY)

    def _cleaned(self, table: MaintainedTable) -> LogCleaning:
        """Of the log as it was read last."""
        live = table.snapshot.files
        if self._cleaning is None:
            self._cleaning = LogCleaning(table.folder, table.log, live, self._rule.may_be_in)
        self._cleaning.follow(live)
        return self._cleaning

    def _remove_files(self, table: MaintainedTable) -> None:
        """Those of no version that have such rows; also what waits for Spark's writer."""
        table.folder.remove_scratch(YOUNG_S)
        known = {file.name for file in table.snapshot.files.values()}
        told, young_ms = self._cleaned(table).told, (time.time() - YOUNG_S) * 1000
        removed = {
            DataFile(path, 0, "", False).name: _Gone(told.get(path), at > young_ms)
            for path, at in table.snapshot.removed.items()
        }
        self._remove_of(table.folder, known, removed, table.snapshot.schema)
        staged = self._lake.child(STAGING).child(self._of.name)
        if staged.exists():
            self._remove_of(staged, set(), {}, table.snapshot.schema)
        if self.report.removed.files:
            table.folder.make_durable(())  # before anybody says that nothing is left

    def _remove_of(
        self, folder: Folder, kept: set[str], removed: Mapping[str, _Gone], schema: pa.Schema
    ) -> None:
        """`removed`: files that a version had, by name. They are opened where nothing else tells: there are as many as a day has
        batches."""
        if not self._rule.may_be_in({}):
            return
        for name in folder.names():
            if not name.endswith(".parquet") or name in kept or name.startswith(SCRATCH_PREFIX):
                continue  # of scratch files the round itself knows
            gone = removed.get(name)
            if gone is not None and gone.may_have is False:
                continue
            status = folder.status(name)
            if status is None:
                continue
            old = time.time() - status.modified > YOUNG_S
            file = DataFile(name, status.size, "", False)
            try:
                if gone is not None and gone.is_forgotten:
                    has_them = beyond = True  # for all that is known
                else:
                    has_them, beyond = self._has_them(folder, file, schema)
            except FileError:  # it is being written, or was
                has_them = beyond = folder.has(name)
            if not has_them:
                continue
            if gone is not None or not (self.report.awaits_fill or (beyond and not old)):
                folder.remove(f".{name}.crc")
                folder.remove(name)
                before = self.report.removed
                self.report.removed = Removed(before.files + 1, before.bytes + status.size)
            else:
                self.report.waits += 1

    def _has_them(self, folder: Folder, file: DataFile, schema: pa.Schema) -> tuple[bool, bool]:
        """Whether a file has such rows, and whether it has rows beyond the lake's progress. Raises FileError."""
        has_them = beyond = False
        for part in parts(folder, file, schema):
            rows = part.read(list(dict.fromkeys([*PLACE, *self._rule.columns])))
            has_them = has_them or bool(self._rule.mask(rows).any())
            beyond = beyond or _beyond(rows, self._ends)
        return has_them, beyond


def _scratch(folders: Sequence[Folder]) -> set[tuple[str, str]]:
    """Folders with the names of scratch files and folders in them, and of commits that are being written."""
    return {
        (str(folder), name)
        for folder in folders
        if folder.exists()
        for name in folder.names()
        if name.startswith(SCRATCH_PREFIX) or is_unfinished(name)
    }


def _candidates(files: Sequence[DataFile], rule: _Rule) -> list[DataFile]:
    return [file for file in files if rule.may_be_in(file.statistics)]


def _beyond(rows: pa.Table, ends: Ends) -> bool:
    """Whether a row is beyond where the lake holds its log."""
    last = rows.select(PLACE).group_by(list(PLACE[:2]), use_threads=False).aggregate([(PLACE[2], "max")])
    return any(
        row["physical_offset_max"] >= ends.get((row["broker"], row["log_id"]), 0) for row in last.to_pylist()
    )
