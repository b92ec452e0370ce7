"""Starting on a store directory: lock, identity, abort file, and the scan that finds the end of the log.

What the files of the queue index cover is not scanned again, so that a start takes as long as the log behind
the newest of them. Above the published flushed offset the log is cut at the first thing that does not check out
and the rest zeroed; below it damage is reported and kept. After a clean stop everything was flushed, and what is behind is
as it was made: a log that has nothing at that offset ends there, and the rest is not read. Where there is something, it is
another program's (a real broker had the store in between), and is taken as after a crash. A log whose files end below
that offset lost some: the start is refused before anything changes, or else its offsets would be given out again. One that
has no identity any more is a new log, and begins with what there is.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zlib_ng import zlib_ng

from store.errors import RecordError, StoreDamagedError, StoreLockedError
from store.index.file_run import FileRun
from store.index.queue_index import QueueIndex
from store.index.run_file import list_runs
from store.log.permissions import Closed, file_mode, open_new
from store.log.record import decode_record
from store.log.segment import Segment, list_segments, only_zeros, sync_folder
from store.scan import scan

LOCK_FILE = "lock"
ABORT_FILE = "abort"
"""There while a broker runs, and behind one that did not stop cleanly."""
IDENTITY_FILE = "lakebroker.json"
COMMIT_LOG_FOLDER = "commitlog"
INDEX_FOLDER = "lakeindex"
_SCAN_BYTES = 64 << 20
_CHECK = "crc32"


@dataclass(frozen=True, slots=True)
class Identity:
    """What `lakebroker.json` says: which log this is."""

    log_id: str
    broker: str
    cluster: str
    segment_size: int
    created_ms: int
    commit_log_folders: tuple[str, ...] = ()
    """Where the log is when not in `commitlog`."""
    own_from: int = 0
    """Where the log begins, a segment's start: what is before was written under former ids, and is none of its."""
    former_log_ids: tuple[str, ...] = ()
    """Of the same store, the newest last."""
    beginning: bool = False
    """What must be done before anything is appended to the log for clients is not done yet: see `new_log.py`."""

    def owns(self, log_id: str) -> bool:
        """Whether it is, or was, an id of this store."""
        return log_id == self.log_id or log_id in self.former_log_ids


@dataclass(slots=True)
class RecoveryReport:
    """What the start found. `bad` rows: physical offset, length, reason; `unusable` are files of the index
    that were made anew, and why."""

    records: int = 0
    bytes_scanned: int = 0
    seconds: float = 0.0
    clean: bool = True
    cut_at: int | None = None
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    closed: Closed = field(default_factory=lambda: Closed(0, []))
    """What others could read before."""


def lock_store(root: Path) -> int:
    """Locks byte 0 of `lock`, as a real broker does; returns the descriptor, which must stay open. Raises StoreLockedError."""
    return lock_file(
        root / LOCK_FILE,
        f"Lock failed, MQ already started: another process has the store {root.resolve()}; stop it or use another store",
    )


def lock_file(path: Path, refused: str) -> int:
    """Locks byte 0 of a file, which is made; returns the descriptor, which must stay open.

    POSIX drops the lock when any descriptor of that file in the process is closed: it is opened only here.
    Raises StoreLockedError with the text `refused`, OSError when the file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, file_mode())
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        os.close(fd)
        raise StoreLockedError(refused) from error
    return fd


def lock_folder(folder: Path, refused: str) -> int:
    """Locks a folder itself, which needs no room in it; returns the descriptor, which must stay open.

    Raises StoreLockedError with the text `refused`, OSError: some file systems of networks have no such locks.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreLockedError(refused) from error
    except OSError:
        os.close(fd)
        raise
    return fd


def stopped_cleanly(root: Path) -> bool:
    """Whether the store's last broker did. Raises OSError."""
    return not (root / ABORT_FILE).exists()


