"""Who may read a store: the broker's user, its group where that is asked for, and nobody else.

Messages and the delivery ids of the journal are in its files. Folders are made with mode 0700 and files with 0600 (0750
and 0640 with `lakeStoreGroupRead`); what an earlier version or a real broker left open is closed when the store is
opened. Files with secrets are the operator's: those that others can read are refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from store.errors import SecretError

LEAST_TOKEN = 16
"""Characters."""
OWNER_FOLDER = ".lakebroker"
"""In a folder of the log outside of the root: see `owner.py`."""
_FOLDERS = (
    "commitlog",
    "lakeindex",
    "lakecompiled",
    "lakedeferred",
    "lakeordered",
    "config",
    "consumequeue",
    "index",
    "namesrv",
    "timerwheel",
)
"""Of a store: those of ours, and those that a real broker makes beside them."""
_FILES = ("lakebroker.json", "flushed", "erased", "lock", "abort", "checkpoint", "timercheck")


class _Mask:
    """What is left out of the modes of all that this process makes in a store."""

    def __init__(self) -> None:
        self.bits = 0o077


_MASK = _Mask()


def use(*, group_read: bool) -> None:
    """Sets who may read what is made from here on, also the process's umask. To be called before threads begin."""
    _MASK.bits = 0o027 if group_read else 0o077
    os.umask(_MASK.bits)


def folder_mode() -> int:
    """Of a folder in a store."""
    return 0o777 & ~_MASK.bits


def file_mode() -> int:
    """Of a file in a store."""
    return 0o666 & ~_MASK.bits


def open_new(path: Path, mode: str) -> IO[Any]:
    """`open` for a file of a store that may be made by it. Raises OSError."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, file_mode()))


class Change(NamedTuple):
    """Modes of a file or folder, as 0o755."""

    path: Path
    before: int
    after: int


class Closed(NamedTuple):
    """What `close_to_others` did: the number of files and folders, those that belong to another user, the first change."""

    changed: int
    left: list[Path]
    first: Change | None = None


def close_to_others(root: Path, commit_log_folders: Iterable[Path]) -> Closed:
    """Takes from all that is known of a store what its user's group and others may not have. Raises OSError."""
    changed, left, first = 0, [], None
    for path in _of_store(root, commit_log_folders):
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode) or not mode & _MASK.bits:
                continue
            change = Change(path, stat.S_IMODE(mode), stat.S_IMODE(mode) & ~_MASK.bits)
            os.chmod(path, change.after)
        except FileNotFoundError:
            continue
        except PermissionError:
            left.append(path)
        else:
            changed += 1
            first = first or change
    return Closed(changed, left, first)


def _of_store(root: Path, commit_log_folders: Iterable[Path]) -> Iterator[Path]:
    yield root
    yield from (root / name for name in _FILES)
    logs = list(commit_log_folders)
    owned = (folder / OWNER_FOLDER for folder in logs)
    folders = dict.fromkeys([*logs, *owned, *(root / name for name in _FOLDERS)])
    for folder in folders:
        yield folder
        if folder.is_dir() and not folder.is_symlink():
            yield from (Path(entry) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))


def check_secret(path: Path, option: str) -> None:
    """Raises SecretError when users beside the owner and the group may read or write a file; OSError without one."""
    mode = path.stat().st_mode
    if mode & stat.S_IRWXO:
        raise SecretError(
            f"{option}={path} can be read by every user of this machine (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}, or in Kubernetes mount it with defaultMode 0400"
        )


def read_token(path: Path, option: str) -> bytes:
    """The token in a file, which is never logged. Raises SecretError for one that others may read, or that is no token;
    OSError without a file."""
    check_secret(path, option)
    try:
        token = path.read_text(encoding="utf-8").strip().encode()
    except UnicodeDecodeError:  # which has the token in it
        raise SecretError(
            f"{option}={path} is not UTF-8; write the token in letters and digits, as `openssl rand -hex 32` makes one"
        ) from None
    if len(token) < LEAST_TOKEN:
        raise SecretError(f"the token in {option}={path} is shorter than {LEAST_TOKEN} characters")
    return token
