"""From a byte range of the log to columns, without Python work per record.

A compiled walk finds the records, then their CRCs are checked (by `zlib-ng`). What does not
check out becomes a quarantine row, and the walk resynchronises at the next position whose header does: a
known magic code, lengths that add up, and its own position as PHYSICALOFFSET. Layout: `store/log/record.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.kernels import row
from store.log.record import CRC_BYTES, SYS_COMMIT, SYS_TRANSACTION_MASK

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Mode = Literal["range", "tail"]
REASONS = {
    row.BAD_HEADER: "no record here: magic code, lengths or physical offset do not check out",
    row.TORN: "the record is longer than the range",
    row.ZERO: "zeros where a record should be",
}
BAD_CRC = "the CRC does not match"
_CHUNK = 32_768


@dataclass(slots=True)
class Scan:
    """Columns of n whole records; `*_start` are positions in `buffer`. Times in ms since the epoch.

    `next_offset` is the physical offset where the walk ended, `ended` why: at the end of the range, at zeros,
    at a torn record or (mode "tail") at a bad one. `bad_*` are the quarantine rows.
    """

    buffer: Bytes
    base_offset: int
    rows: Longs
    next_offset: int
    ended: Literal["end", "zero", "torn", "bad"]
    bad_offset: Longs
    bad_length: Longs
    bad_reason: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def physical_offset(self) -> Longs:
        return self.rows[:, row.POSITION] + self.base_offset

    @property
    def size(self) -> Longs:
        return self.rows[:, row.SIZE]

    @property
    def queue_id(self) -> Longs:
        return self.rows[:, row.QUEUE_ID]

    @property
    def flag(self) -> Longs:
        return self.rows[:, row.FLAG]

    @property
    def queue_offset(self) -> Longs:
        return self.rows[:, row.QUEUE_OFFSET]

    @property
    def sys_flag(self) -> Longs:
        return self.rows[:, row.SYS_FLAG]

    @property
    def born_timestamp(self) -> Longs:
        return self.rows[:, row.BORN_TIMESTAMP]

    @property
    def store_timestamp(self) -> Longs:
        return self.rows[:, row.STORE_TIMESTAMP]

    @property
    def reconsume_times(self) -> Longs:
        return self.rows[:, row.RECONSUME_TIMES]

    @property
    def prepared_transaction_offset(self) -> Longs:
        return self.rows[:, row.PREPARED_OFFSET]

    @property
    def born_host_start(self) -> Longs:
        return self.rows[:, row.BORN_HOST_START]

    @property
    def born_host_length(self) -> Longs:
        return np.where(self.sys_flag & 0x10, 20, 8)

    @property
    def store_host_start(self) -> Longs:
        return self.rows[:, row.STORE_HOST_START]

    @property
    def store_host_length(self) -> Longs:
        return np.where(self.sys_flag & 0x20, 20, 8)

    @property
    def body_start(self) -> Longs:
        return self.rows[:, row.BODY_START]

    @property
    def body_length(self) -> Longs:
        return self.rows[:, row.BODY_LENGTH]

    @property
    def topic_start(self) -> Longs:
        return self.rows[:, row.TOPIC_START]

    @property
    def topic_length(self) -> Longs:
        return self.rows[:, row.TOPIC_LENGTH]

    @property
    def properties_start(self) -> Longs:
        return self.rows[:, row.PROPERTIES_START]

    @property
    def properties_length(self) -> Longs:
        return self.rows[:, row.PROPERTIES_LENGTH]

    @property
    def tags_code(self) -> Longs:
        return self.rows[:, row.TAGS_CODE]


def as_bytes(buffer: bytes | bytearray | memoryview | Bytes) -> Bytes:
    """A read-only view of the buffer as an array of bytes: what is compiled for one kind of buffer serves all."""
    data = buffer[:] if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, dtype=np.uint8)
    data.flags.writeable = False
    return data


def scan(
    buffer: bytes | bytearray | memoryview | Bytes,
    base_offset: int,
    *,
    verify_crc: bool = True,
    mode: Mode = "range",
    segment_size: int | None = None,
) -> Scan:
    """Columns of the records in `buffer`, whose first byte has physical offset `base_offset`.

    `segment_size`, in bytes, says where a blank ends; None: the buffer ends where its segment does.

    Mode "range": every byte should belong to a record; whatever does not becomes a quarantine row, up to the
    end. Mode "tail": the first thing that does not check out ends the walk.
    """
    from store.kernels import walk  # compiled: loaded by who scans

    data = as_bytes(buffer)
    segment_size = segment_size or base_offset + len(data)
    blocks: list[Longs] = []
    bad: list[tuple[int, int, str]] = []
    position, ended = 0, "end"
    while position < len(data):
        rows, count, stopped, why = walk.walk(data, base_offset, position, _CHUNK, segment_size)
        rows = rows[:count]
        if verify_crc and count:
            rows, stopped, why = _verified(data, base_offset, segment_size, rows, stopped, why, mode, bad)
        blocks.append(rows)
        position = stopped
        if why == row.FULL:
            continue
        if why == row.END:
            break
        if mode == "tail" or why == _STOP:
            ended = {row.ZERO: "zero", row.TORN: "torn"}.get(why, "bad")
            break
        found = walk.resynchronise(data, base_offset, position + 1, len(data), segment_size)
        end = found if found >= 0 else len(data)
        bad.append((position, end - position, REASONS.get(why, BAD_CRC)))
        position = end
    bad.sort()
    return Scan(
        data,
        base_offset,
        _by_column(blocks),
        base_offset + position,
        ended,  # type: ignore[arg-type]
        np.array([each[0] for each in bad], dtype=np.int64) + base_offset,
        np.array([each[1] for each in bad], dtype=np.int64),
        [each[2] for each in bad],
    )


_STOP = -1


def _by_column(blocks: Sequence[Longs]) -> Longs:
    """All rows, the values of a column one behind the other: columns are what readers take."""
    rows = np.empty((sum(map(len, blocks)), row.COLUMNS), dtype=np.int64, order="F")
    if blocks:
        np.concatenate(blocks, out=rows)
    return rows


def _verified(
    data: Bytes,
    base_offset: int,
    segment_size: int,
    rows: Longs,
    stopped: int,
    why: int,
    mode: Mode,
    bad: list[tuple[int, int, str]],
) -> tuple[Longs, int, int]:
    """Rows whose CRC matches; others are quarantined, or end the walk (mode "tail", or a size that lies)."""
    from store.kernels import checked, walk  # compiled: loaded by who scans

    wrong = checked.wrong(data, rows) if checked.AVAILABLE else _wrong(data, rows)
    if not wrong.any():
        return rows, stopped, why
    for index in np.flatnonzero(wrong).tolist():
        position, size = int(rows[index, row.POSITION]), int(rows[index, row.SIZE])
        if mode == "tail":
            return rows[:index][~wrong[:index]], position, _STOP
        inner = walk.resynchronise(data, base_offset, position + 1, position + size, segment_size)
        if inner >= 0:
            bad.append((position, inner - position, BAD_CRC))
            return rows[:index][~wrong[:index]], inner, row.FULL
        bad.append((position, size, BAD_CRC))
    return rows[~wrong], stopped, why


def _wrong(data: Bytes, rows: Longs) -> NDArray[np.bool_]:
    """Which rows have another CRC than they state."""
    whole = rows[:, row.CRC_EXPECTED] >= 0
    starts = np.where(whole, rows[:, row.POSITION], rows[:, row.BODY_START])
    ends = np.where(
        whole,
        rows[:, row.POSITION] + rows[:, row.SIZE] - CRC_BYTES,
        rows[:, row.BODY_START] + rows[:, row.BODY_LENGTH],
    )
    view = data.data
    slices = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    actual = np.fromiter(map(zlib_ng.crc32, slices), dtype=np.int64, count=len(rows)) & 0x7FFFFFFF
    wrong: NDArray[np.bool_] = actual != np.where(whole, rows[:, row.CRC_EXPECTED], rows[:, row.BODY_CRC])
    return wrong


def gather(buffer: Bytes, start: Longs, length: Longs) -> tuple[Longs, Bytes]:
    """The slices one behind the other: offsets (n + 1) and bytes, as Arrow wants them. Negative starts: empty."""
    from store.kernels import walk  # compiled: loaded by who scans

    lengths = np.where(start < 0, 0, length)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, walk.copy_slices(as_bytes(buffer), np.ascontiguousarray(start), offsets)


def find_properties(scan: Scan, names: Sequence[bytes]) -> list[tuple[Longs, Longs]]:
    """For each name: start (-1: absent) and length of the property's value in every record."""
    from store.kernels import walk  # compiled: loaded by who scans

    starts, lengths = walk.find_properties(
        scan.buffer,
        np.ascontiguousarray(scan.properties_start),
        np.ascontiguousarray(scan.properties_length),
        np.frombuffer(b"".join(names), dtype=np.uint8),
        np.cumsum([len(name) for name in names]),
    )
    return list(zip(starts, lengths, strict=True))


