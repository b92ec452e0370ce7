"""Temporary folders that go with their process: when it ends, or, where it was killed, when another one makes its own.

| step | what it is for |
|---|---|
| whoever makes a folder locks it (flock) until the process ends, however it ends | nobody takes it for a dead one's |
| and then puts `MARK` into it | folders of others, that only have such a name, are left alone |
| whoever makes one removes those of this user with a mark and no lock, in the same place | what was left by `kill -9`, or a power cut, does not pile up |

A system without locks of folders keeps what was left.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile

MARK = ".lakebroker-scratch"
SPARK, SQL = "lakebroker-spark-", "lakebroker-sql-"
_NAME = re.compile(f"(?:{SPARK}|{SQL})[a-z0-9_]{{8}}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_locks: dict[str, int] = {}
"""Descriptors that hold the locks of this process's folders."""


def scratch_folder(within: str = "", prefix: str = SPARK) -> str:
    """A new folder for what nobody needs later, in a folder that is there, else the system's; removed when the interpreter
    ends. Raises OSError."""
    place = within or tempfile.gettempdir()
    remove_left(within)
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    atexit.register(remove_scratch, folder)
    lock = os.open(folder, _FOLDER)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a system without locks
        os.close(lock)
        return folder
    _locks[folder] = lock
    os.close(os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return folder


def remove_scratch(folder: str) -> None:
    """Before the interpreter ends."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


def remove_all() -> None:
    """All of this process, before it ends without the interpreter's leave."""
    for folder in list(_locks):
        remove_scratch(folder)


def remove_left(within: str = "") -> None:
    """Removes those that processes left in a folder, else the system's, which are not there any more."""
    place = within or tempfile.gettempdir()
    try:
        names = [name for name in os.listdir(place) if _NAME.fullmatch(name)]
    except OSError:
        return  # whoever makes one there is told
    for name in names:
        folder = os.path.join(place, name)
        if not os.path.lexists(os.path.join(folder, MARK)):
            continue
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def free_bytes(folder: str) -> int:
    """On the disk of a folder. Raises OSError."""
    return shutil.disk_usage(folder).free


def _locked(folder: str) -> int | None:
    """A lock of a folder of this user whose process is gone; None for any other."""
    try:
        lock = os.open(folder, _FOLDER)
    except OSError:
        return None
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