def load_identity(root: Path) -> Identity | None:
    """The store's identity; None where there is none yet. Raises StoreDamagedError."""
    path = root / IDENTITY_FILE
    try:
        data = json.loads(path.read_text())
        check = data.pop(_CHECK, None)
        if check is not None and check != _checksum(data):  # files of before have none
            raise ValueError(f"its {_CHECK} does not match")
        return Identity(
            str(data["log_id"]),
            str(data["broker"]),
            str(data["cluster"]),
            int(data["segment_size"]),
            int(data["created_ms"]),
            tuple(str(each) for each in data.get("commit_log_folders", ())),
            int(data.get("own_from", 0)),
            tuple(str(each) for each in data.get("former_log_ids", ())),
            bool(data.get("beginning", False)),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamagedError(f"{path} cannot be read ({error}); restore it from a copy") from error


def make_identity(root: Path, broker: str, cluster: str, segment_size: int) -> Identity:
    """Writes a new identity."""
    identity = Identity(uuid.uuid4().hex, broker, cluster, segment_size, time.time_ns() // 1_000_000)
    write_identity(root, identity)
    return identity


def write_identity(root: Path, identity: Identity) -> None:
    """Writes the identity, whole or not at all."""
    staged = root / (IDENTITY_FILE + ".tmp")
    with open_new(staged, "w") as file:
        data = asdict(identity)
        json.dump({**data, _CHECK: _checksum(data)}, file)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(root / IDENTITY_FILE)
    sync_folder(root)


def _checksum(data: dict[str, object]) -> int:
    """CRC-32 of the fields: another log id would be another log to the lake, another size other files."""
    return zlib_ng.crc32(json.dumps(data, sort_keys=True).encode())


def commit_log_folders(root: Path, identity: Identity | None) -> list[Path]:
    """Where the segments of the store are."""
    if identity is None or not identity.commit_log_folders:
        return [root / COMMIT_LOG_FOLDER]
    return [Path(each) for each in identity.commit_log_folders]


def log_folders(root: Path, identity: Identity | None, wanted: Sequence[Path]) -> list[Path]:
    """All folders of the store's log. First those that get new segments: the ones wanted, or `commitlog`. Then those of
    earlier starts that still have segments. Raises OSError."""
    folders = [path.absolute() for path in wanted] or [root / COMMIT_LOG_FOLDER]
    before = [each for each in commit_log_folders(root, identity) if each not in folders]
    return folders + [each for each in before if list_segments(each)]


def check_end(root: Path, identity: Identity, folders: Sequence[Path], flushed_offset: int) -> None:
    """Raises StoreDamagedError when the segments in `folders` end below what was flushed, a physical offset; OSError.

    No crash leaves that: the offset is published behind the fdatasync, and a segment's name is on disk before it.
    """
    found = _whole_segments(folders, identity.segment_size)
    end = found[-1][0] + identity.segment_size if found else 0
    if flushed_offset <= end:
        return
    last = (flushed_offset - 1) // identity.segment_size * identity.segment_size
    if found and last == end:
        lost = f"segment {end:020d} is missing or empty; restore it"
    else:
        first = f"{end:020d} to" if found else "up to"
        lost = f"segments {first} {last:020d} are missing or empty; restore them"
    named = ",".join(map(str, folders))
    given = "" if list(folders) == [root / COMMIT_LOG_FOLDER] else f" and set storePathCommitLog={named}"
    raise StoreDamagedError(
        f"the log in {', '.join(map(str, folders))} ends at physical offset {end}, but up to {flushed_offset} it was on "
        f"disk: {lost} from a copy. To go on without {'its' if found and last == end else 'their'} messages, remove "
        f"{root / IDENTITY_FILE}{given}: the log gets another id then, and a lake keeps it beside the old one"
    )


def _whole_segments(folders: Sequence[Path], segment_size: int) -> list[tuple[int, Path]]:
    """All but a last file that has neither its size nor anything in it."""
    found = sorted(each for folder in folders for each in list_segments(folder))
    return found[:-1] if found and _holds_nothing(found[-1][1], segment_size) else found


def _holds_nothing(path: Path, segment_size: int) -> bool:
    return path.stat().st_size < segment_size and only_zeros(path)


def open_segments(folders: Sequence[Path], segment_size: int) -> list[Segment]:
    """Every segment of the log, in whichever of the folders it is; raises StoreDamagedError for a gap or a file of another size.

    A last file that a crash left before it had its size holds nothing, and is removed.
    """
    found = sorted(each for folder in folders for each in list_segments(folder))
    if found and _holds_nothing(found[-1][1], segment_size):
        path = found.pop()[1]
        path.unlink()
        sync_folder(path.parent)
    for (start, path), (following, _) in itertools.pairwise(found):
        if start + segment_size != following:
            raise StoreDamagedError(
                f"behind {path} comes the segment of offset {following}, expected {start + segment_size}; "
                "restore the missing file"
            )
    return [Segment(path, start, segment_size, writable=True) for start, path in found]


def open_runs(
    folder: Path, segments: list[Segment], identity: Identity, report: RecoveryReport
) -> list[FileRun]:
    """Files of the queue index that fit the log, ascending, none overlapping another; others are removed."""
    runs: list[FileRun] = []
    for path in list_runs(folder):
        try:
            run = FileRun(path)
            _check_run(run, segments, identity, runs[-1].end if runs else 0)
        except (StoreDamagedError, RecordError) as error:
            report.unusable.append(f"{path.name}: {error}")
            path.unlink()
            sync_folder(folder)  # it must not come back when the log has grown to where it would fit
            continue
        runs.append(run)
    if runs:
        try:
            runs[-1].check()  # it grows on, so that all of it is read
        except StoreDamagedError as error:
            path = runs.pop().path
            report.unusable.append(f"{path.name}: {error}")
            path.unlink()
            sync_folder(folder)
    return runs


def _check_run(run: FileRun, segments: list[Segment], identity: Identity, least: int) -> None:
    """Raises StoreDamagedError or RecordError unless the run is of this log and its last record is there."""
    former = identity.owns(run.log_id) and run.end <= identity.own_from
    if run.log_id != identity.log_id and not former:
        raise StoreDamagedError("of another log")
    if not segments or run.start < max(segments[0].start, least) or run.end > segments[-1].end:
        raise StoreDamagedError("outside of the log")
    last = run.last
    if last is None:
        return
    if not run.start <= last < run.end:
        raise StoreDamagedError(f"its last record, at {last}, is outside of it")
    segment = segments[(last - segments[0].start) // segments[0].size]
    position = last - segment.start
    decode_record(segment.view[position : min(run.end - segment.start, segment.size)], 0, last)


def recover(
    segments: list[Segment],
    runs: list[FileRun],
    flushed_offset: int,
    index: QueueIndex,
    report: RecoveryReport,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fills `index` from `runs` and by scanning what they do not cover; returns the end of the log.

    See the module for what is cut and what is kept. `progress(done, total)` in bytes of the log to scan, first with
    nothing done; what it raises ends the scan before anything of the log was changed.
    """
    started = time.monotonic()
    end = segments[0].start if segments else 0
    if runs:
        flushed_offset = max(flushed_offset, runs[-1].end)  # written behind a flush
    total = (segments[-1].end - end if segments else 0) - sum(run.end - run.start for run in runs)

    if progress is not None:
        progress(0, total)

    def scanned(count: int) -> None:
        report.bytes_scanned += count
        if progress is not None:
            progress(report.bytes_scanned, total)

    for run, behind in itertools.zip_longest(runs, runs[1:]):
        for segment in segments:
            if segment.end > end and segment.start < run.start:
                stop = min(segment.end, run.start)
                scan_flushed(segment, max(end, segment.start), stop, index, report, scanned)
        index.load(run, followed=behind is not None and behind.start == run.end)
        end = run.end
    index.grow()
    for number, segment in enumerate(segments):
        if segment.end <= end:
            continue
        begin = max(end, segment.start)
        if report.clean and segment is segments[-1]:
            end = min(max(flushed_offset, begin), segment.end)
            scan_flushed(segment, begin, end, index, report, scanned)
            if _nothing_at(segment, end):
                break
            begin = end
        end = _scan_last(segment, begin, flushed_offset, index, report, scanned)
        if end < segment.end:
            _drop_behind(segments, number, end, report)
            break
    report.records = len(index)
    report.seconds = time.monotonic() - started
    return end


def _nothing_at(segment: Segment, offset: int) -> bool:
    """Whether neither a record nor a blank begins there; both have their size first, and a magic code behind it."""
    found = segment.view[offset - segment.start :][:8]
    return found == bytes(len(found))


def scan_flushed(
    segment: Segment,
    begin: int,
    end: int,
    index: QueueIndex,
    report: RecoveryReport,
    scanned: Callable[[int], None],
) -> None:
    """Adds to `index` what is between two physical offsets, which is known to be on disk; damage is reported."""
    position, sure = begin - segment.start, end - segment.start
    while position < sure:
        stop = min(position + _SCAN_BYTES, sure)
        found = scan(
            segment.view[position:stop],
            segment.start + position,
            mode="range" if stop == sure else "tail",
            segment_size=segment.size,
        )
        if stop < sure:
            if found.ended != "torn" or found.next_offset == segment.start + position:
                found = scan(segment.view[position:sure], segment.start + position, segment_size=segment.size)
                stop = sure
            else:
                stop = found.next_offset - segment.start
        index.add(found)
        report.bad.extend(
            zip(found.bad_offset.tolist(), found.bad_length.tolist(), found.bad_reason, strict=True)
        )
        scanned(stop - position)
        position = stop


def _scan_last(
    segment: Segment,
    begin: int,
    flushed: int,
    index: QueueIndex,
    report: RecoveryReport,
    scanned: Callable[[int], None],
) -> int:
    """Adds what is behind `begin`; up to `flushed` as `scan_flushed`, then to the first thing that is not whole."""
    sure = min(max(flushed, begin), segment.end)
    scan_flushed(segment, begin, sure, index, report, scanned)
    if sure == segment.end:
        return segment.end
    found = scan(segment.view[sure - segment.start :], sure, mode="tail", segment_size=segment.size)
    index.add(found)
    scanned(segment.end - sure)
    if found.ended in ("torn", "bad"):
        report.cut_at = found.next_offset
    return segment.end if found.ended == "end" else found.next_offset


def _drop_behind(segments: list[Segment], number: int, end: int, report: RecoveryReport) -> None:
    """Zeroes what is behind the end, so that no old record comes back after the next crash."""
    segments[number].zero_from(end - segments[number].start)
    for segment in reversed(segments[number + 1 :]):  # a crash on the way leaves no gap
        if report.cut_at is None and segment.view[:4] != bytes(4):
            report.cut_at = end
        segment.close()
        segment.path.unlink()
        sync_folder(segment.path.parent)
    del segments[number + 1 :]
