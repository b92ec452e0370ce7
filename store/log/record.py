"""The record of the commit log: layout, encode, decode. Byte for byte RocketMQ's.

All integers big-endian. `H` is 8 (IPv4 + port) or 20 (IPv6 + port), by the flags in SYSFLAG.

| field | bytes | note |
|---|---|---|
| TOTALSIZE | 4 | of the whole record |
| MAGICCODE | 4 | `MAGIC_V1`; `MAGIC_V2` where the topic is longer than 127 bytes |
| BODYCRC | 4 | CRC-32 of the body, sign bit cleared |
| QUEUEID, FLAG | 4, 4 | |
| QUEUEOFFSET | 8 | position in the topic's queue |
| PHYSICALOFFSET | 8 | the record's own offset |
| SYSFLAG | 4 | `SYS_*` |
| BORNTIMESTAMP, BORNHOST | 8, H | ms |
| STORETIMESTAMP, STOREHOST | 8, H | ms |
| RECONSUMETIMES | 4 | |
| PREPAREDTRANSACTIONOFFSET | 8 | |
| BODYLENGTH, body | 4, n | |
| TOPICLENGTH, topic | 1 (V2: 2), n | UTF-8 |
| PROPERTIESLENGTH, properties | 2, n | `key 0x01 value 0x02` repeated, UTF-8, at most 32,767 bytes |

The last property of a record that we write is `__CRC32#`: the CRC-32 (sign bit cleared) of the record up to
that property, as ten decimal digits, the least significant first. Source: RocketMQ `MessageExtEncoder`,
`CommitLog`, `MessageDecoder`.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from zlib_ng import zlib_ng

from store.errors import RecordError

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_BYTES = 8

SYS_COMPRESSED = 0x1
SYS_TRANSACTION_MASK = 0xC
SYS_PREPARED = 0x4
SYS_COMMIT = 0x8
SYS_ROLLBACK = 0xC
SYS_BORN_HOST_V6 = 0x10
SYS_STORE_HOST_V6 = 0x20
SYS_HOSTS_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
SYS_COMPRESSION_MASK = 0x700
SYS_COMPRESSION_LZ4 = 0x100
SYS_COMPRESSION_ZSTD = 0x200
SYS_COMPRESSION_ZLIB = 0x300

PROPERTY_CRC32 = "__CRC32#"
PROPERTY_LITE_TOPIC = "__LITE_TOPIC"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
FURTHER_QUEUES = frozenset((PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET))
"""Properties of a record that stands in further queues: no copy in another topic has them."""
PROPERTIES_MAX_BYTES = 32_767
TOPIC_V1_MAX_BYTES = 127
TOPIC_MAX_BYTES = 32_767

HEAD = struct.Struct(">iIIiiqqiq")
"""TOTALSIZE to BORNTIMESTAMP."""
MIDDLE = struct.Struct(">iqi")
"""RECONSUMETIMES to BODYLENGTH."""
USUAL = struct.Struct(">iIIiiqqiq8sq8siqi")
"""TOTALSIZE to BODYLENGTH, of a record with IPv4 hosts."""
assert HEAD.size == 48
assert MIDDLE.size == 16
FIXED_BYTES = HEAD.size + 8 + MIDDLE.size + 2
"""Of a record without hosts, topic with its length, body and properties."""
CRC_BYTES = len(PROPERTY_CRC32) + 1 + 10 + 1
_CRC_PREFIX = PROPERTY_CRC32.encode() + b"\x01"
LONG = struct.Struct(">q")
SHORT = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Host:
    """An IP address and a port; `packed` as records hold it, 8 or 20 bytes."""

    ip: str
    port: int

    def __str__(self) -> str:
        """As tables have it: `ip:port`, `[ip]:port` for IPv6."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    @property
    def packed(self) -> bytes:
        return _pack_host(self.ip, self.port)


@lru_cache(maxsize=4096)
def _pack_host(ip: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip) + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> Host:
    """The host of 8 or 20 bytes."""
    family = socket.AF_INET if len(packed) == 8 else socket.AF_INET6
    return Host(socket.inet_ntop(family, packed[:-4]), int.from_bytes(packed[-4:], "big"))


_OFFSET_MSG_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")


