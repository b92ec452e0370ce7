"""What the broker needs of its host, looked at before any port opens: room for the log, open files, sizes of files.

| what is missing | then |
|---|---|
| room for the first segment of a new log, also under diskSpaceWarningLevelRatio | the start ends: every send would be refused |
| room for the next segment of a log | a warning: what is there can be received |
| open files for the segments and a few connections | the start ends; the soft limit is raised to the hard one first |
| a file as large as a segment, addresses to map the log at | the start ends |
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.errors import HostError
from store.counting import counted
from store.errors import StoreDamagedError
from store.index.checked_pages import MOST_OPEN
from store.log.recovery import COMMIT_LOG_FOLDER, commit_log_folders, load_identity
from store.log.segment import list_segments
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
FILES_BESIDE = 64
"""Open at a time beside the log, its index and connections."""
FILES_OF_A_SEGMENT = 2
GROWTH = 16
"""Segments that the log may grow by while as many connections are open as may be."""
LEAST_CONNECTIONS = 64
FEW_CONNECTIONS = 1000


class Disk(NamedTuple):
    """Of a folder for segments; bytes. `used` and `free` are what this user can have of it."""

    folder: Path
    used: int
    free: int


class Log(NamedTuple):
    """What there is, or will be: the number of segments and their size in bytes."""

    segments: int
    segment_size: int


def check_host(config: GatewayConfig) -> None:
    """Raises the limit of open files as far as it goes, warns of what is scarce, and raises HostError."""
    found, disks = log_of(config), disks_of(config)
    warnings = [
        check_disks(disks, found, config.store.disk_space_warning_level_ratio),
        check_descriptors(_raise_descriptors(), found),
    ]
    check_sizes(
        found, resource.getrlimit(resource.RLIMIT_FSIZE)[0], resource.getrlimit(resource.RLIMIT_AS)[0]
    )
    for warning in filter(None, warnings):
        log.warning(warning)


def log_of(config: GatewayConfig) -> Log:
    """The log that there is, or will be."""
    options = config.store
    return _log_in(options.store_path_root_dir, options.log_folders(), options.mapped_file_size_commit_log)


def disks_of(config: GatewayConfig) -> list[Disk]:
    """Those that new segments go to. Raises HostError."""
    options = config.store
    folders = options.log_folders() or [options.store_path_root_dir / COMMIT_LOG_FOLDER]
    return [_disk(folder) for folder in folders]


def check_disks(disks: Sequence[Disk], found: Log, refuse_percent: int) -> str | None:
    """A warning where the next segment does not fit any of the disks. Raises HostError when that is the first one."""
    disk = max(disks, key=lambda each: each.free)
    size = found.segment_size
    fits = size <= disk.free
    if fits and 100 * (disk.used + size) <= refuse_percent * (disk.used + disk.free):
        return None
    room = (
        f"{disk.free >> 20:,} of {(disk.used + disk.free) >> 20:,} MiB are free on the disk of {disk.folder}"
    )
    if fits and found.segments:
        return None  # the store's own rules say when sends are refused
    if found.segments:
        return f"{room}, and a segment has {size >> 20:,} MiB: no further one can be made; make room"
    raise HostError(
        f"{room}, and a segment of the log has {size >> 20:,} MiB (mappedFileSizeCommitLog), which must leave it below "
        f"{refuse_percent} % (diskSpaceWarningLevelRatio): nothing could be sent; make room, take another folder "
        "(storePathRootDir, storePathCommitLog) or a smaller mappedFileSizeCommitLog"
    )


def check_descriptors(allowed: int, found: Log) -> str | None:
    """A warning where few connections can be opened. Raises HostError when hardly any can."""
    needed = FILES_BESIDE + MOST_OPEN + FILES_OF_A_SEGMENT * (found.segments + 2)
    if allowed == resource.RLIM_INFINITY or allowed - needed >= FEW_CONNECTIONS:
        return None
    remedy = (
        "raise it: LimitNOFILE= of a systemd unit, ulimit -Hn of a shell, --ulimit nofile= of a container"
    )
    if allowed - needed < LEAST_CONNECTIONS:
        raise HostError(
            f"this process may open {allowed} files; with {counted(found.segments, 'segment')} in the log it needs "
            f"{needed + LEAST_CONNECTIONS}, {LEAST_CONNECTIONS} of them for connections; {remedy}"
        )
    return f"this process may open {allowed} files, which leaves {allowed - needed} for connections; {remedy}"


def most_connections(store: MessageStore) -> int:
    """Connections that may be open now: what is left when the log may grow by GROWTH segments."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return sys.maxsize
    segments = (store.max_offset - store.min_offset) // store.segment_size + GROWTH
    return max(LEAST_CONNECTIONS // 2, allowed - FILES_BESIDE - MOST_OPEN - FILES_OF_A_SEGMENT * segments)


def check_sizes(found: Log, largest_file: int, addresses: int) -> None:
    """Raises HostError when limits of the process keep it from making or mapping segments; limits in bytes."""
    size = found.segment_size
    if largest_file != resource.RLIM_INFINITY and largest_file < size:
        raise HostError(
            f"this process may write files of {largest_file >> 20:,} MiB, and a segment of the log has {size >> 20:,} MiB "
            "(mappedFileSizeCommitLog); raise LimitFSIZE= or ulimit -f"
        )
    mapped = (found.segments + 2) * size
    if addresses != resource.RLIM_INFINITY and addresses < mapped:
        raise HostError(
            f"this process may use {addresses >> 20:,} MiB of addresses, and mapping the log takes {mapped >> 20:,} MiB; "
            "raise LimitAS= or ulimit -v"
        )


def _log_in(root: Path, wanted: Sequence[Path], segment_size: int) -> Log:
    try:
        identity = load_identity(root)
    except (StoreDamagedError, OSError):
        identity = None  # opening the store says why
    folders = dict.fromkeys([*wanted, *commit_log_folders(root, identity)])
    try:
        segments = sum(len(list_segments(folder)) for folder in folders)
    except OSError:
        segments = 0
    return Log(segments, identity.segment_size if identity is not None else segment_size)


def existing(folder: Path) -> Path:
    """The folder, or the first one above it that is there, and that this user may look at."""
    there = folder.absolute()
    while not os.path.exists(there) and there != there.parent:
        there = there.parent
    return there


def _disk(folder: Path) -> Disk:
    """The disk that a folder is, or will be, on. Raises HostError."""
    try:
        found = os.statvfs(existing(folder))
    except OSError as error:
        raise HostError(f"the disk of {folder} cannot be looked at: {error}") from error
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    return Disk(folder, used, found.f_bavail * found.f_frsize)


def _raise_descriptors() -> int:
    """The limit of open files, the soft one raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
