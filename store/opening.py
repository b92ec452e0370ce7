"""Opening a store: its folders are locked, its log is recovered, and its parts are made, in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from store.errors import RecoveryStoppedError, StoreDamagedError
from store.index.queue_index import RUN_BYTES, QueueIndex
from store.index.remake import Remake
from store.index.writer import IndexWriter
from store.kernels.code_folders import CODE_FOLDERS
from store.log.allocator import Allocator
from store.log.checkpoint import Checkpoint
from store.log.claim import check_folders, check_segment_size
from store.log.commit_log import CommitLog
from store.log.flush import FLUSHED_FILE, Flusher, FlushMode, read_flushed
from store.log.owner import lock_folders, mark_folders
from store.log.page_cache import PageCache
from store.log.permissions import close_to_others, open_new
from store.log.record import Host
from store.log.recovery import (
    ABORT_FILE,
    COMMIT_LOG_FOLDER,
    INDEX_FOLDER,
    Identity,
    RecoveryReport,
    check_end,
    commit_log_folders,
    load_identity,
    lock_store,
    log_folders,
    make_identity,
    open_runs,
    open_segments,
    recover,
    stopped_cleanly,
    write_identity,
)
from store.log.segment import Segment, make_folder, sync_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is opened. Sizes in bytes.

    `commit_log_paths`: where segments go, in turn; none: `commitlog`. Who wants SYNC_FLUSH waits with `wait_flushed`;
    `flush` says which it will be. See `PageCache` for `prefault_bytes` and `warm_bytes`, `QueueIndex` for `index_…`, and
    `store/kernels/code_folders.py` for `compiled_code`. `progress` is called with bytes scanned, and of how many; it may
    raise RecoveryStoppedError. `time_ns`: where store times come from.
    """

    broker: str
    cluster: str
    store_host: Host
    commit_log_paths: Sequence[Path] = ()
    segment_size: int = 1 << 30
    flush: FlushMode = FlushMode.ASYNC_FLUSH
    flush_interval_ms: int = 500
    flush_least_pages: int = 0
    flush_thorough_ms: int = 10_000
    append_crc: bool = True
    prefault_bytes: int = 0
    warm_bytes: int = 0
    index_max_bytes: int = 256 << 20
    index_run_bytes: int = RUN_BYTES
    compiled_code: Path | None = None
    progress: Callable[[int, int], None] | None = None
    time_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What an open store is made of."""

    root: Path
    identity: Identity
    store_host: Host
    log: CommitLog
    allocator: Allocator
    index: QueueIndex
    writer: IndexWriter
    flusher: Flusher
    checkpoint: Checkpoint
    recovered: RecoveryReport
    lock_fds: Sequence[int]


def open_parts(root: Path, options: StoreOptions) -> StoreParts:
    """Opens or makes the store in `root`; see `MessageStore.open`."""
    check_folders(root, options.commit_log_paths)
    make_folder(root)
    lock_fds = [lock_store(root)]
    try:
        CODE_FOLDERS.use(root, options.compiled_code)
        known = load_identity(root)
        every = log_folders(root, known, options.commit_log_paths)
        lock_fds += lock_folders(root, every)
        identity = _identity(root, known, options)
        return _recovered(root, identity, every, options, known is not None, lock_fds)
    except BaseException:
        for fd in lock_fds:
            os.close(fd)
        raise


def _identity(root: Path, known: Identity | None, options: StoreOptions) -> Identity:
    """Whose store it is; made for a new one. Raises StoreDamagedError for another broker's."""
    paths = options.commit_log_paths
    check_folders(root, paths)  # somebody may have come in between
    identity = known
    if identity is None:
        check_segment_size([*paths, root / COMMIT_LOG_FOLDER], options.segment_size)
        identity = make_identity(root, options.broker, options.cluster, options.segment_size)
    if identity.broker != options.broker:
        raise StoreDamagedError(
            f"the store {root} belongs to broker {identity.broker!r}, not {options.broker!r}; "
            "set brokerName to that or use another store"
        )
    return identity


def _recovered(
    root: Path,
    identity: Identity,
    every: Sequence[Path],
    options: StoreOptions,
    was_there: bool,
    lock_fds: Sequence[int],
) -> StoreParts:
    """The parts of a locked store; `every` folder may have segments."""
    flushed = read_flushed(root / FLUSHED_FILE) or 0
    if was_there:
        check_end(root, identity, every, flushed)
    report = RecoveryReport(clean=stopped_cleanly(root))
    report.closed = close_to_others(root, commit_log_folders(root, identity))
    with open_new(root / ABORT_FILE, "w") as abort:
        abort.write(str(os.getpid()))
    sync_folder(root)
    index = QueueIndex(identity.segment_size, options.index_run_bytes, options.index_max_bytes)
    writer = IndexWriter(root / INDEX_FOLDER, identity.log_id, index)
    allocator = _allocator(root, identity, options)
    segments = open_segments(every, identity.segment_size)
    mark_folders(root, identity, every)
    identity = _with_folders(root, identity, every)
    index.remake = remake = Remake(root / INDEX_FOLDER, index, lambda: segments)
    runs = open_runs(root / INDEX_FOLDER, segments, identity, report)
    try:
        end = recover(segments, runs, flushed, index, report, options.progress)
    except RecoveryStoppedError:
        if report.clean:
            (root / ABORT_FILE).unlink()
        raise
    log = _log(allocator, segments, end, identity, options)
    remake.segments = lambda: log.segments
    flusher = Flusher(
        log,
        root / FLUSHED_FILE,
        options.flush_interval_ms,
        end,
        least_pages=options.flush_least_pages,
        thorough_ms=options.flush_thorough_ms,
    )
    writer.start(flusher)
    host, checkpoint = options.store_host, Checkpoint(root)
    return StoreParts(
        root, identity, host, log, allocator, index, writer, flusher, checkpoint, report, lock_fds
    )


def _allocator(root: Path, identity: Identity, options: StoreOptions) -> Allocator:
    """Makes new segments, in folders that are made too."""
    new = [path.absolute() for path in options.commit_log_paths] or [root / COMMIT_LOG_FOLDER]
    for folder in new:
        make_folder(folder)
    busy_s = options.flush_interval_ms / 4000 if options.flush is FlushMode.ASYNC_FLUSH else 0.0
    pages = PageCache(options.prefault_bytes, busy_s, options.warm_bytes)
    return Allocator(new, identity.segment_size, pages)


def _log(
    allocator: Allocator, segments: list[Segment], end: int, identity: Identity, options: StoreOptions
) -> CommitLog:
    """The log up to `end`; what the scan accepted of it counts as flushed from here on."""
    log = CommitLog(
        allocator,
        segments,
        end,
        segment_size=identity.segment_size,
        store_host=options.store_host.packed,
        append_crc=options.append_crc,
    )
    for segment in segments:
        segment.sync()
    if end < identity.own_from:  # the step that follows the identity's was not done, or was lost
        log.fill_up(identity.own_from)
    return log


def _with_folders(root: Path, identity: Identity, every: Sequence[Path]) -> Identity:
    """The identity with all folders that have segments, or get them, for readers by path; written when it changed."""
    known = () if every == [root / COMMIT_LOG_FOLDER] else tuple(str(folder) for folder in every)
    if known != identity.commit_log_folders:
        identity = replace(identity, commit_log_folders=known)
        write_identity(root, identity)
    return identity
