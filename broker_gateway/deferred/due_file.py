"""Files of what is due: entries as they were at a place of the log, so that a start reads the log from there on only.

`lakedeferred/NAME.due` in the store, each replaced whole. Little-endian:

| field | bytes | |
|---|---|---|
| magic | 8 | `LBDUE002`; `LBDUE001`, as older versions wrote it, has no sizes |
| log id | 32 | of the log that the entries are of, ASCII |
| position | 8 | physical offset: the file knows what is below it |
| count | 8 | entries |
| due, key, mark, size | 8n, 8n, 4n, 4n | see `due_table.py` |
| CRC-32 | 4 | of all before |
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from broker_gateway.deferred.due_table import Columns
from store.log.permissions import folder_mode, open_new
from store.log.segment import sync_folder

FOLDER = "lakedeferred"
_HEAD = struct.Struct("<8s32sqq")
_MAGIC, _WITHOUT_SIZES = b"LBDUE002", b"LBDUE001"
_CRC = struct.Struct("<I")
_ENTRY_BYTES = {_MAGIC: 24, _WITHOUT_SIZES: 20}


class DueFileError(Exception):
    """The file is damaged, or another log's."""


class Saved(NamedTuple):
    """Entries, and the physical offset below which they know the log. `sized`: whether the sizes are known, else 0."""

    position: int
    columns: Columns
    sized: bool = True


def save(root: Path, name: str, log_id: str, saved: Saved) -> int:
    """Writes a file of the store in `root`, and has it on disk; its size in bytes. Raises OSError."""
    folder = root / FOLDER
    folder.mkdir(mode=folder_mode(), exist_ok=True)
    due, key, mark, size = saved.columns
    head = _HEAD.pack(_MAGIC, log_id.encode(), saved.position, len(due))
    numbers = due.astype("<i8").data, key.astype("<i8").data, mark.astype("<u4").data, size.astype("<u4").data
    content = b"".join((head, *numbers))
    staged, path = folder / f"{name}.tmp", folder / f"{name}.due"
    with open_new(staged, "wb") as file:
        file.write(content)
        file.write(_CRC.pack(zlib_ng.crc32(content)))
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_folder(folder)
    return len(content) + _CRC.size


def remove(root: Path, name: str) -> None:
    """There is no such file any more. Raises OSError."""
    (root / FOLDER / f"{name}.due").unlink(missing_ok=True)


def load(root: Path, name: str, log_id: str) -> Saved | None:
    """What a file says; None when there is none. One of a former log of the store does not count: that may have lost its end.
    Raises DueFileError, OSError."""
    path = root / FOLDER / f"{name}.due"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        magic, named, position, count = _HEAD.unpack_from(content)
        whole = len(content) == _HEAD.size + count * _ENTRY_BYTES.get(magic, 0) + _CRC.size
        (crc,) = _CRC.unpack(content[-_CRC.size :])
    except struct.error as error:
        raise DueFileError(f"{path} is cut off") from error
    if magic not in _ENTRY_BYTES or count < 0 or not whole or crc != zlib_ng.crc32(content[: -_CRC.size]):
        raise DueFileError(f"{path} is damaged")
    if named != log_id.encode():
        raise DueFileError(f"{path} is of another log, {named.decode('ascii', 'replace')}")
    at = _HEAD.size
    due = np.frombuffer(content, "<i8", count, at).astype(np.int64)
    key = np.frombuffer(content, "<i8", count, at + 8 * count).astype(np.int64)
    mark = np.frombuffer(content, "<u4", count, at + 16 * count).astype(np.uint32)
    sized = magic == _MAGIC
    size = np.frombuffer(content, "<u4", count, at + 20 * count) if sized else np.zeros(count)
    return Saved(position, Columns(due, key, mark, size.astype(np.uint32)), sized)
