"""Where compiled code is kept between runs of the process, and that nobody else can put any there.

| folder | used |
|---|---|
| `lakeCompiledCodePath`, also as the environment variable `LAKEBROKER_lakeCompiledCodePath` | alone, when it is set |
| `lakecompiled` in the store of this process | first |
| `lakebroker/compiled` in the user's cache folder (`XDG_CACHE_HOME`, else `.cache` at home) | then |

Code is looked for in each of them and put into each. A reader by path makes no folder in a store. A folder that cannot
be written to is left out: without any, code is compiled in every process. Kept code is run, so a folder counts only
when it and those above it belong to this user (or to root) and nobody else may write to them, but for those above with
the sticky bit, as `/tmp`; one of ours that others could write to is emptied first. Of its files those count that belong
to this user (or to root).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)
STORE_FOLDER = "lakecompiled"
VARIABLE = "LAKEBROKER_lakeCompiledCodePath"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class CodeFolders:
    """The folders of this process, those that count first asked for when code is first needed."""

    def __init__(self) -> None:
        self._chosen: Path | None = None
        self._store: Path | None = None
        self._makes_it = False
        self._checked: dict[Path, bool] = {}

    def use(self, store: Path, chosen: Path | None = None) -> None:
        """The store that this process writes, and the folder that an option names instead."""
        self._store, self._makes_it = store, True
        self._chosen = chosen

    def read(self, store: Path) -> None:
        """A store that this process reads by path; its folder is not made."""
        if not self._makes_it:
            self._store = store

    def wanted(self) -> list[Path]:
        """Where code should be kept, whether that can be or not."""
        chosen = self._chosen or _path_in(os.environ.get(VARIABLE))
        if chosen is not None:
            return [chosen]
        own = [self._store / STORE_FOLDER] if self._store is not None else []
        user = _user_folder()
        return [*own, user] if user is not None else own

    def readable(self) -> list[Path]:
        """Folders that are there and whose code may be run."""
        return [folder for folder in self.wanted() if self._is_ours(folder)]

    def writable(self) -> list[Path]:
        """Folders to put code into, made where they are missing."""
        return [folder for folder in self.wanted() if self._made(folder) and self._is_ours(folder)]

    def _made(self, folder: Path) -> bool:
        try:
            if self._makes_it or self._store is None or folder.parent != self._store:
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            log.info("compiled code cannot be kept in %s: %s", folder, error)
            return False
        return os.access(folder, os.W_OK | os.X_OK)

    def _is_ours(self, folder: Path) -> bool:
        known = self._checked.get(folder)
        if known is None:
            try:
                known = _claim(folder)
            except FileNotFoundError:
                return False
            except OSError as error:
                log.info("compiled code in %s is not used: %s", folder, error)
                known = False
            self._checked[folder] = known
        return known


def read_own(path: Path) -> bytes:
    """The bytes of a file of this user's or root's. Raises OSError, for a symbolic link too."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if not _trusted(owner):
            raise PermissionError(f"the file belongs to user {owner}")
        return file.read()


def _trusted(owner: int) -> bool:
    return owner in (os.geteuid(), 0)


def _claim(folder: Path) -> bool:
    """True once only this user (or root) can have put anything there, or can put another folder in its place; empties
    one of ours that others could write to.

    Raises OSError, PermissionError among them, for a folder that does not count.
    """
    for step in _way_to(folder):
        _check_above(step)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.fstat(fd)
        if not _trusted(found.st_uid):
            raise PermissionError(f"the folder belongs to user {found.st_uid}")
        if not found.st_mode & _WRITABLE_BY_OTHERS:
            return True
        os.fchmod(fd, 0o700)
        for name in os.listdir(fd):
            os.unlink(name, dir_fd=fd)
        if os.fstat(fd).st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"others may write to it (mode {stat.S_IMODE(found.st_mode):o})")
        log.warning(
            "others could write to %s (mode %o): its code was removed", folder, found.st_mode & 0o7777
        )
        return True
    finally:
        os.close(fd)


def _way_to(folder: Path) -> Iterator[Path]:
    """The folders above a folder and the symbolic links on the way, from the root on, each before it is gone through."""
    at = Path("/")
    left = list(reversed(folder.absolute().parts[1:]))
    yield at
    while left:
        part = left.pop()
        step = at / part
        if part == "..":
            at = at.parent
        elif step.is_symlink():
            yield step
            target = step.readlink()
            if target.is_absolute():
                at = Path("/")
            left.extend(reversed([each for each in target.parts if each != "/"]))
        elif left:
            at = step
            yield at


def _check_above(step: Path) -> None:
    """Raises PermissionError when others may rename what is in a folder, or change where a link leads."""
    found = step.lstat()
    if not _trusted(found.st_uid):
        raise PermissionError(f"{step} above it belongs to user {found.st_uid}")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(
            f"others may write to {step} above it (mode {stat.S_IMODE(found.st_mode):o}); "
            "take that from them, or name another folder in lakeCompiledCodePath"
        )


def _path_in(value: str | None) -> Path | None:
    return Path(value) if value else None


def _user_folder() -> Path | None:
    cache = _path_in(os.environ.get("XDG_CACHE_HOME"))
    if cache is None or not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:  # no home is known
            return None
    return cache / "lakebroker" / "compiled" if cache.is_absolute() else None


CODE_FOLDERS = CodeFolders()
"""Of this process: compiled functions belong to it, not to a store."""
