"""The compiled part of the scan (numba). Arrays in, arrays out; nothing is read outside of the buffer.

`walk` fills one row of `COLUMNS` 64-bit integers for each record (`store/kernels/row.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.delay_levels import DEFAULT_DELAY_LEVELS_MS
from store.kernels.compiled import compiled, inlined
from store.kernels.fields import copy, i32, i64, u32
from store.kernels.row import (
    BAD_HEADER,
    BLANK,
    BODY_CRC,
    BODY_LENGTH,
    BODY_START,
    BORN_HOST_START,
    BORN_TIMESTAMP,
    COLUMNS,
    CRC_EXPECTED,
    END,
    FLAG,
    FULL,
    GOOD,
    POSITION,
    PREPARED_OFFSET,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    STORE_HOST_START,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_LENGTH,
    TOPIC_START,
    TORN,
    ZERO,
)

_MAGIC_V1 = 0xDAA320A7
_MAGIC_V2 = 0xDAA320AB
_BLANK_MAGIC = 0xCBD43194
_LEAST = 48 + 8 + 8 + 8 + 16 + 1 + 2
_TAGS = np.frombuffer(b"TAGS", dtype=np.uint8)
_DELAY = np.frombuffer(b"DELAY", dtype=np.uint8)
_CRC = np.frombuffer(b"__CRC32#\x01", dtype=np.uint8)
_SCHEDULE = np.frombuffer(b"SCHEDULE_TOPIC_XXXX", dtype=np.uint8)
_LEVELS_MS = np.array(DEFAULT_DELAY_LEVELS_MS, dtype=np.int64)

Array = NDArray[Any]


@compiled
def _header(data: Array, base: int, at: int, row: Array, segment_size: int) -> int:
    """Checks what stands at `at` and says what it is; of a record fills `row` up to PROPERTIES_LENGTH, of a blank SIZE.

    A blank reaches exactly to the end of its segment. Segments begin at multiples of their size.
    """
    end = len(data)
    if at + 8 > end:
        for i in range(at, end):
            if data[i] != 0:
                return TORN
        return ZERO if at < end else END
    size = i32(data, at)
    magic = u32(data, at + 4)
    if magic == _BLANK_MAGIC:
        if size < 8 or size != segment_size - (base + at) % segment_size:
            return BAD_HEADER
        row[SIZE] = size
        return BLANK
    if size == 0:
        return ZERO
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return BAD_HEADER
    if size < _LEAST:
        return BAD_HEADER
    if at + 48 > end:
        return TORN
    if i64(data, at + 28) != base + at:
        return BAD_HEADER
    if at + size > end:
        return TORN
    stop = at + size
    sys_flag = i32(data, at + 36)
    row[POSITION] = at
    row[SIZE] = size
    row[BODY_CRC] = i32(data, at + 8)
    row[QUEUE_ID] = i32(data, at + 12)
    row[FLAG] = i32(data, at + 16)
    row[QUEUE_OFFSET] = i64(data, at + 20)
    row[SYS_FLAG] = sys_flag
    row[BORN_TIMESTAMP] = i64(data, at + 40)
    cursor = at + 48
    row[BORN_HOST_START] = cursor
    cursor += 20 if sys_flag & 0x10 else 8
    if cursor + 8 > stop:
        return BAD_HEADER
    row[STORE_TIMESTAMP] = i64(data, cursor)
    cursor += 8
    row[STORE_HOST_START] = cursor
    cursor += 20 if sys_flag & 0x20 else 8
    if cursor + 16 > stop:
        return BAD_HEADER
    row[RECONSUME_TIMES] = i32(data, cursor)
    row[PREPARED_OFFSET] = i64(data, cursor + 4)
    body_length = i32(data, cursor + 12)
    cursor += 16
    if body_length < 0 or cursor + body_length > stop:
        return BAD_HEADER
    row[BODY_START] = cursor
    row[BODY_LENGTH] = body_length
    cursor += body_length
    if magic == _MAGIC_V2:
        if cursor + 2 > stop:
            return BAD_HEADER
        topic_length = (np.int64(data[cursor]) << 8) | np.int64(data[cursor + 1])
        cursor += 2
    else:
        if cursor + 1 > stop:
            return BAD_HEADER
        topic_length = np.int64(data[cursor])
        cursor += 1
    if cursor + topic_length + 2 > stop:
        return BAD_HEADER
    row[TOPIC_START] = cursor
    row[TOPIC_LENGTH] = topic_length
    cursor += topic_length
    properties_length = (np.int64(data[cursor]) << 8) | np.int64(data[cursor + 1])
    cursor += 2
    if cursor + properties_length != stop:
        return BAD_HEADER
    if properties_length > 0 and data[stop - 1] == 0:
        return BAD_HEADER  # the end was never written: properties end with their separator
    row[PROPERTIES_START] = cursor
    row[PROPERTIES_LENGTH] = properties_length
    return GOOD


@compiled
def _same(data: Array, at: int, length: int, other: Array) -> bool:
    if length != len(other):
        return False
    for i in range(length):
        if data[at + i] != other[i]:
            return False
    return True


@inlined
def wins(length: int, earlier: int, earlier_length: int) -> bool:
    """Whether a value of `length` takes the place of an earlier one (-1: none) of the same key: the last does,
    but an empty one counts as absent, as in RocketMQ."""
    return earlier < 0 or length > 0 or earlier_length == 0


@compiled
def _value(data: Array, start: int, length: int, name: Array) -> tuple[int, int]:
    """Start (-1: absent) and length of a property's value; of a repeated one as `wins` says."""
    one = np.uint64(1)  # unsigned positions are not looked at for being negative
    at = np.uint64(start)
    end = at + np.uint64(length)
    found, found_length = np.int64(-1), np.int64(0)
    while at < end:
        split = at
        while split < end and data[split] != 1 and data[split] != 2:
            split += one
        stop = split
        while stop < end and data[stop] != 2:
            stop += one
        if split < stop and _same(data, np.int64(at), np.int64(split - at), name):
            size = np.int64(stop - split) - 1
            if wins(size, found, found_length):
                found, found_length = np.int64(split) + 1, size
        at = stop + one
    return found, found_length


