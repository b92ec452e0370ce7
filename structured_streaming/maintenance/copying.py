"""A consistent copy of a lake, while others write to it: a backup, or the same lake at another place.

| step | why |
|---|---|
| the progress is read, then each table's newest version | what the progress says is in the tables is in these versions. Rows above it may be there too, as after a crash: readers leave them out, a reput goes on behind them |
| files that the copy lacks are taken over | nobody writes to a file again, so one that is there whole is the right one. In local folders of one file system both lakes may share it: each removes its own name |
| each table's log gets a commit of its own, the progress last | whoever opens the copy meanwhile finds the former copy, or tables that are ahead of it |
| files that no table of the copy has any more are removed, and their statistics from its logs and checkpoints | a copy has no versions before. What was erased in the lake since is nowhere in it either |

All tables are read again when a round of an erasure has ended meanwhile: `upkeep` would say that nothing is left of what `messages`
had before.

It may be killed at any step, and goes on when it is called again: what was taken over is not again. The copy carries how far each
table was committed, so that a reput goes on from it exactly once: from where the logs were then, if they are still there.

A target is empty, or an earlier copy of the same lake that nobody else wrote to since.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from structured_streaming.commit.log_cleaning import LogCleaning
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import COPY, TableLog, begin_log
from structured_streaming.commit.typed_declared import typed_names
from structured_streaming.commit.upkeep_log import read_upkeep
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.lake import open_lake
from structured_streaming.maintenance.altered import untouchable
from structured_streaming.storage.delta_names import LOG, version_of
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import SCRATCH_PREFIX
from structured_streaming.storage.location import check_commits, check_readable, lake_folder
from structured_streaming.tables import DATA_TABLES, REMOVAL_ORDER, REPUT_PROGRESS, UPKEEP

MARK = ".copy-of.json"
"""Of a copy, in its folder: which lake it is of."""
_SCRATCH_S = 3600
_TRIES = 5
"""When files of the lake are removed meanwhile, which were put together with others long before."""


@dataclass(slots=True)
class CopyReport:
    """What was taken over: files and their bytes, how many of them are shared with the lake; files that were there already;
    files that the copy had and the lake has no more."""

    files: int = 0
    bytes: int = 0
    shared: int = 0
    kept: int = 0
    removed: int = 0


def _in_order(lake: Folder) -> list[str]:
    """Tables as they are read: messages before the rows that point to them."""
    data = [*reversed(REMOVAL_ORDER), *(table for table in DATA_TABLES if table not in REMOVAL_ORDER)]
    return [REPUT_PROGRESS.name, *(table.name for table in data), *typed_names(lake), UPKEEP.name]


class _Table:
    """A table of the lake, as it was read."""

    def __init__(self, lake: Folder, name: str) -> None:
        self.folder = lake.child(name)
        snapshot = Snapshot(self.folder)
        reason = untouchable(snapshot)
        elsewhere = next((file.path for file in snapshot.files.values() if file.is_elsewhere), None)
        if reason or elsewhere:
            raise LakeError(
                f"table {self.folder} cannot be copied: {reason or f'its file {elsewhere} is outside of its folder'}"
            )
        self.version = snapshot.version
        self.files = dict(snapshot.files)
        self.transactions = dict(snapshot.transactions)
        self.protocol = {name: snapshot.protocol[name] for name in ("minReaderVersion", "minWriterVersion")}
        log = TableLog(self.folder, reads=True)
        self.metadata = log.metadata


def copy_lake(
    location: str,
    target: str,
    *,
    links: bool = True,
    on_file: Callable[[str, DataFile], None] = lambda table, file: None,
) -> CopyReport:
    """Makes `target` what the lake is now; with `links` files are shared where that is possible. Calls `on_file` before each file
    that is taken over. Raises LakeError."""
    lake, copy = open_lake(location), lake_folder(target)
    if lake.uri == copy.uri or copy.uri.startswith(f"{lake.uri}/") or lake.uri.startswith(f"{copy.uri}/"):
        raise LocationError(f"--to {copy} is the lake {lake}, within it or around it; give another place")
    try:
        _check_target(lake, copy)
        report = CopyReport()
        for tried in range(_TRIES):
            try:
                tables = _read(lake)
                in_order = [*list(tables)[1:], REPUT_PROGRESS.name]
                for name in in_order:
                    _take_files(copy.child(name), tables[name], links, report, on_file)
                break
            except FileNotFoundError:
                if tried == _TRIES - 1:
                    raise
        for name in in_order:
            _commit(copy.child(name), tables[name])
        for name in in_order:
            report.removed += _clean(copy.child(name), tables[name])
        copy.remove_scratch(_SCRATCH_S)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"copy of {lake} to {copy}: {error}; call it again, it goes on from there") from error
    return report


def _read(lake: Folder) -> dict[str, _Table]:
    """Tables as they are, with no round of an erasure in between. Raises LakeError, OSError."""
    for _ in range(_TRIES):
        before = read_upkeep(lake).erased
        tables = {name: _Table(lake, name) for name in _in_order(lake)}
        if read_upkeep(lake).erased == before:
            return tables
    raise LakeError(f"lake {lake}: erasures went on each time that its tables were read; copy it again later")


def _check_target(lake: Folder, copy: Folder) -> None:
    """Marks an empty target as a copy of the lake. Raises LocationError for any other that is none, or that was written to."""
    check_readable(copy)
    if (file := copy.obstacle()) is not None:
        raise LocationError(f"--to {copy}: {file} is a file; give a folder to write to")
    identity = str(TableLog(lake.child(REPUT_PROGRESS.name), reads=True).metadata["id"])
    others = _others(copy) if copy.exists() else []
    if not others:
        copy.make()
        check_commits(copy)
        copy.put_if_absent(MARK, json.dumps({"lake": identity}).encode())
        return
    if MARK not in others:
        raise LocationError(
            f"--to {copy} is not empty and no copy of a lake: it holds {others[0]!r}; give an empty folder, or an earlier copy"
        )
    if _marked(copy) != identity:
        raise LocationError(f"--to {copy} is a copy of another lake than {lake}; give another place")
    for name in _in_order(copy):
        folder = copy.child(name)
        if _has_log(folder) and (last := TableLog(folder, reads=True).last_operation()) != COPY:
            raise LocationError(
                f"--to {copy} was written to since it was copied: the last commit of its table {name} is {last or 'unknown'}, not a "
                "copy; it is a lake of its own now, give another place"
            )


def _others(copy: Folder) -> list[str]:
    """What is in a folder, without what a crash left that nothing needs."""
    return sorted(
        name for name in copy.names() if name != "lost+found" and not name.startswith(SCRATCH_PREFIX)
    )


def _marked(copy: Folder) -> Any:
    try:
        return json.loads(copy.read(MARK))["lake"]
    except (ValueError, KeyError, TypeError) as error:
        raise LocationError(
            f"--to {copy}: {MARK} in it is damaged ({error}); give an empty folder"
        ) from error


def _take_files(
    copy: Folder,
    table: _Table,
    links: bool,
    report: CopyReport,
    on_file: Callable[[str, DataFile], None],
) -> None:
    """Files that the copy lacks. Raises FileNotFoundError for one that is gone."""
    copy.make()
    for file in table.files.values():
        there = copy.status(file.name)
        if there is not None and there.size == file.size:
            report.kept += 1
            continue
        on_file(table.folder.uri.rpartition("/")[2], file)
        shared = copy.take(file.name, table.folder, links=links)
        taken = copy.status(file.name)
        if taken is None or taken.size != file.size:
            raise LakeError(
                f"file {table.folder}/{file.path} has other than the {file.size:,} bytes that the table's log says; `lakebroker lake "
                "check` tells what is wrong with the lake"
            )
        report.files += 1
        report.bytes += file.size
        report.shared += shared


def _commit(copy: Folder, table: _Table) -> None:
    """Makes the copy's table the one that was read."""
    if not _has_log(copy):
        begin_log(copy, table.protocol, table.metadata)
    log, there = TableLog(copy), Snapshot(copy).files
    new = [file for path, file in table.files.items() if path not in there]
    gone = [(file.path, file.size) for path, file in there.items() if path not in table.files]
    behind = {
        app: version for app, version in table.transactions.items() if log.transactions.get(app) != version
    }
    if not new and not gone and not behind and log.metadata == table.metadata and log.version > 0:
        return
    files = ({"path": file.path, "size": file.size, "stats": file.stats} for file in new)
    log.take_over(gone, files, behind, table.metadata)
    log.checkpoint_if_due()


def _has_log(folder: Folder) -> bool:
    """Whether a table has a version."""
    log = folder.child(LOG)
    return log.exists() and any(version_of(name) is not None for name in log.names())


def _clean(copy: Folder, table: _Table) -> int:
    """Removes files that the copy's table does not have, and what its log says of them; how many files."""
    kept = {file.name for file in table.files.values()}
    others = [name for name in copy.names() if name.endswith(".parquet") and name not in kept]
    for name in others:
        copy.remove(name)
    copy.remove_scratch(_SCRATCH_S)
    LogCleaning(copy, TableLog(copy), table.files, lambda statistics: True).run()
    return len(others)