@dataclass(slots=True)
class PendingRecord:
    """A record before it has its place in the log. Times in ms since the epoch; `born_host` packed."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    born_timestamp: int
    born_host: bytes
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    store_timestamp: int = 0
    lite_queue: str = ""
    """The queue of its lite topic, as the properties say (`store/lite_queues.py`); its offset there is added."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record. Times in ms since the epoch."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    properties: bytes

    def properties_map(self) -> dict[str, str]:
        """The properties as text (`decode_properties`), to keep and to change."""
        return dict(_of_latest(self.properties))


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """`key 0x01 value 0x02` for each; keys and values must hold neither byte."""
    return "".join(f"{key}\x01{value}\x02" for key, value in properties.items()).encode()


def decode_properties(encoded: bytes | memoryview) -> dict[str, str]:
    """The properties as text; malformed UTF-8 is replaced, parts without a key or separator are passed over.

    Of a key that is repeated the last value counts that is not empty, as in RocketMQ.
    """
    parts = bytes(encoded).decode("utf-8", "replace").split("\x02")
    if not parts[-1]:
        parts.pop()  # there is a separator at the end
    properties = {key: value for key, _, value in [part.partition("\x01") for part in parts] if key and value}
    if len(properties) == len(parts):
        return properties  # no key is repeated
    properties = {}
    for part in parts:
        key, separator, value = part.partition("\x01")
        if separator and key and (value or key not in properties):
            properties[key] = value
    return properties


@lru_cache(maxsize=16)
def _of_latest(encoded: bytes) -> dict[str, str]:
    """Several parts of the broker ask for the properties of a record, one after the other."""
    return decode_properties(encoded)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, signed 32 bits."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_MOST_KEPT = 256
"""Characters of a tag whose code is kept: clients choose them."""


def tags_code(tag: str | None) -> int:
    """The consume queue's tags code: Java's hash of the tag, 0 without one."""
    if not tag:
        return 0
    return _kept_code(tag) if len(tag) <= _MOST_KEPT else java_hash(tag)


@lru_cache(maxsize=4096)
def _kept_code(tag: str) -> int:
    return java_hash(tag)


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """The 4.x message id: hex of the packed store host and the physical offset."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def place_of(message_id: str) -> tuple[Host, int] | None:
    """Host and physical offset that a 4.x message id is made of, if it may be one of these."""
    if _OFFSET_MSG_ID.fullmatch(message_id) is None:
        return None
    packed = bytes.fromhex(message_id)
    return unpack_host(packed[:-8]), int.from_bytes(packed[-8:], "big", signed=True)


@lru_cache(maxsize=8192)
def encode_topic(topic: str) -> tuple[int, bytes]:
    """Magic code and the topic with its length, for a record."""
    encoded = topic.encode()
    if len(encoded) > TOPIC_MAX_BYTES:
        raise RecordError(f"topic of {len(encoded)} bytes, at most {TOPIC_MAX_BYTES} fit a record")
    if len(encoded) > TOPIC_V1_MAX_BYTES:
        return MAGIC_V2, len(encoded).to_bytes(2, "big") + encoded
    return MAGIC_V1, bytes([len(encoded)]) + encoded


def encode_record(
    pending: PendingRecord,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    append_crc: bool,
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Head, body and tail of the record, to be written one behind the other.

    Raises RecordError for properties, or a number, that do not fit.
    """
    magic, topic = encode_topic(pending.topic)
    body = pending.body
    born_host = pending.born_host
    body_length = len(body)
    properties = pending.properties
    property_bytes = len(properties)
    if append_crc:
        if properties and properties[-1] != 2:
            properties += b"\x02"
            property_bytes += 1
        property_bytes += CRC_BYTES
    if property_bytes > PROPERTIES_MAX_BYTES:
        raise RecordError(
            f"properties of {property_bytes} bytes, at most {PROPERTIES_MAX_BYTES} fit a record"
        )
    sys_flag = pending.sys_flag
    if len(store_host) > 8:
        sys_flag |= SYS_STORE_HOST_V6
    if len(born_host) > 8:
        sys_flag |= SYS_BORN_HOST_V6
    body_crc = zlib_ng.crc32(body)
    try:
        head = _heads(len(born_host), len(store_host))(
            FIXED_BYTES + len(born_host) + len(store_host) + body_length + len(topic) + property_bytes,
            magic,
            body_crc & 0x7FFFFFFF,
            pending.queue_id,
            pending.flag,
            queue_offset,
            physical_offset,
            sys_flag,
            pending.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            pending.reconsume_times,
            pending.prepared_transaction_offset,
            body_length,
        )
    except struct.error as error:
        raise RecordError(
            f"a number does not fit its field of the record ({error}): queue {pending.queue_id}, born at "
            f"{pending.born_timestamp} ms, flag {pending.flag}, {pending.reconsume_times} deliveries, prepared at "
            f"{pending.prepared_transaction_offset}"
        ) from error
    tail = topic + property_bytes.to_bytes(2, "big") + properties
    if append_crc:
        crc = zlib_ng.crc32(tail, zlib_ng.crc32(body, zlib_ng.crc32(head))) & 0x7FFFFFFF
        tail += b"%b%b\x02" % (_CRC_PREFIX, (b"%010d" % crc)[::-1])
    return head, body, tail