@compiled
def _hash_on(data: Array, start: int, length: int, value: int) -> int:
    """String.hashCode of a text whose first part has the hash `value`: over UTF-16 units, unsigned 32 bits."""
    at, end = start, start + length
    while at < end:
        first = np.int64(data[at])
        if first < 0x80:
            code, step = first, 1
        elif first < 0xE0:
            code, step = first & 0x1F, 2
        elif first < 0xF0:
            code, step = first & 0x0F, 3
        else:
            code, step = first & 0x07, 4
        for i in range(1, step):
            if at + i < end:
                code = (code << 6) | (np.int64(data[at + i]) & 0x3F)
        at += step
        if code >= 0x10000:
            code -= 0x10000
            value = (value * 31 + 0xD800 + (code >> 10)) & 0xFFFFFFFF
            code = 0xDC00 + (code & 0x3FF)
        value = (value * 31 + code) & 0xFFFFFFFF
    return value


@compiled
def _signed(value: int) -> int:
    return value - (np.int64(1) << 32) if value >= (np.int64(1) << 31) else value


@compiled
def _java_hash(data: Array, start: int, length: int) -> int:
    """String.hashCode of UTF-8 text: over UTF-16 units, signed 32 bits."""
    return _signed(_hash_on(data, start, length, np.int64(0)))


@compiled
def key_hashes(
    data: Array,
    rows: Array,
    topic_start: Array,
    topic_length: Array,
    start: Array,
    length: Array,
    between: Array,
) -> Array:
    """RocketMQ's index hash of `topic`, `between` and each key: |hashCode|, 0 for the smallest number.

    `rows` says whose topic goes with each key.
    """
    hashes = np.empty(len(rows), dtype=np.int64)
    for i in range(len(rows)):
        value = _hash_on(data, topic_start[rows[i]], topic_length[rows[i]], np.int64(0))
        for j in range(len(between)):
            value = (value * 31 + np.int64(between[j])) & 0xFFFFFFFF
        found = _signed(_hash_on(data, start[i], length[i], value))
        if found < 0:
            found = -found
        hashes[i] = 0 if found > 0x7FFFFFFF else found
    return hashes


