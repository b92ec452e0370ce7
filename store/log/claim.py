"""Which folder may be taken as a store: an empty one, or one that holds a store.

What is taken is closed to other users and locked, so that a folder with anybody's files (`/tmp`, `/srv/shared`) must
be refused before anything in it changes.

| in the folder | then |
|---|---|
| `lakebroker.json`, `lakeindex`, `commitlog`, `consumequeue`, `config/topics.json` or `config/consumerOffset.json` | a store, ours or a real broker's |
| nothing but what a start that failed, a supervisor that was killed, or a new disk, leaves | becomes a store |
| stores in folders of their own, as several brokers of one host have them | refused, and they are named |
| else | refused |

A folder of the log is one of a store when it holds segments, or when the store knows it already. Outside of the root it
must be no other store's (see `owner.py`), and segments there are taken only by a root that is a store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from pathlib import Path

from store.errors import ForeignFolderError, StoreDamagedError, StoreLockedError
from store.log.owner import check_owners, outside
from store.log.permissions import OWNER_FOLDER
from store.log.recovery import (
    COMMIT_LOG_FOLDER,
    IDENTITY_FILE,
    INDEX_FOLDER,
    LOCK_FILE,
    commit_log_folders,
    load_identity,
    lock_folder,
)
from store.log.recovery import log_folders as folders_of
from store.log.segment import list_segments, only_zeros

_MARKS = (
    IDENTITY_FILE,
    INDEX_FOLDER,
    COMMIT_LOG_FOLDER,
    "consumequeue",
    "config/topics.json",
    "config/consumerOffset.json",
)
_HARMLESS = {LOCK_FILE, f"{IDENTITY_FILE}.tmp", "lakecompiled", "lost+found"}
"""Of a start that ended before it wrote the identity, and of a file system."""
PROCESSES_FOLDER = "processes"
"""Of the supervisor of several brokers, beside their stores."""
_SHOWN = 3


def check_folders(root: Path, log_folders: Sequence[Path] = ()) -> None:
    """Raises ForeignFolderError unless a store may be, or be made, in `root`, with its log in these folders;
    StoreDamagedError of one whose identity, or whose mark of a folder, cannot be read; OSError."""
    is_store = holds_store(root)
    if not is_store:
        ours = _HARMLESS | {
            folder.name for folder in log_folders if folder.absolute().parent == root.absolute()
        }
        inside = stores_inside(root)
        supervised = root / PROCESSES_FOLDER
        if supervised.is_dir():
            _refuse_locked(supervised)
            if not inside and _is_left_over(supervised):
                ours |= {PROCESSES_FOLDER}
        _refuse(
            root, ours, _start_of(inside) if inside else "give an empty folder or a store (storePathRootDir)"
        )
    identity = load_identity(root)
    check_owners(root, identity, folders_of(root, identity, log_folders))
    known = {each.absolute() for each in commit_log_folders(root, identity)} if identity is not None else ()
    for folder in log_folders:
        if folder.absolute() not in known and not list_segments(folder):
            harmless = _HARMLESS | {OWNER_FOLDER}
            _refuse(folder, harmless, "give an empty folder or one with segments (storePathCommitLog)")
    if is_store:
        return
    for folder in outside(root, log_folders):
        if list_segments(folder):
            raise ForeignFolderError(
                f"{folder} holds a log, and {root} no store: give the storePathRootDir of that log, or an empty folder "
                f"(storePathCommitLog); if nothing but the log is left, make the folder {root / COMMIT_LOG_FOLDER}"
            )


def holds_store(root: Path) -> bool:
    """Whether a store is in `root` itself, ours or a real broker's."""
    return any((root / mark).exists() for mark in _MARKS)


def _refuse_locked(folder: Path) -> None:
    """Raises ForeignFolderError while a supervisor of several brokers has its folder; OSError."""
    refused = f"several brokers run in {folder.parent} (--processes); stop them, or give another folder (storePathRootDir)"
    try:
        os.close(lock_folder(folder, refused))
    except StoreLockedError as error:
        raise ForeignFolderError(refused) from error


def _is_left_over(folder: Path) -> bool:
    """Whether there is nothing in it but what a killed supervisor of several brokers leaves."""
    return all(".json" in each for each in os.listdir(folder))


def stores_inside(root: Path) -> list[Path]:
    """Stores of ours in folders of `root`, sorted. Raises OSError."""
    if not root.is_dir():
        return []
    # os.path, since other users' folders may not be looked into
    return sorted(each for each in root.iterdir() if os.path.isfile(each / IDENTITY_FILE))


def _start_of(stores: Sequence[Path]) -> str:
    """How to start the brokers whose stores a folder has in it. Raises StoreDamagedError."""
    brokers = {path.name: identity.broker for path in stores if (identity := load_identity(path)) is not None}
    first = stores[0]
    one = f"--store {first} --set brokerName={brokers.get(first.name, first.name)}"
    together, count = first.name.removesuffix("-0"), len(stores)
    numbered = {f"{together}-{number}": f"{together}-{number}" for number in range(count)}
    if count == 1:
        return f"the store of a broker is in it: start that with {one}"
    if brokers != numbered:
        return f"stores of single brokers are in it: start each by itself, such as {one}"
    return (
        f"stores of single brokers are in it: start {count} brokers with --processes {count} --set "
        f"brokerName={together}, or one with {one}"
    )


def check_segment_size(folders: Sequence[Path], segment_size: int) -> None:
    """Raises StoreDamagedError when the log of a store that has no identity yet has segments of another size; OSError.

    One that a crash left before it had its size counts as none.
    """
    found = sorted(each for folder in folders for each in list_segments(folder))
    if not found:
        return
    path = found[0][1]
    size = path.stat().st_size
    if size != segment_size and not (len(found) == 1 and size < segment_size and only_zeros(path)):
        raise StoreDamagedError(
            f"segment {path} has {size} bytes, expected {segment_size}; set mappedFileSizeCommitLog={size}, or restore the file"
        )


def _refuse(folder: Path, harmless: Set[str], remedy: str) -> None:
    """Raises ForeignFolderError when there is anything else in the folder."""
    found = sorted(set(os.listdir(folder)) - harmless) if folder.exists() else []
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise ForeignFolderError(f"{folder} holds other files ({shown}); {remedy}")
