"""Whose the folders of the log are that stand outside of a store's root (storePathCommitLog, or links).

The root's lock and identity say it of all that is in the root. A folder elsewhere could be given to two stores, which
would write over each other's messages. So each has a folder `.lakebroker` with a file `lock`, locked while a store is open,
and `owner.json`, the mark that says which log its segments are of: `{"log_id","broker","store"}`, the last one where the
store was then.

It is a folder, since a real broker passes over those, but starts on no file that has not a segment's size.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from store.errors import ForeignFolderError, StoreDamagedError
from store.log.permissions import OWNER_FOLDER, open_new
from store.log.recovery import IDENTITY_FILE, LOCK_FILE, Identity, lock_file, lock_folder
from store.log.segment import list_segments, make_folder, sync_folder

log = logging.getLogger(__name__)

OWNER_FILE = "owner.json"
_OWN = "give this store {} of its own (storePathCommitLog)"


class Owner(NamedTuple):
    """What a mark says."""

    log_id: str
    broker: str
    store: str


def outside(root: Path, folders: Iterable[Path]) -> list[Path]:
    """Those of the folders that are not in `root`, each once; links are followed."""
    inside = root.resolve()
    found = {each.resolve(): each for each in folders}
    return [each for real, each in found.items() if not real.is_relative_to(inside)]


def load_owner(folder: Path) -> Owner | None:
    """What the mark of a folder says; None without one. Raises StoreDamagedError, OSError."""
    path = folder / OWNER_FOLDER / OWNER_FILE
    try:
        data = json.loads(path.read_text())
        return Owner(str(data["log_id"]), str(data["broker"]), str(data["store"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamagedError(
            f"{path} cannot be read ({error!r}); if the log is this store's, remove {path}"
        ) from error


def check_owners(root: Path, identity: Identity | None, folders: Iterable[Path]) -> None:
    """Raises ForeignFolderError when one of the folders is another store's; StoreDamagedError, OSError."""
    for folder in outside(root, folders):
        real = folder.resolve()
        for above in (real, *real.parents):
            if os.path.lexists(above / IDENTITY_FILE):
                raise ForeignFolderError(f"{folder} is in another store, {above}; {_OWN.format('a folder')}")
        owner = load_owner(folder)
        if owner is None or (identity is not None and identity.owns(owner.log_id)):
            continue
        mark = folder / OWNER_FOLDER
        if identity is None and owner.store == str(root.absolute()):
            raise ForeignFolderError(
                f"{folder} is a folder of the log of this store, whose {root / IDENTITY_FILE} is missing; restore that, "
                f"or remove {mark}: the log gets another id then"
            )
        raise ForeignFolderError(
            f"{folder} is a folder of another store's log, of {owner.store} (broker {owner.broker}); "
            f"{_OWN.format('one')}. If that store is gone for good, remove {mark}"
        )


def lock_folders(root: Path, folders: Iterable[Path]) -> list[int]:
    """Locks the folders outside of the root, which are made; returns the descriptors, which must stay open.

    Each folder itself, where its file system can, and a file in it, where there is room: only a start can make that. Raises
    StoreLockedError, OSError; then none is locked.
    """
    locked: list[int] = []
    try:
        for folder in outside(root, folders):
            refused = (
                f"another process has {folder}, a folder of the log; stop it, or {_OWN.format('a folder')}"
            )
            make_folder(folder)
            # a network's file system has no such locks; what else keeps the folder closed, keeps its file closed too
            with contextlib.suppress(OSError):
                locked.append(lock_folder(folder, refused))
            with _room_missing(folder):
                make_folder(folder / OWNER_FOLDER)
                locked.append(lock_file(folder / OWNER_FOLDER / LOCK_FILE, refused))
    except BaseException:
        for fd in locked:
            os.close(fd)
        raise
    return locked


def mark_folders(root: Path, identity: Identity, folders: Iterable[Path]) -> None:
    """Writes the mark of each folder outside of the root that has none, or one of a former id, whole or not at all; the
    next start does it where there is no room. Raises StoreDamagedError, OSError."""
    for folder in outside(root, folders):
        path = folder / OWNER_FOLDER / OWNER_FILE
        owner = load_owner(folder)
        if owner is not None and owner.log_id == identity.log_id:
            continue
        with _room_missing(folder):
            make_folder(path.parent)
            staged = path.with_suffix(".tmp")
            with open_new(staged, "w") as file:
                json.dump(Owner(identity.log_id, identity.broker, str(root.absolute()))._asdict(), file)
                file.flush()
                os.fsync(file.fileno())
            staged.rename(path)
            sync_folder(path.parent)


@contextlib.contextmanager
def _room_missing(folder: Path) -> Iterator[None]:
    """A full disk is no error within, where the folder has segments, whose retention makes room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not list_segments(folder):
            raise
        log.warning(
            "%s has no room for what says whose it is (%s); the next start tries again. Give it to no other store",
            *(folder, error.strerror),
        )