@compiled
def _derive(data: Array, row: Array) -> None:
    """Tags code and, where the last property is the record's CRC, the value it states."""
    start, length = row[PROPERTIES_START], row[PROPERTIES_LENGTH]
    tag, tag_length = _value(data, start, length, _TAGS)
    row[TAGS_CODE] = _java_hash(data, tag, tag_length) if tag_length > 0 else 0
    if _same(data, row[TOPIC_START], row[TOPIC_LENGTH], _SCHEDULE):
        at, digits = _value(data, start, length, _DELAY)
        level = np.int64(0)
        for i in range(digits):
            digit = np.int64(data[at + i]) - 48
            if digit < 0 or digit > 9:
                level = np.int64(0)
                break
            level = min(level * 10 + digit, len(_LEVELS_MS))
        if level > 0:
            row[TAGS_CODE] = row[STORE_TIMESTAMP] + _LEVELS_MS[level - 1]
    row[CRC_EXPECTED] = -1
    if length >= 20:
        at = start + length - 20
        if _same(data, at, 9, _CRC) and data[start + length - 1] == 2:
            value, factor = np.int64(0), np.int64(1)
            for i in range(10):
                digit = np.int64(data[at + 9 + i]) - 48
                if digit < 0 or digit > 9:
                    value = np.int64(1) << 40  # matches no CRC
                    break
                value += digit * factor
                factor *= 10
            row[CRC_EXPECTED] = value


@compiled
def walk(data: Array, base: int, start: int, most: int, segment_size: int) -> tuple[Array, int, int, int]:
    """Rows of up to `most` records from `start` on, their number, where the walk stopped, and why."""
    rows = np.empty((most, COLUMNS), dtype=np.int64)
    at, count = np.int64(start), 0
    scratch = np.empty(COLUMNS, dtype=np.int64)
    while count < most:
        kind = _header(data, base, at, scratch, segment_size)
        if kind == BLANK:
            size = scratch[SIZE]
            if at + size >= len(data):
                return rows, count, len(data), END
            at += size
            continue
        if kind != GOOD:
            return rows, count, at, kind
        _derive(data, scratch)
        rows[count, :] = scratch
        count += 1
        at += scratch[SIZE]
    return rows, count, at, FULL


@compiled
def resynchronise(data: Array, base: int, start: int, stop: int, segment_size: int) -> int:
    """The first position of [start, stop) where a record's header checks out; -1 without one.

    The record may end behind `stop`.
    """
    row = np.empty(COLUMNS, dtype=np.int64)
    for at in range(start, min(stop, len(data) - _LEAST + 1)):
        if (
            data[at + 4] == 0xDA
            and data[at + 5] == 0xA3
            and data[at + 6] == 0x20
            and _header(data, base, at, row, segment_size) == GOOD
        ):
            return at
    return -1


@compiled
def copy_slices(data: Array, start: Array, offsets: Array) -> Array:
    """The bytes `start[i]` … of length `offsets[i + 1] - offsets[i]`, one slice behind the other."""
    out = np.empty(offsets[-1], dtype=np.uint8)
    for i in range(len(start)):
        copy(out, offsets[i], data, start[i], offsets[i + 1] - offsets[i])
    return out


@compiled
def find_properties(
    data: Array, start: Array, length: Array, names: Array, ends: Array
) -> tuple[Array, Array]:
    """Start (-1: absent) and length of each named property in every slice of properties, one pass for all.

    `names` holds the names one behind the other, `ends` where each ends. Rows are names, columns slices.
    """
    starts = np.full((len(ends), len(start)), -1, dtype=np.int64)
    lengths = np.zeros((len(ends), len(start)), dtype=np.int64)
    for i in range(len(start)):
        at, end = start[i], start[i] + length[i]
        while at < end:
            split = at
            while split < end and data[split] != 1 and data[split] != 2:
                split += 1
            stop = split
            while stop < end and data[stop] != 2:
                stop += 1
            if split < stop:
                first = np.int64(0)
                for k in range(len(ends)):
                    size = ends[k] - first
                    if size == split - at:
                        same = True
                        for j in range(size):
                            if data[at + j] != names[first + j]:
                                same = False
                                break
                        if same:
                            if wins(stop - split - 1, starts[k, i], lengths[k, i]):
                                starts[k, i] = split + 1
                                lengths[k, i] = stop - split - 1
                            break
                    first = ends[k]
            at = stop + 1
    return starts, lengths


@compiled
def _same_slice(data: Array, one: int, other: int, length: int) -> bool:
    first, second = (
        np.uint64(one),
        np.uint64(other),
    )  # unsigned positions are not looked at for being negative
    for step in range(np.uint64(length)):
        if data[first + step] != data[second + step]:
            return False
    return True


