"""Whether a lake is whole: every table for itself, progress, and, of a log that is given, that all of it is there.

The lake may be written to meanwhile: the progress is read first, then each table's newest version, which holds at least what
the progress says, and the log is compared up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from store.log_source import LogSource
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.maintenance.altered import untouchable
from structured_streaming.maintenance.check_log import LogCheck
from structured_streaming.maintenance.check_progress import Progress
from structured_streaming.maintenance.check_table import CheckedTable
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import DATA_TABLES, REPUT_PROGRESS, Table


@dataclass(slots=True)
class Findings:
    """What was found in a table, or of a log: `what` is its name, or the folder of its store."""

    what: str
    files: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)


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
    for table in (REPUT_PROGRESS, *DATA_TABLES):
        findings = Findings(table.name)
        checked = _checked(lake.child(table.name), table, findings)
        if checked is not None:
            whole[table.name] = checked
            if table is REPUT_PROGRESS:
                progress = Progress(checked)
                findings.problems += progress.problems
        found.append(findings)
        on_found(findings)
    for log in logs:
        findings = Findings(log.address)
        if progress is None:
            findings.problems.append(
                f"{REPUT_PROGRESS.name} cannot be read, which says what the lake holds of the log"
            )
        else:
            tables = [whole[table.name] for table in DATA_TABLES if table.name in whole]
            try:
                findings.problems += LogCheck(log, progress, tables).problems()
            except LakeError as error:
                findings.problems.append(f"not compared to its end: {error}")
        found.append(findings)
        on_found(findings)
    return found


def _checked(folder: Folder, table: Table, findings: Findings) -> CheckedTable | None:
    """The table; None when it cannot be checked."""
    try:
        snapshot = Snapshot(folder)
        if reason := untouchable(snapshot):
            raise LakeError(f"not checked: {reason}")
        checked = CheckedTable(folder, table, snapshot)
        findings.files = len(snapshot.files)
        findings.problems += checked.files()
        findings.rows = checked.rows
        findings.problems += checked.keys()
    except (LakeError, OSError, pa.ArrowException) as error:
        findings.problems.append(str(error))
        return None
    return checked
