"""Staging a range that ends the process which stages it: in a child process, in halves, down to the record.

Staging itself finds records that fail (`rows/pieces.py`). What is left is a process that dies: it is killed for want of
memory, or native code crashes. The reput comes here when a batch has failed twice without a reason of ours. Whoever dies
here is the child, and the record that it dies for again, though not for a good one, goes to quarantine.

The child is given the range as bytes and answers with its manifest. Ranges that were cut have manifests of their own: they
join, as those of any batch do.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from store.scan import scan
from structured_streaming.errors import LakeError, StoreAwayError, with_causes
from structured_streaming.rows.pieces import good_record
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Rejected, subset
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import manifest
from structured_streaming.staging.stage import stage
from structured_streaming.staging.table_file import write_file
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import QUARANTINE
from structured_streaming.typed.declaration import packed, unpacked
from structured_streaming.without_pandas import leave_pandas_out

Chunks = list[tuple[int, bytes]]
ATTEMPT_S = 600.0
"""What staging a range in a child may take."""
_FAILED, _AWAY = 3, 4
"""Exit statuses of a child that wrote its error to standard error: any error, and a store that is away."""
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask a process to end: no record does that."""


class _DiedError(Exception):
    """The child did not end by itself."""


def stage_carefully(
    lake: str, part: LogRange, chunks: Iterable[tuple[int, bytes | memoryview]], wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    """As `stage`, with one manifest or several. The range is in memory whole. Raises LakeError."""
    whole = [(offset, bytes(data)) for offset, data in chunks]
    yield from _stage(lake, part, whole, wanted)


def _stage(lake: str, part: LogRange, chunks: Chunks, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    try:
        yield _in_child(lake, part, chunks, wanted)
    except _DiedError as error:
        middle = _middle(part, chunks)
        if middle is None:
            yield _alone(lake, part, chunks, wanted, error)
            return
        for start, end in ((part.start, middle), (middle, part.end)):
            half = dataclasses.replace(part, start=start, end=end)
            yield from _stage(lake, half, list(_within(chunks, start, end)), wanted)


def _alone(lake: str, part: LogRange, chunks: Chunks, wanted: Wanted, died: _DiedError) -> pa.RecordBatch:
    """The manifest of a record that a child died for. Memory may have been short, or the store slow: a good record tells whether that
    is so now, and the next child whether it is over. Raises LakeError for a death that is no record's."""
    data = good_record()
    good = dataclasses.replace(part, start=0, end=len(data), log_end=len(data), erased=())
    try:
        staged = _in_child(lake, good, [(0, data)], wanted)
    except _DiedError as error:
        raise LakeError(
            f"{died}, and so it is with a good record: {error}; give Spark's machine more memory, or find what ends its processes"
        ) from error
    for file in staged.to_pylist():
        if file["path"]:
            lake_folder(lake).child(file["table"]).remove(file["path"])
    try:
        return _in_child(lake, part, chunks, wanted)
    except _DiedError as error:
        return _quarantined(lake, part, chunks, str(error))


def _in_child(lake: str, part: LogRange, chunks: Chunks, wanted: Wanted) -> pa.RecordBatch:
    """The manifest that a child makes. Raises _DiedError, LakeError and StoreAwayError for what it says."""
    header = {
        "lake": lake,
        "part": {field.name: getattr(part, field.name) for field in dataclasses.fields(part)},
        "tables": sorted(wanted.tables),
        "without_bodies": wanted.without_bodies,
        "typed": packed(wanted.typed),
        "chunks": [(offset, len(data)) for offset, data in chunks],
    }
    given = json.dumps(header).encode() + b"\n" + b"".join(data for _, data in chunks)
    try:
        child = subprocess.run(
            [sys.executable, "-m", "structured_streaming.staging.careful"],
            input=given,
            capture_output=True,
            timeout=ATTEMPT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _DiedError(f"staging did not end in {ATTEMPT_S:g} s") from error
    if child.returncode in (_FAILED, _AWAY):
        kind = LakeError if child.returncode == _FAILED else StoreAwayError
        raise kind(child.stderr.decode("utf-8", "replace").strip()[-2000:])
    if -child.returncode in _ASKED:
        ended_by = signal.Signals(-child.returncode).name
        raise LakeError(f"the process that stages a batch was ended by {ended_by}; the batch is staged again")
    if child.returncode:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
        raise _DiedError(f"the process that staged it ended with {how}")
    return next(iter(pa.ipc.open_stream(child.stdout)))


def _middle(part: LogRange, chunks: Chunks) -> int | None:
    """Where a record begins near the middle of a range; None when there is one record at most."""
    found: list[int] = []
    for offset, data in chunks:
        found += scan(data, offset, segment_size=part.segment_size).physical_offset.tolist()
    inner = [offset for offset in found if part.start < offset < part.end]
    return inner[len(inner) // 2] if inner else None


def _within(chunks: Chunks, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    for offset, data in chunks:
        first, last = max(offset, start), min(offset + len(data), end)
        if first < last:
            yield first, data[first - offset : last - offset]


def _quarantined(lake: str, part: LogRange, chunks: Chunks, reason: str) -> pa.RecordBatch:
    """The manifest of a range whose bytes are in quarantine."""
    data = b"".join(each for _, each in chunks)
    bytes_alone = subset(scan(data, part.start, segment_size=part.segment_size), np.empty(0, dtype=np.intp))
    rejected = [Rejected(part.start, part.end - part.start, reason)]
    file = write_file(
        lake_folder(lake), QUARANTINE, quarantine(part.broker, part.log_id, bytes_alone, rejected)
    )
    return manifest(part, 1, [(QUARANTINE.name, file)])


def _child(given: BinaryIO, answer: BinaryIO) -> None:
    """Stages what `_in_child` gives."""
    header: dict[str, Any] = json.loads(given.readline())
    part = LogRange(**header["part"])
    without = tuple(header["without_bodies"])
    chosen = Wanted(frozenset(header["tables"]), without, unpacked(header["typed"]))
    chunks = [(offset, given.read(length)) for offset, length in header["chunks"]]
    (found,) = stage(header["lake"], part, iter(chunks), chosen)
    with pa.ipc.new_stream(answer, found.schema) as stream:
        stream.write_batch(found)


def _main() -> None:
    leave_pandas_out()
    try:
        _child(sys.stdin.buffer, sys.stdout.buffer)
    except Exception as error:  # said by the parent
        sys.stderr.write(
            f"{error}\n" if isinstance(error, LakeError) else f"{type(error).__name__}: {error}\n"
        )
        sys.exit(_AWAY if any(isinstance(each, StoreAwayError) for each in with_causes(error)) else _FAILED)


if __name__ == "__main__":
    _main()