@compiled
def _without_repeated(data: Array, found: Array, first: int, count: int) -> int:
    """Leaves one of each key in the columns [first, count) of `found`, as `wins` says; returns where they end now."""
    size = 2 * (count - first) + 1
    slots = np.full(size, -1, dtype=np.int64)  # columns by the hash of their key
    kept = first
    for entry in range(first, count):
        at, length = found[0, entry], found[1, entry]
        value = np.uint64(14695981039346656037)
        for i in range(at, at + length):
            value = (value ^ np.uint64(data[i])) * np.uint64(1099511628211)
        slot = np.int64((value >> np.uint64(20)) % np.uint64(size))
        while slots[slot] >= 0:
            known = slots[slot]
            if found[1, known] == length and _same_slice(data, found[0, known], at, length):
                break
            slot = (slot + 1) % size
        known = slots[slot]
        if known < 0:
            slots[slot] = kept
            for column in range(4):
                found[column, kept] = found[column, entry]
            kept += 1
        elif wins(found[3, entry], found[2, known], found[3, known]):
            found[2, known] = found[2, entry]
            found[3, known] = found[3, entry]
    return kept


@compiled
def split_properties(data: Array, start: Array, length: Array) -> tuple[Array, Array]:
    """Row offsets, and a column for each property: key start and length, value start and length.

    A key stands once in a row (`wins`).
    """
    total = 0
    one = np.uint64(1)  # unsigned positions are not looked at for being negative: several times as fast
    for i in range(len(start)):
        begin = np.uint64(start[i])
        for step in range(np.uint64(length[i])):
            total += data[begin + step] == 2
        total += length[i] > 0 and data[start[i] + length[i] - 1] != 2
    rows = np.zeros(len(start) + 1, dtype=np.int64)
    found = np.empty((4, total), dtype=np.int64)
    key_start, key_length, value_start, value_length = found[0], found[1], found[2], found[3]
    count = 0
    for i in range(len(start)):
        at, first = np.uint64(start[i]), count
        end = at + np.uint64(length[i])
        seen = np.int64(0)  # bits of keys so far, by length and both ends: most keys are new by that alone
        repeated = False
        while at < end:
            split = at
            while split < end and data[split] != 1 and data[split] != 2:
                split += one
            stop = split
            while stop < end and data[stop] != 2:
                stop += one
            if split > at and split < stop:
                ends = 7 * np.int64(data[at]) + 31 * np.int64(data[split - one])
                bit = np.int64(1) << ((np.int64(split - at) + ends) & 63)
                repeated |= (seen & bit) != 0
                seen |= bit
                key_start[count] = at
                key_length[count] = split - at
                value_start[count] = split + one
                value_length[count] = stop - split - one
                count += 1
            at = stop + one
        if repeated:  # or it looks so
            count = _without_repeated(data, found, first, count)
        rows[i + 1] = count
    return rows, found[:, :count]


@compiled
def named_properties(
    data: Array, rows: Array, found: Array, names: Array, ends: Array
) -> tuple[Array, Array]:
    """As `find_properties`, in what `split_properties` returned."""
    starts = np.full((len(ends), len(rows) - 1), -1, dtype=np.int64)
    lengths = np.zeros((len(ends), len(rows) - 1), dtype=np.int64)
    begins = np.zeros(len(ends), dtype=np.int64)
    begins[1:] = ends[:-1]
    # the last name that begins with a byte, and for each the one before it
    heads = np.full(256, -1, dtype=np.int64)
    others = np.empty(len(ends), dtype=np.int64)
    for k in range(len(ends)):
        others[k] = heads[names[begins[k]]]
        heads[names[begins[k]]] = k
    for i in range(len(rows) - 1):
        for entry in range(rows[i], rows[i + 1]):
            at, size = found[0, entry], found[1, entry]
            k = heads[data[at]]
            while k >= 0:
                if ends[k] - begins[k] == size:
                    same = True
                    for j in range(1, size):
                        if data[at + j] != names[begins[k] + j]:
                            same = False
                            break
                    if same:
                        starts[k, i] = found[2, entry]
                        lengths[k, i] = found[3, entry]
                        break
                k = others[k]
    return starts, lengths


