"""Writing a run to its file, as `run_file.py` has it."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.index.file_run import FileRun
from store.index.live_run import LiveRun
from store.index.run_file import (
    DIRECTORY,
    HEADER,
    HOLE,
    MAGIC,
    VERSION,
    Key,
    checks_of,
    key_hash,
)
from store.log.permissions import open_new
from store.log.segment import sync_folder


def write_run(run: LiveRun, folder: Path, log_id: str, next_offsets: Mapping[Key, int]) -> FileRun:
    """Writes a run, whole or not at all, and gives it as it is on disk. Raises OSError."""
    names, directory, order = _directory(run, next_offsets)
    header = HEADER.pack(
        MAGIC,
        VERSION,
        log_id.encode(),
        run.start,
        run.end,
        len(run.offsets),
        len(order),
        len(directory),
        len(names),
        0,
        0,
    )
    whole = _columns(run, order)
    checks = checks_of(memoryview(whole))
    header = header[:-8] + struct.pack("<I", zlib_ng.crc32(checks))
    check = zlib_ng.crc32(names, zlib_ng.crc32(directory.tobytes(), zlib_ng.crc32(header)))
    header += struct.pack("<I", check)
    path = folder / f"{run.start:020d}"
    staged = path.with_suffix(".tmp")
    with open_new(staged, "wb") as file:
        file.write(header)
        file.write(directory.tobytes())
        file.write(names)
        file.write(b"\0" * (-file.tell() % 8))
        file.write(whole)
        file.write(checks)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)
    sync_folder(folder)
    return FileRun(path)


def _columns(run: LiveRun, order: NDArray[np.uint32]) -> bytearray:
    """Offsets in log order; then offsets, sizes and tags codes in the order of queues. Each begins at a multiple of 8."""
    offsets = np.asarray(run.offsets)
    held = np.flatnonzero(order != HOLE)
    columns: list[NDArray[Any]] = [(offsets - run.start).astype("<u4")]
    sources: list[tuple[NDArray[Any], str]] = [
        (offsets - run.start, "<u4"),
        (np.asarray(run.sizes), "<i4"),
        (np.asarray(run.codes), "<i8"),
    ]
    for source, kind in sources:
        column = np.zeros(len(order), dtype=kind)
        column[held] = source[order[held]]
        columns.append(column)
    whole = bytearray()
    for column in columns:
        whole += column.tobytes()
        whole += b"\0" * (-len(whole) % 8)
    return whole


def _directory(
    run: LiveRun, next_offsets: Mapping[Key, int]
) -> tuple[bytes, NDArray[np.void], NDArray[np.uint32]]:
    """Names, directory and the rows of all entries in its order."""
    names = bytearray()
    places: dict[str, tuple[int, int]] = {}
    keys = list({**dict.fromkeys(run.queues), **next_offsets})
    directory = np.zeros(len(keys), dtype=DIRECTORY)
    for number, (topic, queue_id) in enumerate(keys):
        place = places.get(topic)
        if place is None:
            encoded = topic.encode()
            place = places[topic] = (len(names), len(encoded))
            names += encoded
        queue = run.queues.get((topic, queue_id))
        base, count = (queue.base, len(queue.rows)) if queue is not None else (0, 0)
        following = next_offsets.get((topic, queue_id), base + count)
        row = (key_hash((topic, queue_id)), *place, 0, queue_id, count, base, 0, following)
        directory[number] = row
    by_hash = np.lexsort((directory["queue_id"], directory["hash"]))
    directory = directory[by_hash]
    counts = directory["entries"].astype(np.int64)
    directory["first"] = np.cumsum(counts) - counts
    rows = b"".join(
        run.queues[keys[number]].rows.tobytes() for number in by_hash if keys[number] in run.queues
    )
    return bytes(names), directory, np.frombuffer(rows, dtype=np.uint32)
