"""Logs whose records hold what no writer of ours lets through: every field as it is given, CRCs and lengths right."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from zlib_ng import zlib_ng

from store.record import FIXED_BYTES, HEAD, MAGIC_V1, MAGIC_V2, MIDDLE, TOPIC_V1_MAX_BYTES, Host

NOW_MS = 1_700_000_000_000
HOST = Host("127.0.0.1", 10911).packed
JOURNAL = "rmq_sys_lakebroker_journal"


@dataclass(frozen=True)
class Raw:
    """A record; `topic` and `properties` are bytes, numbers whatever fits their field."""

    topic: bytes = b"topic"
    body: bytes = b"body"
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = NOW_MS
    born_host: bytes = HOST
    store_timestamp: int = NOW_MS
    store_host: bytes = HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    def encoded(self, physical_offset: int) -> bytes:
        """Its bytes at that place."""
        flags = self.sys_flag & ~0x30 | 0x10 * (len(self.born_host) > 8) | 0x20 * (len(self.store_host) > 8)
        long = len(self.topic) > TOPIC_V1_MAX_BYTES
        topic = len(self.topic).to_bytes(2 if long else 1, "big") + self.topic
        size = (
            FIXED_BYTES + len(self.born_host) + len(self.store_host) + len(self.body) + len(topic)
            + len(self.properties)
        )  # fmt: skip
        crc = zlib_ng.crc32(self.body) & 0x7FFFFFFF
        head = HEAD.pack(
            size, MAGIC_V2 if long else MAGIC_V1, crc, self.queue_id, self.flag, self.queue_offset,
            physical_offset, flags, self.born_timestamp,
        )  # fmt: skip
        return b"".join(
            (
                head,
                self.born_host,
                struct.pack(">q", self.store_timestamp),
                self.store_host,
                MIDDLE.pack(self.reconsume_times, self.prepared_transaction_offset, len(self.body)),
                self.body,
                topic,
                len(self.properties).to_bytes(2, "big"),
                self.properties,
            )
        )


def properties(*pairs: tuple[str, str], **named: str) -> bytes:
    """Properties as records hold them; keys may be repeated."""
    return b"".join(f"{key}\x01{value}\x02".encode() for key, value in (*pairs, *named.items()))


def log_of(*records: Raw, base: int = 0) -> bytes:
    """The records one behind the other."""
    data = bytearray()
    for record in records:
        data += record.encoded(base + len(data))
    return bytes(data)


def message(number: int, **fields: Any) -> Raw:
    """A message as there are many, with an id."""
    return Raw(
        body=b"good %d" % number,
        properties=properties(UNIQ_KEY=f"GOOD{number:028d}", KEYS=f"key{number}", TAGS="tag"),
        queue_offset=number,
        **fields,
    )
