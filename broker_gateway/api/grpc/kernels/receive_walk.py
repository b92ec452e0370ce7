"""Takes the records of a receive apart and writes what the consumer gets of each, in compiled code.

Only usual records are taken: of version 4 addresses, ASCII names and values, with a message id, none of its properties
twice, empty, or one of UNUSUAL_PROPERTIES. Of a body, digest and CRC are the caller's. The plain path is `shortcuts.StoredMessage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_gateway.api.grpc.send_checks import LATEST_BORN_S
from broker_gateway.api.grpc.shortcuts import UNUSUAL_PROPERTIES
from broker_gateway.delivery.handles import TEXT_LENGTH
from broker_gateway.metadata.names import RESERVED_PROPERTIES
from store.kernels.compiled import compiled
from store.kernels.fields import copy, digits, i64, same, u32
from store.log.record import MAGIC_V1, MAGIC_V2, SYS_BORN_HOST_V6, SYS_COMPRESSED, SYS_STORE_HOST_V6, USUAL

Array = NDArray[Any]

(
    START,
    END,
    DIGEST,
    MESSAGE_ID,
    MESSAGE_ID_LENGTH,
    TAG,
    TAG_LENGTH,
    BODY,
    BODY_LENGTH,
    BODY_CRC,
    ROW,
) = range(11)
"""A row: where in the output a response is, the 32 bytes for its digest, id and tag; where in the log its body is."""
MOST_PROPERTIES = 64
OUT_BYTES = 4 << 20
"""Of output: what does not fit goes the plain path."""

_SKIPPED, _ID, _TAGS, _KEYS, _BORN_HOST, _UNUSUAL, _USER = range(7)
_KINDS = {"UNIQ_KEY": _ID, "TAGS": _TAGS, "KEYS": _KEYS, "__BORNHOST": _BORN_HOST}
_KINDS |= dict.fromkeys(UNUSUAL_PROPERTIES, _UNUSUAL)
_NAMES = sorted(RESERVED_PROPERTIES)
assert _KINDS.keys() <= RESERVED_PROPERTIES
_TEXT = np.frombuffer("".join(_NAMES).encode(), dtype=np.uint8)
_SLOTS = 256
_HEAD = USUAL.size
"""Bytes of a record before its body."""
_LEAST_BYTES = _HEAD + 3
"""Of a record: with the lengths of topic and properties."""
_BORN_AT, _BORN_HOST_AT, _STORED_AT, _STORE_HOST_AT, _LENGTH_AT = 40, 48, 56, 64, _HEAD - 4
_LATEST_MS = LATEST_BORN_S * 1000 + 999
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)
_KEY, _KEY_LENGTH, _VALUE, _VALUE_LENGTH, _KIND, _HASH, PROPERTY = range(7)
"""A property: where its key and value are, what it is to a message, the hash of its key."""


def _hash_of(text: bytes) -> int:
    value = 0x811C9DC5
    for byte in text:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _table() -> Array:
    """Reserved names by the lowest bits of their hash, and the next free slot: where the name begins, its length, its kind."""
    table = np.zeros((_SLOTS, 3), dtype=np.int64)
    at = 0
    for name in _NAMES:
        slot = _hash_of(name.encode()) % _SLOTS
        while table[slot, 1]:
            slot = (slot + 1) % _SLOTS
        table[slot] = at, len(name), _KINDS.get(name, _SKIPPED)
        at += len(name)
    return table


_RESERVED = _table()


@compiled
def _varint_length(value: int) -> int:
    length = 1
    while value >= 0x80:
        value >>= 7
        length += 1
    return length


@compiled
def _varint(out: Array, at: int, value: int) -> int:
    while value >= 0x80:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@compiled
def _timestamp_length(ms: int) -> int:
    seconds, nanos = ms // 1000, ms % 1000 * 1_000_000
    length = 0
    if seconds:
        length += 1 + _varint_length(seconds)
    if nanos:
        length += 1 + _varint_length(nanos)
    return length


@compiled
def _timestamp(out: Array, at: int, field: int, ms: int) -> int:
    seconds, nanos = ms // 1000, ms % 1000 * 1_000_000
    out[at] = field
    out[at + 1] = _timestamp_length(ms)
    at += 2
    if seconds:
        out[at] = 0x08
        at = _varint(out, at + 1, seconds)
    if nanos:
        out[at] = 0x10
        at = _varint(out, at + 1, nanos)
    return at


@compiled
def _address(out: Array, at: int, data: Array, host: int) -> int:
    """An address of version 4 as text."""
    for place in range(4):
        if place:
            out[at] = 0x2E
            at += 1
        at = digits(out, at, np.int64(data[host + place]))
    return at


@compiled
def _handle(out: Array, at: int, packed: Array) -> int:
    """The 21 bytes as base64."""
    for place in range(0, 21, 3):
        three = np.int64(packed[place]) << 16 | np.int64(packed[place + 1]) << 8 | np.int64(packed[place + 2])
        out[at] = _BASE64[three >> 18]
        out[at + 1] = _BASE64[three >> 12 & 63]
        out[at + 2] = _BASE64[three >> 6 & 63]
        out[at + 3] = _BASE64[three & 63]
        at += 4
    return at


@compiled
def _kind(data: Array, start: int, length: int, value: int) -> int:
    """What a property of that name, with that hash, is to a message."""
    slot = value % _SLOTS
    while _RESERVED[slot, 1]:
        if _RESERVED[slot, 1] == length and same(data, start, _TEXT, _RESERVED[slot, 0], length):
            return np.int64(_RESERVED[slot, 2])
        slot = (slot + 1) % _SLOTS
    return np.int64(_USER)


@compiled
def _properties(data: Array, at: int, stop: int, found: Array) -> int:
    """Fills `found` with the properties from `at` to `stop`; how many, or -1 when one is unusual."""
    count = np.int64(0)
    while at < stop:
        if count == len(found):
            return np.int64(-1)
        one = found[count]
        start = at
        value = np.uint32(0x811C9DC5)
        while at < stop and data[at] > 2 and data[at] < 0x80:
            value = np.uint32((value ^ np.uint32(data[at])) * np.uint32(0x01000193))
            at += 1
        if at in (stop, start) or data[at] != 1:
            return np.int64(-1)
        one[_KEY], one[_KEY_LENGTH] = start, at - start
        at += 1
        start = at
        while at < stop and data[at] != 2 and data[at] < 0x80:
            at += 1
        if at == start or (at < stop and data[at] != 2):
            return np.int64(-1)
        one[_VALUE], one[_VALUE_LENGTH] = start, at - start
        at += 1
        number = np.int64(value)
        for other in range(count):
            if found[other, _HASH] == number:
                return np.int64(-1)
        one[_HASH] = number
        one[_KIND] = _kind(data, one[_KEY], one[_KEY_LENGTH], number)
        if one[_KIND] == _UNUSUAL:
            return np.int64(-1)
        count += 1
    return count


@compiled
def _texts_length(field_bytes: int, length: int) -> int:
    return field_bytes + _varint_length(length) + length


@compiled
def _entry_length(one: Array) -> int:
    """Of the map entry of a user's property."""
    return _texts_length(1, one[_KEY_LENGTH]) + _texts_length(1, one[_VALUE_LENGTH])


