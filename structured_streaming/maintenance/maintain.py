"""One round of maintenance: typed tables that the reput put off filled for a while, what is left of erased messages removed (`erasure.py`), messages whose time has run out removed (`retention.py`), small files put together, a checkpoint,
files and log that nobody needs any more removed.

Any number of others may commit meanwhile (`maintained_table.py`). Files are removed long after their removal was committed
(`vacuum.py`). So a round that is killed, wherever, leaves at most files that no version
has, which a later round removes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.commit.typed_declared import readable, stored_tables
from structured_streaming.errors import LakeError
from structured_streaming.extras import ICEBERG, lacking
from structured_streaming.iceberg.places import has_mirror, remove_mirror
from structured_streaming.iceberg.report import NoMirrorError
from structured_streaming.lake import open_lake
from structured_streaming.maintenance.altered import AlteredError
from structured_streaming.maintenance.erasure import Erasure, Purged, purge
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.plan import plan, window_of
from structured_streaming.maintenance.reading import FileError
from structured_streaming.maintenance.reports import TableReport
from structured_streaming.maintenance.retention import expire
from structured_streaming.maintenance.vacuum import MOST_RETAIN_S, vacuum
from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import DATA_TABLES, ERASURES, REPUT_PROGRESS, UPKEEP, Table
from structured_streaming.typed.declaration import FILLING

if TYPE_CHECKING:
    from structured_streaming.iceberg.mirror import LakeMirror

TARGET_FILE_SIZE = 64 << 20
_CHECKPOINT_COMMITS, _CHECKPOINT_SHARE = 10, 200
"""After which readers are given a checkpoint: they otherwise read every commit since the last."""
_FILL_S = 600
"""Of a round, for typed tables that lack messages. What is being read by then is ended."""
_MARGIN_S = 60
"""By which clocks of machines may differ."""


def maintain(
    location: str,
    target: int = TARGET_FILE_SIZE,
    retain_s: float = MOST_RETAIN_S,
    on_table: Callable[[TableReport], None] = lambda report: None,
    mirrored: bool | None = None,
    registry: RegistryAccess = NOTHING,
) -> list[TableReport]:
    """Every table of a lake; what cannot be done with one keeps no other from its turn. Raises LocationError, LakeError.

    `target`: bytes of a file. `retain_s`: how long files stay that no version has any more. `mirrored`: whether the lake
    has an Iceberg mirror, which is kept up; None: if it is there. False removes it. `registry`: how schema
    registries are asked for what typed tables lack.
    """
    lake = open_lake(location)
    mirror = lake_mirror(lake, mirrored)
    filled = _filled(lake, registry)
    erasure = _erased(lake, mirror)
    erased = {report.table: report for report in erasure.tables}
    gone = {report.table: report for report in _expired(lake)}
    reports = []
    progress = _Turn(lake, REPUT_PROGRESS, mirror)
    progress.begin(target)  # of it an older version is mirrored than of the tables that it tells of
    tables = (*DATA_TABLES, UPKEEP, *stored_tables(lake))
    for table in tables:
        turn = _Turn(lake, table, mirror)
        if (of_fill := filled.get(table.name)) is not None:
            turn.report.filled_rows = of_fill.rows
            turn.report.waits += of_fill.waits
            turn.report.problems += of_fill.problems
        if (of_retention := gone.get(table.name)) is not None:
            turn.report.retention = of_retention.retention
            turn.report.problems += of_retention.problems
        if (of_erasure := erased.get(table.name)) is not None:
            turn.report.erased_rows = of_erasure.rows
            turn.report.problems += of_erasure.problems
        if table is ERASURES:
            turn.report.waits += [
                f"of erased messages something may be left: {each}" for each in erasure.left()
            ]
        turn.begin(target)
        turn.end(retain_s)
        if turn.is_behind:
            progress.stop(f"its Iceberg mirror stays as it is, as that of {table.name} does")
        on_table(turn.report)
        reports.append(turn.report)
    progress.end(retain_s)
    if mirror is not None:
        progress.report.problems += _without_others(mirror, [*tables, REPUT_PROGRESS])
    on_table(progress.report)
    return [*reports, progress.report]


class _Fill(NamedTuple):
    """Rows that a typed table got; what kept it from more."""

    rows: int
    waits: list[str]
    problems: list[str]


def _filled(lake: Folder, registry: RegistryAccess) -> dict[str, _Fill]:
    """Of typed tables in state FILLING. One that is full is the reput's again."""
    declared = [each for each in readable(lake) if each.state == FILLING]
    if not declared:
        return {}
    from structured_streaming.typed_topics import topics_in  # compiled code

    topics, until = topics_in(lake, registry), time.monotonic() + _FILL_S
    found = dict[str, _Fill]()
    for each in declared:
        remedy = f"`lakebroker typed fill {each.topic}`"
        try:
            added = topics.fill(each.topic, lambda rows: None, until)
        except LakeError as error:
            problem = f"{each.table} lacks messages that the lake has: {error}; the next round tries again, or {remedy}"
            found[each.table] = _Fill(0, [], [problem])
        else:
            waits = [f"it lacks messages that the lake has; the next round goes on, or {remedy}"]
            found[each.table] = _Fill(added.rows, waits if added.declared.state == FILLING else [], [])
    return found