@lru_cache(maxsize=4)
def _heads(born_bytes: int, store_bytes: int) -> Callable[..., bytes]:
    """Packs TOTALSIZE to BODYLENGTH for hosts of those sizes."""
    return struct.Struct(f"{HEAD.format}{born_bytes}sq{store_bytes}s{MIDDLE.format[1:]}").pack


def decode_record(
    buffer: bytes | memoryview, position: int = 0, physical_offset: int | None = None, *, verify: bool = True
) -> Record:
    """Reads the record at `position`; `body` stays a view of `buffer`.

    With `verify` the body's CRC is checked. Raises RecordError, naming the offset.
    """
    view = memoryview(buffer)[position:]
    where = physical_offset if physical_offset is not None else position
    try:
        size, magic, crc, queue_id, flag, queue_offset, own_offset, sys_flag, born = HEAD.unpack_from(view, 0)
        if magic not in (MAGIC_V1, MAGIC_V2) or not FIXED_BYTES < size <= len(view):
            raise RecordError(f"no whole record at physical offset {where} (size {size}, magic {magic:#x})")
        cursor = HEAD.size
        born_bytes = 20 if sys_flag & SYS_BORN_HOST_V6 else 8
        born_host = unpack_host(bytes(view[cursor : cursor + born_bytes]))
        cursor += born_bytes
        (stored,) = LONG.unpack_from(view, cursor)
        cursor += 8
        store_bytes = 20 if sys_flag & SYS_STORE_HOST_V6 else 8
        store_host = unpack_host(bytes(view[cursor : cursor + store_bytes]))
        cursor += store_bytes
        reconsume, prepared, body_length = MIDDLE.unpack_from(view, cursor)
        cursor += MIDDLE.size
        if body_length < 0 or cursor + body_length > size:
            raise RecordError(
                f"body of {body_length} bytes in the record of {size} at physical offset {where}"
            )
        body = view[cursor : cursor + body_length]
        cursor += body_length
        length_bytes = 2 if magic == MAGIC_V2 else 1
        topic_length = int.from_bytes(view[cursor : cursor + length_bytes], "big")
        cursor += length_bytes
        topic = bytes(view[cursor : cursor + topic_length]).decode()
        cursor += topic_length
        property_bytes = int.from_bytes(view[cursor : cursor + 2], "big")
        cursor += 2
        if cursor + property_bytes != size:
            raise RecordError(f"lengths in the record at physical offset {where} do not add up to {size}")
        properties = bytes(view[cursor : cursor + property_bytes])
    except (struct.error, ValueError, IndexError) as error:
        raise RecordError(f"no whole record at physical offset {where}: {error}") from error
    if physical_offset is not None and own_offset != physical_offset:
        raise RecordError(f"the record at physical offset {physical_offset} says it is at {own_offset}")
    if verify and zlib_ng.crc32(body) & 0x7FFFFFFF != crc:
        raise RecordError(f"the body's CRC does not match in the record at physical offset {where}")
    return Record(
        own_offset,
        size,
        topic,
        queue_id,
        queue_offset,
        flag,
        sys_flag,
        born,
        born_host,
        stored,
        store_host,
        reconsume,
        prepared,
        body,
        properties,
    )


STORE_TIME_BYTES = HEAD.size + 20 + LONG.size
"""What `store_time` looks at, at most; no record is shorter."""


def store_time(view: memoryview, physical_offset: int) -> int | None:
    """STORETIMESTAMP of the record at `physical_offset`, ms; None when no record begins there."""
    try:
        _, magic, _, _, _, _, own, sys_flag, _ = HEAD.unpack_from(view, 0)
        (found,) = LONG.unpack_from(view, HEAD.size + (20 if sys_flag & SYS_BORN_HOST_V6 else 8))
    except struct.error:
        return None
    return int(found) if magic in (MAGIC_V1, MAGIC_V2) and own == physical_offset else None