@compiled
def _keys(out: Array, at: int, data: Array, start: int, length: int, write: bool) -> int:
    """The system property keys, of names with spaces between them; returns where it ends."""
    begin = start
    for place in range(start, start + length + 1):
        if place == start + length or data[place] == 0x20:
            size = place - begin
            if size:
                if write:
                    out[at] = 0x12
                    end = _varint(out, at + 1, size)
                    copy(out, end, data, begin, size)
                at += _texts_length(1, size)
            begin = place + 1
    return at


@compiled
def _record(
    data: Array,
    begin: int,
    stop: int,
    topic: Any,
    duration: Any,
    packed: Array,
    found: Array,
    texts: Array,
    out: Array,
    at: int,
    row: Array,
) -> int:
    """Writes the response of the record [begin, stop) to `at` of `out`; where it ends, or -1 for the plain path."""
    unusual = np.int64(-1)
    if stop - begin < _LEAST_BYTES or u32(data, begin) != stop - begin:
        return unusual
    magic, sys_flag = u32(data, begin + 4), u32(data, begin + 36)
    if sys_flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6):
        return unusual
    queue_id, queue_offset = u32(data, begin + 12), i64(data, begin + 20)
    born, stored = i64(data, begin + _BORN_AT), i64(data, begin + _STORED_AT)
    if (
        queue_id >= 1 << 31
        or queue_offset < 0
        or not 0 <= born <= _LATEST_MS
        or not 0 <= stored <= _LATEST_MS
    ):
        return unusual
    body, body_length = begin + _HEAD, u32(data, begin + _LENGTH_AT)
    place = body + body_length
    if place + 4 > stop:
        return unusual
    if magic == MAGIC_V1:
        length = np.int64(data[place])
        place += 1
    elif magic == MAGIC_V2:
        length = np.int64(data[place]) << 8 | np.int64(data[place + 1])
        place += 2
    else:
        return unusual
    if place + length + 2 > stop:
        return unusual
    for each in range(place, place + length):
        if data[each] >= 0x80:
            return unusual
    place += length
    length = np.int64(data[place]) << 8 | np.int64(data[place + 1])
    place += 2
    if place + length != stop:
        return unusual
    count = _properties(data, place, stop, found)
    if count < 0:
        return unusual

    message_id = tags = keys = born_host = np.int64(-1)
    users = np.int64(0)
    for number in range(count):
        one = found[number]
        kind = one[_KIND]
        if kind == _USER:
            entry = _entry_length(one)
            users += _texts_length(1, entry)
        elif kind == _ID:
            message_id = number
        elif kind == _TAGS:
            tags = number
        elif kind == _KEYS:
            keys = number
        elif kind == _BORN_HOST:
            born_host = number
    if message_id < 0:
        return unusual

    host_end = _address(texts, 0, data, begin + _BORN_HOST_AT)
    address_end = _address(texts, host_end, data, begin + _STORE_HOST_AT)
    texts[address_end] = 0x3A
    address_end = digits(texts, address_end + 1, u32(data, begin + _STORE_HOST_AT + 4))
    born_host_length = found[born_host, _VALUE_LENGTH] if born_host >= 0 else host_end
    address_length = address_end - host_end
    id_length = found[message_id, _VALUE_LENGTH]
    system = _texts_length(1, id_length) + 38 + 4
    if tags >= 0:
        system += _texts_length(1, found[tags, _VALUE_LENGTH])
    if keys >= 0:
        system += _keys(out, 0, data, found[keys, _VALUE], found[keys, _VALUE_LENGTH], False)
    system += 4 + _timestamp_length(born) + _timestamp_length(stored)
    system += _texts_length(1, born_host_length) + _texts_length(1, address_length) + 2 + TEXT_LENGTH
    if queue_id:
        system += 1 + _varint_length(queue_id)
    system += 1 + _varint_length(queue_offset) + 1 + len(duration) + 3
    message = len(topic) + users + _texts_length(1, system)
    if body_length:
        message += _texts_length(1, body_length)
    if at + _texts_length(1, message) > len(out):
        return unusual

    row[START] = at
    out[at] = 0x12
    at = _varint(out, at + 1, message)
    at = copy(out, at, topic, 0, len(topic))
    for number in range(count):
        one = found[number]
        if one[_KIND] == _USER:
            out[at] = 0x12
            entry = _entry_length(one)
            at = _varint(out, at + 1, entry)
            out[at] = 0x0A
            at = _varint(out, at + 1, one[_KEY_LENGTH])
            at = copy(out, at, data, one[_KEY], one[_KEY_LENGTH])
            out[at] = 0x12
            at = _varint(out, at + 1, one[_VALUE_LENGTH])
            at = copy(out, at, data, one[_VALUE], one[_VALUE_LENGTH])
    out[at] = 0x1A
    at = _varint(out, at + 1, system)
    row[TAG_LENGTH] = -1
    if tags >= 0:
        out[at] = 0x0A
        at = _varint(out, at + 1, found[tags, _VALUE_LENGTH])
        row[TAG], row[TAG_LENGTH] = at, found[tags, _VALUE_LENGTH]
        at = copy(out, at, data, found[tags, _VALUE], found[tags, _VALUE_LENGTH])
    if keys >= 0:
        at = _keys(out, at, data, found[keys, _VALUE], found[keys, _VALUE_LENGTH], True)
    out[at] = 0x1A
    at = _varint(out, at + 1, id_length)
    row[MESSAGE_ID], row[MESSAGE_ID_LENGTH] = at, id_length
    at = copy(out, at, data, found[message_id, _VALUE], id_length)
    out[at], out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = (
        0x22,
        0x24,
        0x08,
        0x02,
        0x12,
        0x20,
    )
    row[DIGEST] = at + 6
    at += 6 + 32
    out[at], out[at + 1] = 0x28, 2 if sys_flag & SYS_COMPRESSED else 1
    out[at + 2], out[at + 3] = 0x30, 1
    at = _timestamp(out, at + 4, 0x3A, born)
    out[at] = 0x42
    at = _varint(out, at + 1, born_host_length)
    if born_host >= 0:
        at = copy(out, at, data, found[born_host, _VALUE], born_host_length)
    else:
        at = copy(out, at, texts, 0, host_end)
    at = _timestamp(out, at, 0x4A, stored)
    out[at] = 0x52
    at = _varint(out, at + 1, address_length)
    at = copy(out, at, texts, host_end, address_length)
    out[at], out[at + 1] = 0x62, TEXT_LENGTH
    at = _handle(out, at + 2, packed)
    if queue_id:
        out[at] = 0x68
        at = _varint(out, at + 1, queue_id)
    out[at] = 0x70
    at = _varint(out, at + 1, queue_offset)
    out[at] = 0x7A
    at = copy(out, at + 1, duration, 0, len(duration))
    out[at], out[at + 1], out[at + 2] = 0x80, 0x01, 1
    at += 3
    if body_length:
        out[at] = 0x22
        at = _varint(out, at + 1, body_length)
        at = copy(out, at, data, body, body_length)
    row[END] = at
    row[BODY], row[BODY_LENGTH], row[BODY_CRC] = body, body_length, u32(data, begin + 8)
    return at


