"""The folder of a store and its disk. Nothing in it is opened for writing, made or locked."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from broker_gateway.app.check.finding import Finding, fail, ok, warn
from broker_gateway.app.host_checks import existing
from broker_gateway.config.gateway import GatewayConfig
from store.errors import StoreError
from store.log.claim import check_folders, check_segment_size
from store.log.recovery import COMMIT_LOG_FOLDER, LOCK_FILE, load_identity, stopped_cleanly

_IN_MEMORY = {"tmpfs", "ramfs"}
_ELSEWHERE = {"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "virtiofs"}
_LOCK = "hhqqi4x"
"""`struct flock` of a 64-bit Linux."""


def check_store(config: GatewayConfig) -> Finding:
    """Whether the folder is a store, or can become one, that this user may write to."""
    options, broker = config.store, config.broker.broker_name
    root, folders = options.store_path_root_dir, options.log_folders()
    try:
        check_folders(root, folders)
        identity = load_identity(root)
        if identity is None:
            check_segment_size([*folders, root / COMMIT_LOG_FOLDER], options.mapped_file_size_commit_log)
    except StoreError as error:
        return fail("store", str(error))
    except OSError as error:
        return fail(
            "store",
            f"{root} cannot be looked at: {error}",
            "give this user a folder of its own (storePathRootDir)",
        )
    if identity is not None and identity.broker != broker:
        return fail(
            "store",
            f"{root} belongs to broker {identity.broker!r}, not {broker!r}",
            "set brokerName to that, or use another store",
        )
    for folder in (root, *folders):
        there = existing(folder)
        if not os.access(there, os.W_OK | os.X_OK):
            return fail(
                "store",
                f"{there} cannot be written to by user {os.geteuid()}",
                f"chown it to that user, mount it writable, or give another folder ({_option(folder, root)})",
            )
    if identity is None:
        return ok("store", f"{root}, a new one")
    if (process := running(root)) is not None:
        holder = f"process {process}" if process else "a process out of sight, such as another container's,"
        return warn(
            "store",
            f"{root}: {holder} has it open, so ports and open files were not looked at",
            "stop that one before this one starts",
        )
    if not stopped_cleanly(root):
        return warn(
            "store",
            f"{root}, whose broker did not stop cleanly",
            "nothing: the start looks through the end of its log, a segment at most",
        )
    return ok("store", f"{root}, of broker {identity.broker}, log {identity.log_id}")


def running(root: Path) -> int | None:
    """The process that has the store open, 0 for one of another pid namespace; None where nobody has. It is asked for, and not
    tried by locking."""
    try:
        fd = os.open(root / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        asked = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(process)


def check_file_system(folders: Sequence[Path], mounts: str) -> Finding:
    """What the folders are on, by `mounts`, the text of /proc/self/mountinfo."""
    kinds = {str(folder): file_system(existing(folder).resolve(), mounts) for folder in folders}
    shown = ", ".join(sorted(set(kinds.values())))
    for folder, kind in kinds.items():
        if kind in _IN_MEMORY:
            return warn(
                "file system",
                f"{folder} is on {kind}, in memory",
                "give a folder on a disk: a restart of the host loses the log",
            )
        if kind in _ELSEWHERE:
            return warn(
                "file system",
                f"{folder} is on {kind}, on another machine",
                "give a local disk: appends wait for the network, and a lock there may outlive its owner",
            )
        if kind == "overlay":
            return warn(
                "file system",
                f"{folder} is on overlay, a container's own layer",
                "mount a volume there: the log is removed with the container",
            )
    return ok("file system", shown)


def file_system(path: Path, mounts: str) -> str:
    """Kind of the file system that a path is on, by the longest mount point above it."""
    found, kind = -1, "unknown"
    for line in mounts.splitlines():
        before, separator, behind = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= found:  # a later mount covers an earlier one
            found, kind = len(point.parts), behind.split()[0]
    return kind


def _option(folder: Path, root: Path) -> str:
    return "storePathRootDir" if folder == root else "storePathCommitLog"