def _erased(lake: Folder, mirror: LakeMirror | None) -> Erasure:
    """What went because it was erased."""
    try:
        return purge(lake, mirror)
    except (LakeError, OSError, pa.ArrowException) as error:
        problem = f"erased messages may be in tables: {error}"
        return Erasure([Purged(ERASURES.name, problems=[problem])], settled=False)


def _expired(lake: Folder) -> list[TableReport]:
    """What went because its time has run out."""
    try:
        return expire(lake, datetime.fromtimestamp(time.time(), UTC))
    except (LakeError, OSError, pa.ArrowException) as error:
        return [TableReport(UPKEEP.name, problems=[f"messages whose time has run out stay: {error}"])]


def _without_others(mirror: LakeMirror, tables: Sequence[Table]) -> list[str]:
    """Removes mirrors of typed tables that the lake has no more; what kept it from that."""
    try:
        mirror.remove_others({table.name for table in tables})
    except OSError as error:
        return [f"the Iceberg mirrors of tables that are gone cannot be removed: {error}"]
    return []


def lake_mirror(lake: Folder, mirrored: bool | None) -> LakeMirror | None:
    """The mirror that is to be kept up: see `maintain`. Raises LakeError."""
    try:
        if mirrored is False:
            remove_mirror(lake)
        if not (mirrored or (mirrored is None and has_mirror(lake))):
            return None
    except OSError as error:
        raise LakeError(f"the Iceberg mirror of {lake}: {error}") from error
    if said := lacking(f"the Iceberg mirror of {lake}", ICEBERG):
        raise LakeError(
            said + ("" if mirrored else "; or remove the mirror with --no-iceberg: nobody would keep it up")
        )
    from structured_streaming.iceberg.mirror import LakeMirror

    return LakeMirror(lake)


def maintain_table(
    lake: Folder, table: Table, target: int, retain_s: float, mirror: LakeMirror | None = None
) -> TableReport:
    """One table of a lake."""
    turn = _Turn(lake, table, mirror)
    turn.begin(target)
    turn.end(retain_s)
    return turn.report


