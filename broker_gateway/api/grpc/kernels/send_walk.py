"""The compiled part of a send (numba): the usual SendMessageRequest, from its bytes to columns.

What is unusual in any way, wrong or merely rare, is not judged here: `walk` answers UNUSUAL and the plain path
(`api/grpc/send.py`) decides. Field numbers: `proto/apache/rocketmq/v2/definition.proto`. Usual is a request whose
messages

- have fields in their wire types, singular ones once, none that the gateway would have to look at
  otherwise (digest, deadlines of delivery, message group, trace context, ...);
- are NORMAL, with a body, and an id, keys, tag and properties of printable ASCII;
- stay within every limit and have no property of a reserved name, nor one twice;
- name one topic, byte for byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_gateway.api.grpc.kernels.send_row import (
    BODY_LIMIT,
    LIMITS,
    MESSAGE_ID_LENGTH,
    MESSAGE_ID_START,
    NOW,
    PROPERTIES_BYTES,
    PROPERTIES_COUNT,
    RECORD_PROPERTIES,
    REFUSE_EMPTY,
    ROW,
    TOPIC_LENGTH,
    TOPIC_START,
    UNUSUAL,
)
from broker_gateway.api.grpc.send_checks import LATEST_BORN_S, MESSAGE_ID_MAX_LENGTH
from broker_gateway.messaging import broker_properties
from broker_gateway.messaging.broker_properties import BORN_BYTES
from broker_gateway.metadata.names import RESERVED_PROPERTIES
from store.columns import (
    BODY_CRC,
    BODY_LENGTH,
    BODY_START,
    BORN_TIMESTAMP,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    SYS_FLAG,
    TAGS_CODE,
)
from store.kernels.compiled import compiled
from store.kernels.fields import copy, digits, same
from store.log.record import SYS_COMPRESSED

Array = NDArray[Any]
_TAGS = np.frombuffer(b"TAGS\x01", dtype=np.uint8)
_KEYS = np.frombuffer(b"KEYS\x01", dtype=np.uint8)
_MESSAGE_ID = np.frombuffer(b"UNIQ_KEY\x01", dtype=np.uint8)
_BORN_HOST = np.frombuffer(b"__BORNHOST\x01", dtype=np.uint8)
_BORN_TIMESTAMP = np.frombuffer(broker_properties.BORN_TIMESTAMP, dtype=np.uint8)
_OVERHEAD = 64 + BORN_BYTES
"""Bytes that properties may have beyond those of the message they come from: names and separators."""
_NORMAL = 1
_GZIP = 2

# keys of fields: number and wire type
_MESSAGES = 0x0A
_TOPIC, _USER, _SYSTEM, _BODY = 0x0A, 0x12, 0x1A, 0x22
_TAG, _KEY, _ID, _ENCODING, _TYPE, _BORN, _HOST, _QUEUE = 0x0A, 0x12, 0x1A, 0x28, 0x30, 0x3A, 0x42, 0x68
_FIRST, _SECOND = 0x0A, 0x12
_SECONDS, _NANOS = 0x08, 0x10


def _fnv(text: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


RESERVED = np.array(sorted(_fnv(each.encode()) for each in RESERVED_PROPERTIES), dtype=np.uint64)
"""Hashes of reserved names, an argument of `walk`."""


@compiled
def _varint(data: Array, at: int, stop: int) -> tuple[int, int]:
    """A number of at most 63 bits and where it ends; -1 for where it does not."""
    value = np.int64(0)
    shift = np.int64(0)
    while at < stop and shift < 63:
        byte = np.int64(data[np.uint64(at)])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return np.int64(0), np.int64(-1)


@compiled
def _field(data: Array, at: int, stop: int) -> tuple[int, int, int, int]:
    """The field at `at`: its key, the value (or the start of the bytes), their length, and what follows.

    What follows is -1 unless it is a varint or bytes, whole.
    """
    if at >= stop:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    key = np.int64(data[np.uint64(at)])
    value, start = _varint(data, at + 1, stop)
    if start < 0 or key & 7 == 0:
        return key, value, np.int64(0), start
    if key > 0x7F or key & 7 != 2 or value > stop - start or start - at > 6:
        return key, np.int64(0), np.int64(0), np.int64(-1)
    return key, start, value, start + value


@compiled
def _printable(data: Array, start: int, length: int) -> bool:
    """Whether all of it is ASCII without control characters."""
    wrong = False
    for at in range(np.uint64(start), np.uint64(start + length)):
        byte = data[at]
        wrong |= (byte < 0x20) | (byte > 0x7E)
    return not wrong


@compiled
def _blank(data: Array, start: int, length: int) -> bool:
    for at in range(start, start + length):
        if data[at] != 0x20:
            return False
    return True


@compiled
def _hash(data: Array, start: int, length: int) -> Any:
    value = np.uint64(0xCBF29CE484222325)
    for at in range(np.uint64(start), np.uint64(start + length)):
        value = (value ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
    return value


@compiled
def _is_reserved(reserved: Array, value: Any) -> bool:
    """Whether a reserved name has this hash."""
    low, high = 0, len(reserved)
    while low < high:
        middle = (low + high) // 2
        if reserved[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < len(reserved) and reserved[low] == value


@compiled
def _java_hash(data: Array, start: int, length: int) -> int:
    value = np.uint32(0)
    for at in range(start, start + length):
        value = value * np.uint32(31) + np.uint32(data[at])
    return np.int64(np.int32(value))


@compiled
def _user(
    data: Array, at: int, stop: int, properties: Array, used: int, reserved: Array, seen: Array, count: int
) -> tuple[int, int]:
    """A user property to `properties`; where the next one goes (-1: unusual), and the bytes of key and value."""
    unusual = np.int64(-1), np.int64(0)
    key_start = key_length = value_start = value_length = np.int64(-1)
    while at < stop:
        key, start, length, at = _field(data, at, stop)
        if at < 0:
            return unusual
        if key == _FIRST and key_start < 0:
            key_start, key_length = start, length
        elif key == _SECOND and value_start < 0:
            value_start, value_length = start, length
        else:
            return unusual
    if key_length <= 0 or not _printable(data, key_start, key_length):
        return unusual
    value_length = max(value_length, 0)
    if not _printable(data, value_start, value_length):
        return unusual
    code = _hash(data, key_start, key_length)
    if _is_reserved(reserved, code):
        return unusual
    for number in range(count):
        if seen[number] == code:
            return unusual  # the last of the same name counts: for the plain path
    seen[count] = code
    used = copy(properties, used, data, key_start, key_length)
    properties[used] = 1
    used = copy(properties, used + 1, data, value_start, value_length)
    properties[used] = 2
    return used + 1, key_length + value_length


@compiled
def _timestamp(data: Array, at: int, stop: int, now: int) -> int:
    """A timestamp in ms; `now` for none; -1: unusual."""
    seconds = nanos = np.int64(-1)
    while at < stop:
        key, value, _, at = _field(data, at, stop)
        if at < 0:
            return -1
        if key == _SECONDS and seconds < 0:
            seconds = value
        elif key == _NANOS and nanos < 0 and value < 1_000_000_000:
            nanos = value
        else:
            return -1
    if seconds > LATEST_BORN_S:
        return -1
    if seconds <= 0:
        return now
    return seconds * 1000 + (nanos // 1_000_000 if nanos > 0 else 0)


@compiled
def _message(
    data: Array,
    begin: int,
    stop: int,
    limits: Array,
    host: Array,
    row: Array,
    properties: Array,
    used: int,
    reserved: Array,
    seen: Array,
) -> int:
    """One message to `row` and `properties`; where the next one's properties go, or UNUSUAL."""
    users = 0
    topic_start = system_start = body_start = np.int64(-1)
    topic_length = system_length = body_length = np.int64(0)
    at = np.int64(begin)
    while at < stop:
        key, start, length, at = _field(data, at, stop)
        if at < 0:
            return UNUSUAL
        if key == _TOPIC and topic_start < 0:
            topic_start, topic_length = start, length
        elif key == _USER:
            users += 1
        elif key == _SYSTEM and system_start < 0:
            system_start, system_length = start, length
        elif key == _BODY and body_start < 0:
            body_start, body_length = start, length
        else:
            return UNUSUAL
    if topic_start < 0 or system_start < 0 or users > min(limits[PROPERTIES_COUNT], len(seen)):
        return UNUSUAL
    if body_length > limits[BODY_LIMIT] or (body_length == 0 and limits[REFUSE_EMPTY]):
        return UNUSUAL
    if used + (stop - begin) - body_length + _OVERHEAD > len(properties):
        return UNUSUAL

    tag_start = id_start = host_start = np.int64(-1)
    tag_length = id_length = host_length = np.int64(0)
    keys = 0
    encoding = kind = queue = np.int64(-1)
    born = np.int64(-1)
    at, end = system_start, system_start + system_length
    while at < end:
        key, start, length, at = _field(data, at, end)
        if at < 0:
            return UNUSUAL
        if key == _TAG and tag_start < 0:
            tag_start, tag_length = start, length
        elif key == _KEY:
            keys += 1
        elif key == _ID and id_start < 0:
            id_start, id_length = start, length
        elif key == _ENCODING and encoding < 0 and start <= _GZIP:
            encoding = start
        elif key == _TYPE and kind < 0:
            kind = start
        elif key == _BORN and born < 0:
            born = _timestamp(data, start, start + length, limits[NOW])
            if born < 0:
                return UNUSUAL
        elif key == _HOST and host_start < 0:
            host_start, host_length = start, length
        elif key == _QUEUE and queue < 0:
            queue = start
        else:
            return UNUSUAL
    if kind != _NORMAL or id_length <= 0 or id_length > MESSAGE_ID_MAX_LENGTH:
        return UNUSUAL
    if not _printable(data, id_start, id_length) or _blank(data, id_start, id_length):
        return UNUSUAL

    first = used
    size = np.int64(0)
    if users:
        count = 0
        at = np.int64(begin)
        while count < users:
            key, start, length, at = _field(data, at, stop)
            if key == _USER:
                used, more = _user(data, start, start + length, properties, used, reserved, seen, count)
                if used < 0:
                    return UNUSUAL
                size += more
                count += 1
    code = np.int64(0)
    if tag_length:
        if not _printable(data, tag_start, tag_length) or _blank(data, tag_start, tag_length):
            return UNUSUAL
        for number in range(tag_start, tag_start + tag_length):
            if data[number] == 0x7C:  # "|" separates tags in a subscription
                return UNUSUAL
        code = _java_hash(data, tag_start, tag_length)
        size += tag_length
        used = copy(properties, used, _TAGS, 0, len(_TAGS))
        used = copy(properties, used, data, tag_start, tag_length)
        properties[used] = 2
        used += 1
    if keys:
        begun = False
        at = system_start
        while at < end:
            key, start, length, at = _field(data, at, end)
            if key != _KEY or length == 0:
                continue
            if not _printable(data, start, length) or _blank(data, start, length):
                return UNUSUAL
            if begun:
                properties[used] = 0x20
                used += 1
            else:
                begun = True
                used = copy(properties, used, _KEYS, 0, len(_KEYS))
            used = copy(properties, used, data, start, length)
            size += length
        if begun:
            properties[used] = 2
            used += 1
    if size > limits[PROPERTIES_BYTES]:
        return UNUSUAL
    used = copy(properties, used, _MESSAGE_ID, 0, len(_MESSAGE_ID))
    used = copy(properties, used, data, id_start, id_length)
    properties[used] = 2
    used += 1
    if host_length and not (
        host_length == len(host) and same(data, host_start, host, np.int64(0), host_length)
    ):
        if not _printable(data, host_start, host_length):
            return UNUSUAL
        used = copy(properties, used, _BORN_HOST, 0, len(_BORN_HOST))
        used = copy(properties, used, data, host_start, host_length)
        properties[used] = 2
        used += 1
    if born < 0:
        born = limits[NOW]
    used = digits(properties, copy(properties, used, _BORN_TIMESTAMP, 0, len(_BORN_TIMESTAMP)), born)
    properties[used] = 2
    used += 1
    if used - first > limits[RECORD_PROPERTIES]:
        return UNUSUAL
    row[BODY_START] = max(body_start, 0)
    row[BODY_LENGTH] = body_length
    row[PROPERTIES_START] = first
    row[PROPERTIES_LENGTH] = used - first
    row[BORN_TIMESTAMP] = born
    row[SYS_FLAG] = SYS_COMPRESSED if encoding == _GZIP else 0
    row[TAGS_CODE] = code
    row[BODY_CRC] = -1
    row[MESSAGE_ID_START] = id_start
    row[MESSAGE_ID_LENGTH] = id_length
    row[TOPIC_START] = topic_start
    row[TOPIC_LENGTH] = topic_length
    return used


