"""The side file `erased`: which records of a store are erased, for readers by path.

The gateway writes it before it answers an erasure, and at its start; where there is none, nothing is erased. It may name
a former id of the store: offsets go on in a log that is begun, so what it says holds. Little-endian:

| section | content |
|---|---|
| header | magic, version (u4), log id (32 bytes), how many (i8), CRC-32 of the header before it and the offsets (u4) |
| offsets | where erased records begin, ascending (i8 each) |
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.log.permissions import open_new
from store.log.segment import sync_folder

ERASED_FILE = "erased"
Offsets = NDArray[np.int64]
NOTHING: Offsets = np.zeros(0, np.int64)
NOTHING.flags.writeable = False
_MAGIC = b"LKERASED"
_VERSION = 1
_HEADER = struct.Struct("<8sI32sq")
_CHECK = struct.Struct("<I")
_FRONT = _HEADER.size + _CHECK.size


class Erased:
    """Erased records of a store. Changed by the thread that appends; `offsets` is replaced, never changed. Others look up `places`, and
    do not go through it."""

    def __init__(self) -> None:
        self.offsets: Offsets = NOTHING
        """Where they begin, ascending."""
        self.places: set[int] = set()
        """The same, to look one up."""
        self.version = 0
        """As in `LogState`."""

    def among(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Which of these offsets are of erased records."""
        return among(self.offsets, offsets)

    def hold(self, offsets: Offsets) -> None:
        """From here on these are erased, and no others; `offsets` ascend."""
        self.places = set(offsets.tolist())
        self._put(offsets)

    def add(self, offsets: Offsets) -> None:
        """From here on these are erased, too; `offsets` ascend. Of many that were before nothing but the array is made anew."""
        self.places.update(offsets.tolist())
        self._put(together(self.offsets, offsets))

    def forget(self, below: int) -> None:
        """Those below an offset are not there any more."""
        gone = int(np.searchsorted(self.offsets, below))
        self.places.difference_update(self.offsets[:gone].tolist())
        if gone:
            self._put(self.offsets[gone:])

    def _put(self, offsets: Offsets) -> None:
        if offsets is not self.offsets:
            self.offsets = offsets
            self.version = version_of(offsets)


def among(known: Offsets, offsets: Offsets) -> NDArray[np.bool_]:
    """Which of the offsets are known; `known` ascend."""
    if not len(known):
        return np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
    found: NDArray[np.bool_] = known[at] == offsets
    return found


def together(known: Offsets, offsets: Offsets) -> Offsets:
    """Both, which ascend, each once; `known` itself where it has all. The fewer `offsets`, the less is done but copying."""
    fresh = offsets[~among(known, offsets)]
    if not len(fresh):
        return known
    return np.insert(known, np.searchsorted(known, fresh), fresh) if len(known) else fresh


def version_of(offsets: Offsets) -> int:
    """Of a list of erased records: 0 of none, else one that other lists have not, but for one in four billion."""
    count = len(offsets)
    return count << 32 | zlib_ng.crc32(np.ascontiguousarray(offsets, "<i8").data) if count else 0


def write_erased(root: Path, log_id: str, offsets: Offsets) -> None:
    """Writes the side file of the store in `root`, whole or not at all; on disk when it returns. Raises OSError."""
    data = offsets.astype("<i8").tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, log_id.encode(), len(offsets))
    staged = root / (ERASED_FILE + ".tmp")
    with open_new(staged, "wb") as file:
        file.write(header + _CHECK.pack(zlib_ng.crc32(data, zlib_ng.crc32(header))) + data)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(root / ERASED_FILE)
    sync_folder(root)


def read_erased(root: Path, log_ids: Iterable[str]) -> Offsets:
    """What the side file in `root` says; nothing where there is none. `log_ids`: of the store, former ones too.

    Raises StoreDamagedError for one that is damaged, or of another log.
    """
    path = root / ERASED_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return NOTHING
    remedy = "start the store's gateway, which writes it anew"
    if len(data) < _FRONT or not data.startswith(_MAGIC):
        raise StoreDamagedError(f"{path} is no list of erased records; {remedy}")
    _, version, log_id, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise StoreDamagedError(f"{path} has version {version}, {_VERSION} is known; take a later lakebroker")
    check = zlib_ng.crc32(data[_FRONT:], zlib_ng.crc32(data[: _HEADER.size]))
    if len(data) != _FRONT + 8 * count or check != _CHECK.unpack_from(data, _HEADER.size)[0]:
        raise StoreDamagedError(f"{path}, the list of erased records, is damaged; {remedy}")
    named = log_id.rstrip(b"\0").decode(errors="replace")
    if named not in log_ids:
        raise StoreDamagedError(
            f"{path} lists erased records of log {named}, which is not the store's; {remedy}"
        )
    return np.frombuffer(data, "<i8", offset=_FRONT).astype(np.int64)