@compiled
def walk(
    data: Array,
    starts: Array,
    sizes: Array,
    offsets: Array,
    most_bytes: int,
    topic: Any,
    duration: Any,
    packed: Array,
    found: Array,
    texts: Array,
    out: Array,
    rows: Array,
) -> int:
    """Fills `rows` and `out` with responses for records of `data`; how many, all or those before one that is not usual,
    up to that by which bodies have `most_bytes`.

    `starts` and `sizes` say where the records are, `offsets` their queue offsets by which handles are made of
    `packed` (21 bytes, as `handles.py` packs it). `topic` is the response's field, `duration` the invisible time with
    its length. `found` and `texts` are scratch.
    """
    at = bodies = np.int64(0)
    for number in range(min(len(starts), len(rows))):
        if bodies >= most_bytes:
            return np.int64(number)
        begin, size = starts[number], sizes[number]
        if begin < 0 or size < 0 or size > len(data) - begin:
            return np.int64(number)
        offset = offsets[number]
        for place in range(12, 4, -1):
            packed[place] = offset & 0xFF
            offset >>= 8
        row = rows[number]
        at = _record(data, begin, begin + size, topic, duration, packed, found, texts, out, at, row)
        if at < 0:
            return np.int64(number)
        bodies += row[BODY_LENGTH]
    return np.int64(min(len(starts), len(rows)))
