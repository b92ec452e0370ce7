"""Whether a lake is whole: every table for itself, progress, messages that indexes point to, and, of a log that is given, that
all of it is there.

The lake may be written to meanwhile: the progress is read first, then each table's newest version, which holds at least what
the progress says, and the log is compared up to there. Retention states its bounds before it removes what is older; they are
read behind the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from store.log_source import LogSource
from structured_streaming.commit.erasures_log import Erasures
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.typed_declared import readable, stored_tables
from structured_streaming.commit.upkeep_log import read_upkeep
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.maintenance.altered import untouchable
from structured_streaming.maintenance.check_log import LogCheck
from structured_streaming.maintenance.check_progress import Progress
from structured_streaming.maintenance.check_references import lacking
from structured_streaming.maintenance.check_table import CheckedTable
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import DATA_TABLES, MESSAGES, REPUT_PROGRESS, UPKEEP, Table


@dataclass(slots=True)
class Findings:
    """What was found in a table, or of a log: `what` is its name, or the folder of its store."""

    what: str
    files: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)
    is_log: bool = False


def check_lake(
    location: str, stores: Sequence[str] = (), on_found: Callable[[Findings], None] = lambda found: None
) -> list[Findings]:
    """Of every table, then of every store folder; calls `on_found` with each. Raises LocationError, SourceError."""
    lake = open_lake(location)
    logs = [open_log(f"store:{store}", Access()) for store in stores]
    try:
        return _check(lake, logs, on_found)
    finally:
        for log in logs:
            log.close()


def _check(lake: Folder, logs: Sequence[LogSource], on_found: Callable[[Findings], None]) -> list[Findings]:
    found: list[Findings] = []
    whole: dict[str, CheckedTable] = {}
    progress: Progress | None = None
    typed = stored_tables(lake)
    for table in (REPUT_PROGRESS, UPKEEP, *DATA_TABLES, *typed):
        findings = Findings(table.name)
        checked = _checked(lake.child(table.name), table, findings)
        if checked is not None:
            whole[table.name] = checked
            if table is REPUT_PROGRESS:
                progress = Progress(checked)
                findings.problems += progress.problems
        if table is MESSAGES and progress is not None and checked is not None and not findings.problems:
            # what a file that is gone or damaged had lacks, of course
            findings.problems += _lacking(lake, progress, whole)
        found.append(findings)
        on_found(findings)
    for log in logs:
        findings = Findings(log.address, is_log=True)
        if progress is None:
            findings.problems.append(
                f"{REPUT_PROGRESS.name} cannot be read, which says what the lake holds of the log"
            )
        else:
            tables = [whole[table.name] for table in (*DATA_TABLES, *typed) if table.name in whole]
            topics = {each.table: each.topic for each in readable(lake) if each.table in whole}
            try:
                gone, erased = read_upkeep(lake).promised, Erasures(lake).every()
                findings.problems += LogCheck(log, progress, tables, topics, gone, erased).problems()
            except (LakeError, OSError) as error:
                findings.problems.append(f"not compared to its end: {error}")
        found.append(findings)
        on_found(findings)
    return found


def _lacking(lake: Folder, progress: Progress, whole: Mapping[str, CheckedTable]) -> list[str]:
    """Of messages that indexes point to."""
    try:
        return list(lacking(progress, whole, read_upkeep(lake).promised, Erasures(lake).every()))
    except (LakeError, OSError) as error:
        return [f"not compared with the indexes: {error}"]


def _checked(folder: Folder, table: Table, findings: Findings) -> CheckedTable | None:
    """The table; None when it cannot be checked."""
    try:
        snapshot = Snapshot(folder)
        if reason := untouchable(snapshot, table):
            raise LakeError(f"not checked: {reason}")
        checked = CheckedTable(folder, table, snapshot)
        findings.files = len(snapshot.files)
        findings.problems += checked.files()
        findings.rows = checked.rows
        if table is not UPKEEP:
            findings.problems += checked.keys()
    except (
        LakeError,
        OSError,
        pa.ArrowException,
        TypeError,
        OverflowError,
    ) as error:  # statistics may be any
        findings.problems.append(str(error))
        return None
    return checked