class _Turn:
    """A table's turn, in two steps. What fails is a problem of its `report`, and ends it."""

    def __init__(self, lake: Folder, table: Table, mirror: LakeMirror | None) -> None:
        self.report = TableReport(table.name)
        self._lake = lake
        self._table = table
        self._mirror = mirror
        self._round: _Round | None = None

    @property
    def is_behind(self) -> bool:
        """Whether its mirror is there, as far as one can look, and was not brought up to date."""
        if self._mirror is None or self.report.mirror is not None:
            return False
        try:
            return self._mirror.has(self._table.name)
        except OSError:
            return True

    def begin(self, target: int) -> None:
        """Files are put together."""
        with self._problems():
            started = _Round(self._lake, self._table, target, self.report)
            started.merge()
            self._round = started

    def stop(self, why: str) -> None:
        """There is no second step."""
        self._round = None
        self.report.problems.append(f"table {self._lake.child(self._table.name)}: {why}")

    def end(self, retain_s: float) -> None:
        """The mirror shows the table as it was after the first step; then old files are removed."""
        if (started := self._round) is not None:
            with self._problems():
                started.end(retain_s, self._mirror)

    @contextlib.contextmanager
    def _problems(self) -> Iterator[None]:
        place = self._lake.child(self._table.name)
        try:
            yield
        except LakeError as error:
            self.report.problems.append(str(error))
            if isinstance(error, AlteredError) and self._mirror is not None:
                # nobody can bring it up to date
                self.report.problems += removed_mirror(self._mirror, self._table)
        except (OSError, pa.ArrowException) as error:
            self.report.problems.append(f"table {place}: {error}")


class _Round:
    """What is done to a table that can be read."""

    def __init__(self, lake: Folder, table: Table, target: int, report: TableReport) -> None:
        self._target = target
        self._report = report
        self._table = MaintainedTable(lake, table)
        report.files_before = report.files_after = len(self._table.snapshot.files)
        self._unreadable: set[str] = set()

    def merge(self) -> None:
        """Puts files together, as many as there are to, and sorts those of a window."""
        table = self._table
        while True:
            while groups := plan(self._candidates(), self._target):
                for group in groups:
                    self._rewrite(group)
                table.follow()
            if not (window := window_of(self._candidates(), self._target, table.order[0])):
                break
            # its files may be small enough to become one again: the plan is made anew
            self._rewrite(window, together=True)
            table.follow()
        self._report.files_after = len(table.snapshot.files)
        table.log.checkpoint_if_due(_CHECKPOINT_COMMITS, _CHECKPOINT_SHARE)

    def end(self, retain_s: float, mirror: LakeMirror | None) -> None:
        """Brings the mirror to what was read last, then removes old files: none that the mirror names."""
        table = self._table
        if mirror is not None:
            try:
                self._report.mirror = mirror.update(table.table.name, table.snapshot, table.read_at)
            except NoMirrorError as error:
                self._report.problems.append(f"table {table.folder} has no Iceberg mirror: {error}")
                self._report.problems += removed_mirror(mirror, table.table)
            retain_s = max(retain_s, time.time() - table.read_at + _MARGIN_S)
        table.follow()
        self._report.removed = vacuum(table.folder, table.snapshot, retain_s, time.time())

    def _candidates(self) -> list[DataFile]:
        return [file for file in self._table.files if file.path not in self._unreadable]

    def _rewrite(self, files: Sequence[DataFile], *, together: bool = False) -> None:
        """Puts files into one, or sorts them `together` into as many; leaves them alone when one is unreadable, or not the table's any more."""
        table = self._table
        schema = table.snapshot.schema_json
        try:
            written = (
                table.written_in_ranges(files, self._target)
                if together
                else table.written(files, files[0].label)
            )
        except FileError as error:
            if error.file not in files:  # one of our own
                raise
            table.follow()
            if table.has(error.file):
                self._unreadable.add(error.file.path)
                self._report.problems.append(f"table {table.folder}: {error}; it is left as it is")
            return
        if table.replace(files, schema, written):
            self._report.rewritten_files += len(files)
            self._report.rewritten_bytes += sum(file.size for file in files)


def removed_mirror(mirror: LakeMirror, table: Table) -> list[str]:
    """Removes a table's mirror, which would go on showing what the table was; what is to be said of it."""
    try:
        return [f"the Iceberg mirror of {table.name} is removed"] if mirror.remove(table.name) else []
    except OSError as error:
        return [f"the Iceberg mirror of {table.name} cannot be removed: {error}"]