def find_property(scan: Scan, name: bytes) -> tuple[Longs, Longs]:
    """Start (-1: absent) and length of the value of a property in every record."""
    return find_properties(scan, [name])[0]


@dataclass(slots=True)
class Properties:
    """All properties of n records: `offsets` (n + 1) of each record's, then a column of four for each property: start
    and length of key and value. A key stands once in a record."""

    buffer: Bytes
    offsets: Longs
    columns: Longs

    def find(self, names: Sequence[bytes]) -> list[tuple[Longs, Longs]]:
        """As `find_properties`."""
        from store.kernels import walk  # compiled: loaded by who scans

        joined = np.frombuffer(b"".join(names), dtype=np.uint8)
        ends = np.cumsum([len(name) for name in names])
        starts, lengths = walk.named_properties(self.buffer, self.offsets, self.columns, joined, ends)
        return list(zip(starts, lengths, strict=True))

    def take(self, rows: NDArray[np.intp]) -> Properties:
        """Those of some records, in their order."""
        offsets, index = take_lists(self.offsets, rows)
        return Properties(self.buffer, offsets, self.columns[:, index])


def take_lists(offsets: Longs, rows: NDArray[np.intp]) -> tuple[Longs, NDArray[np.intp] | slice]:
    """Of lists one behind the other: the offsets of some of them put so, and where their elements are."""
    if np.array_equal(rows, np.arange(len(offsets) - 1)):
        return offsets, slice(None)
    lengths = np.diff(offsets)[rows]
    taken = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=taken[1:])
    return taken, np.repeat(offsets[rows] - taken[:-1], lengths) + np.arange(taken[-1])


