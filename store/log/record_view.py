"""A record as a receive reads it: the fields that a delivery has, and no objects for the others."""

from __future__ import annotations

import struct
from functools import lru_cache

from zlib_ng import zlib_ng

from store.errors import RecordError
from store.log.record import (
    HEAD,
    LONG,
    MAGIC_V1,
    MAGIC_V2,
    MIDDLE,
    SHORT,
    SYS_BORN_HOST_V6,
    SYS_HOSTS_V6,
    SYS_STORE_HOST_V6,
    USUAL,
    unpack_host,
)


class RecordView:
    """The fields that a delivery needs of a whole record in `view`; of these, lengths and the body are checked.

    For records that the log's index names. Raises RecordError.
    """

    __slots__ = (
        "body",
        "born_ip",
        "born_timestamp",
        "physical_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "store_address",
        "store_host_bytes",
        "store_timestamp",
        "sys_flag",
    )

    def __init__(self, view: memoryview) -> None:
        try:
            (
                size,
                magic,
                crc,
                self.queue_id,
                _,
                self.queue_offset,
                self.physical_offset,
                self.sys_flag,
                self.born_timestamp,
                born_host,
                self.store_timestamp,
                store_host,
                _,
                _,
                length,
            ) = USUAL.unpack_from(view)
            at = USUAL.size
            if self.sys_flag & SYS_HOSTS_V6:
                born_host, store_host, length, at = self._hosts(view)
            self.born_ip = _host_texts(born_host)[0]
            self.store_host_bytes = store_host
            self.store_address = _host_texts(store_host)[1]
            end = at + length
            self.body = bytes(view[at:end])
            if magic == MAGIC_V2:
                (length,) = SHORT.unpack_from(view, end)
                topic = end + 2
            else:
                length, topic = view[end], end + 1
            end = topic + length
            str(view[topic:end], "utf-8")  # raises when it is no text
            (length,) = SHORT.unpack_from(view, end)
            self.properties = bytes(view[end + 2 :])
            whole = len(self.properties) == length and size == len(view) and at <= end
        except (struct.error, ValueError, IndexError, OSError) as error:
            raise RecordError(f"no whole record of {len(view)} bytes: {error}") from error
        if not whole or (magic != MAGIC_V2 and magic != MAGIC_V1):
            raise RecordError(f"no whole record of {len(view)} bytes (size {size}, magic {magic:#x})")
        if zlib_ng.crc32(self.body) & 0x7FFFFFFF != crc:
            raise RecordError(f"the body's CRC does not match in the record at {self.physical_offset}")

    def _hosts(self, view: memoryview) -> tuple[bytes, bytes, int, int]:
        """Born host, store host, the body's length and where it begins, when a host is IPv6; sets the store time."""
        at = HEAD.size
        step = 20 if self.sys_flag & SYS_BORN_HOST_V6 else 8
        born_host = bytes(view[at : at + step])
        at += step
        (self.store_timestamp,) = LONG.unpack_from(view, at)
        at += 8
        step = 20 if self.sys_flag & SYS_STORE_HOST_V6 else 8
        store_host = bytes(view[at : at + step])
        at += step
        *_, length = MIDDLE.unpack_from(view, at)
        return born_host, store_host, length, at + MIDDLE.size


@lru_cache(maxsize=8192)
def _host_texts(packed: bytes) -> tuple[str, str]:
    """Address, and `address:port`, of a packed host."""
    host = unpack_host(packed)
    return host.ip, f"{host.ip}:{host.port}"