@compiled
def split_words(data: Array, start: Array, length: Array, separator: int) -> tuple[Array, Array, Array]:
    """Row offsets, word starts and lengths."""
    total = 0
    for i in range(len(start)):
        if start[i] >= 0:
            total += 1
            for at in range(start[i], start[i] + length[i]):
                total += data[at] == separator
    rows = np.zeros(len(start) + 1, dtype=np.int64)
    word_start = np.empty(total, dtype=np.int64)
    word_length = np.empty(total, dtype=np.int64)
    count = 0
    for i in range(len(start)):
        if start[i] >= 0:
            at, end = start[i], start[i] + length[i]
            while at < end:
                stop = at
                while stop < end and data[stop] != separator:
                    stop += 1
                if stop > at:
                    word_start[count] = at
                    word_length[count] = stop - at
                    count += 1
                at = stop + 1
        rows[i + 1] = count
    return rows, word_start[:count], word_length[:count]


@compiled
def dictionary(data: Array, start: Array, length: Array) -> tuple[Array, Array]:
    """A code for each slice, equal for equal bytes, and the row where each code first stands."""
    slots = np.full(1024, -1, dtype=np.int64)
    codes = np.empty(len(start), dtype=np.int32)
    firsts = np.empty(1024, dtype=np.int64)
    count = 0
    for i in range(len(start)):
        if i > 0 and length[i] == length[i - 1] and _same_slice(data, start[i - 1], start[i], length[i]):
            codes[i] = codes[i - 1]  # neighbours are often of one topic
            continue
        value = np.uint64(14695981039346656037)
        for at in range(start[i], start[i] + length[i]):
            value = (value ^ np.uint64(data[at])) * np.uint64(1099511628211)
        slot = np.int64(value % np.uint64(len(slots)))
        while True:
            known = slots[slot]
            if known < 0:
                if count == len(firsts):
                    bigger = np.empty(2 * count, dtype=np.int64)
                    bigger[:count] = firsts
                    firsts = bigger
                slots[slot] = count
                firsts[count] = i
                codes[i] = count
                count += 1
                break
            row = firsts[known]
            if length[row] == length[i]:
                same = True
                for k in range(length[i]):
                    if data[start[row] + k] != data[start[i] + k]:
                        same = False
                        break
                if same:
                    codes[i] = known
                    break
            slot = (slot + 1) % len(slots)
        if count * 2 > len(slots):
            slots = np.full(4 * len(slots), -1, dtype=np.int64)
            for code in range(count):
                row = firsts[code]
                value = np.uint64(14695981039346656037)
                for at in range(start[row], start[row] + length[row]):
                    value = (value ^ np.uint64(data[at])) * np.uint64(1099511628211)
                slot = np.int64(value % np.uint64(len(slots)))
                while slots[slot] >= 0:
                    slot = (slot + 1) % len(slots)
                slots[slot] = code
    return codes, firsts[:count]


@compiled
def split(data: Array, base: int, start: int, most: int, limit: int, segment_size: int) -> Array:
    """Positions that end pieces of at most `most` bytes, from `start` on; the last is where the walk ended.

    It ends before the record with which it would pass `limit` bytes, but takes one. A record or blank larger
    than `most` is not cut; what is neither is cut anywhere.
    """
    end = len(data)
    # two neighbouring pieces hold more than `most`, but for the last one
    cuts = np.empty(2 * min(end - start, limit) // most + 4, dtype=np.int64)
    count = 0
    row = np.empty(COLUMNS, dtype=np.int64)
    at, begin = np.int64(start), np.int64(start)
    while at < end and count < len(cuts) - 2:
        kind = _header(data, base, at, row, segment_size)
        if kind in (GOOD, BLANK):
            size = min(row[SIZE], end - at)
            if at > start and at + size - start > limit:
                break
            if kind == GOOD and at > begin and at + size - begin > most:
                cuts[count] = at
                count += 1
                begin = at
            at += size
            continue
        if at - start >= limit:
            break
        if at - begin > most:
            cuts[count] = at
            count += 1
            begin = at
        stop = min(end, start + limit, begin + most)
        found = resynchronise(data, base, at + 1, stop, segment_size)
        at = found if found >= 0 else stop
        if at - begin >= most:
            cuts[count] = at
            count += 1
            begin = at
    if at > begin:
        cuts[count] = at
        count += 1
    return cuts[:count]