def split_properties(scan: Scan) -> Properties:
    """All properties of every record."""
    from store.kernels import walk  # compiled: loaded by who scans

    offsets, columns = walk.split_properties(
        scan.buffer,
        np.ascontiguousarray(scan.properties_start),
        np.ascontiguousarray(scan.properties_length),
    )
    return Properties(scan.buffer, offsets, np.ascontiguousarray(columns))


def split_words(
    buffer: Bytes, start: Longs, length: Longs, separator: int = 0x20
) -> tuple[Longs, Longs, Longs]:
    """Non-empty words of each slice: row offsets (n + 1), start and length of each word. Negative starts: none."""
    from store.kernels import walk  # compiled: loaded by who scans

    return walk.split_words(
        as_bytes(buffer), np.ascontiguousarray(start), np.ascontiguousarray(length), separator
    )


def topic_codes(scan: Scan) -> tuple[NDArray[np.int32], list[str]]:
    """Topics as a dictionary: a code for each record and the names, in order of appearance."""
    from store.kernels import walk  # compiled: loaded by who scans

    codes, firsts = walk.dictionary(
        scan.buffer, np.ascontiguousarray(scan.topic_start), np.ascontiguousarray(scan.topic_length)
    )
    offsets, data = gather(scan.buffer, scan.topic_start[firsts], scan.topic_length[firsts])
    joined, cuts = data.tobytes(), offsets.tolist()
    if joined.isascii():  # a hundred thousand names without a call for each
        text = joined.decode("ascii")
        return codes, [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    return codes, [joined[begin:end].decode("utf-8", "replace") for begin, end in itertools.pairwise(cuts)]


def by_queue(scan: Scan) -> tuple[Longs, list[tuple[tuple[str, int], int, int]]]:
    """Rows that have a queue entry, those of a queue together and in log order, and where each queue's are.

    The latter as ((topic, queue id), begin, end) in the former. Records prepared or rolled back have no entry.
    """
    kinds = scan.sys_flag & SYS_TRANSACTION_MASK
    rows = np.flatnonzero((kinds == 0) | (kinds == SYS_COMMIT))
    if not len(rows):
        return rows, []
    codes, names = topic_codes(scan)
    rows = rows[np.lexsort((rows, scan.queue_id[rows], codes[rows]))]
    topics, queues = codes[rows], scan.queue_id[rows]
    cuts = (np.flatnonzero((np.diff(topics) != 0) | (np.diff(queues) != 0)) + 1).tolist()
    return rows, [
        ((names[topics[begin]], int(queues[begin])), begin, end)
        for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
    ]


def warm() -> None:
    """Compiles, or loads what was compiled before."""
    from store.kernels import checked, walk  # compiled: loaded by who scans

    empty = scan(bytes(8), 0)
    if checked.AVAILABLE:
        checked.wrong(empty.buffer, empty.rows)
    walk.split(empty.buffer, 0, 0, 1, 1, 8)
    topic_codes(empty)
    find_properties(empty, [b"KEYS"])
