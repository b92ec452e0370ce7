"""Starting on a store directory: lock, identity, abort file, and the scan that finds the end of the log.

Above the published flushed offset the log is cut at the first thing that does not check out and the rest
zeroed; below it damage is reported and kept. Checkpoints and snapshots of the queue index belong here when
they come: `recover` then begins at the newest instead of the first segment.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import StoreDamagedError, StoreLockedError
from store.queue_index import QueueIndex
from store.scan import scan
from store.segment import Segment, list_segments, sync_folder

LOCK_FILE = "lock"
ABORT_FILE = "abort"
IDENTITY_FILE = "lakebroker.json"
COMMIT_LOG_FOLDER = "commitlog"
_SCAN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """What `lakebroker.json` says: which log this is."""

    log_id: str
    broker: str
    cluster: str
    segment_size: int
    created_ms: int


@dataclass(slots=True)
class RecoveryReport:
    """What the start found. `bad` rows: physical offset, length, reason."""

    records: int = 0
    bytes_scanned: int = 0
    seconds: float = 0.0
    clean: bool = True
    cut_at: int | None = None
    bad: list[tuple[int, int, str]] = field(default_factory=list)


def lock_store(root: Path) -> int:
    """Locks byte 0 of `lock`, as a real broker does; returns the descriptor, which must stay open.

    POSIX drops the lock when any descriptor of that file in the process is closed: it is opened only here.
    """
    fd = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        os.close(fd)
        raise StoreLockedError(
            f"Lock failed, MQ already started: another process has the store {root}; stop it or use another store"
        ) from error
    return fd


def load_identity(root: Path) -> Identity | None:
    """The store's identity; None where there is none yet. Raises StoreDamagedError."""
    path = root / IDENTITY_FILE
    try:
        data = json.loads(path.read_text())
        return Identity(
            str(data["log_id"]),
            str(data["broker"]),
            str(data["cluster"]),
            int(data["segment_size"]),
            int(data["created_ms"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamagedError(f"{path} cannot be read ({error}); restore it from a copy") from error


def make_identity(root: Path, broker: str, cluster: str, segment_size: int) -> Identity:
    """Writes a new identity, whole or not at all."""
    identity = Identity(uuid.uuid4().hex, broker, cluster, segment_size, time.time_ns() // 1_000_000)
    staged = root / (IDENTITY_FILE + ".tmp")
    with staged.open("w") as file:
        json.dump({name: getattr(identity, name) for name in Identity.__slots__}, file)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(root / IDENTITY_FILE)
    sync_folder(root)
    return identity


def open_segments(folder: Path, segment_size: int) -> list[Segment]:
    """Every segment of the log; raises StoreDamagedError for a gap or a file of another size.

    A last file that a crash left before it had its size is removed: nothing in it was ever answered.
    """
    found = list_segments(folder)
    if found and found[-1][1].stat().st_size < segment_size:
        found.pop()[1].unlink()
    for (start, path), (following, _) in itertools.pairwise(found):
        if start + segment_size != following:
            raise StoreDamagedError(
                f"behind {path} comes the segment of offset {following}, expected {start + segment_size}; "
                "restore the missing file"
            )
    return [Segment(path, start, segment_size, writable=True) for start, path in found]


def recover(
    segments: list[Segment],
    flushed_offset: int,
    index: QueueIndex,
    report: RecoveryReport,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Scans the log into `index` and returns its end; see the module for what is cut and what is kept.

    `progress(done, total)` in bytes.
    """
    started = time.monotonic()
    total = sum(segment.size for segment in segments)
    done = 0
    end = segments[0].start if segments else 0
    for number, segment in enumerate(segments):
        end = _recover_segment(segment, flushed_offset, index, report)
        done += segment.size
        if progress is not None:
            progress(done, total)
        if end < segment.end:
            _drop_behind(segments, number, end, report)
            break
    report.records = len(index)
    report.bytes_scanned = total
    report.seconds = time.monotonic() - started
    return end


def _recover_segment(segment: Segment, flushed: int, index: QueueIndex, report: RecoveryReport) -> int:
    position = 0
    sure = min(max(flushed - segment.start, 0), segment.size)
    while position < sure:
        stop = min(position + _SCAN_BYTES, sure)
        found = scan(
            segment.view[position:stop], segment.start + position, mode="range" if stop == sure else "tail"
        )
        if stop < sure:
            if found.ended != "torn" or found.next_offset == segment.start + position:
                found = scan(segment.view[position:sure], segment.start + position)
                stop = sure
            else:
                stop = found.next_offset - segment.start
        index.add(found)
        report.bad.extend(
            zip(found.bad_offset.tolist(), found.bad_length.tolist(), found.bad_reason, strict=True)
        )
        position = stop
    if sure == segment.size:
        return segment.end
    found = scan(segment.view[sure:], segment.start + sure, mode="tail")
    index.add(found)
    if found.ended in ("torn", "bad"):
        report.cut_at = found.next_offset
    if found.ended == "end":
        return segment.end
    return found.next_offset


def _drop_behind(segments: list[Segment], number: int, end: int, report: RecoveryReport) -> None:
    """Zeroes what is behind the end, so that no old record comes back after the next crash."""
    segments[number].zero_from(end - segments[number].start)
    for segment in segments[number + 1 :]:
        if report.cut_at is None and segment.view[:4] != bytes(4):
            report.cut_at = end
        segment.close()
        segment.path.unlink()
    del segments[number + 1 :]