@compiled
def walk(
    data: Any, limits: Array, host: Any, rows: Array, properties: Array, reserved: Array, seen: Array
) -> tuple[int, int, int]:
    """Fills `rows` and `properties`; number of messages (or UNUSUAL), bytes of properties, bytes of bodies.

    `host` is the peer's address as text, `reserved` is RESERVED, `seen` is room for hashes.
    """
    unusual = np.int64(UNUSUAL), np.int64(0), np.int64(0)
    stop = np.int64(len(data))
    at = used = bodies = count = np.int64(0)
    while at < stop:
        key, start, length, at = _field(data, at, stop)
        if at < 0 or key != _MESSAGES or count == len(rows):
            return unusual
        row = rows[count]
        used = _message(data, start, start + length, limits, host, row, properties, used, reserved, seen)
        if used < 0:
            return unusual
        if count:
            first = rows[0]
            if row[TOPIC_LENGTH] != first[TOPIC_LENGTH] or not same(
                data, first[TOPIC_START], data, row[TOPIC_START], first[TOPIC_LENGTH]
            ):
                return unusual
        bodies += row[BODY_LENGTH]
        count += 1
    return count, used, bodies


def warm() -> None:
    """Compiles, or loads what was compiled before."""
    rows = np.zeros((1, ROW), dtype=np.int64)
    limits = np.zeros(LIMITS, dtype=np.int64)
    walk(b"", limits, b"", rows, np.zeros(1, dtype=np.uint8), RESERVED, np.zeros(1, dtype=np.uint64))
