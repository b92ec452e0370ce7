"""Logs whose records hold what no writer of ours lets through: every field as it is given, CRCs and lengths right."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from zlib_ng import zlib_ng

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import FIXED_BYTES, HEAD, MAGIC_V1, MAGIC_V2, MIDDLE, TOPIC_V1_MAX_BYTES, Host

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


def poison() -> dict[str, tuple[Raw, ...]]:
    """Records that stopped the reput once or were lost in it, and records of every kind."""
    batch = pb.Batch(version=1, timestamp_ms=NOW_MS)
    queue = batch.queues.add(consumer_group="g", topic="t", has_committed=True, committed=3)
    queue.events.add(kind=pb.ACKED, timestamp_ms=NOW_MS, queue_offset=[1], attempt=[1], message_id=["m"])
    batch.stats.add(topic="t", minute_ms=NOW_MS, latency=pb.LatencySketch(bucket=[1, 1], count=[2, 3]))
    journal, whole = JOURNAL.encode(), batch.SerializeToString()
    return {
        "messages": (message(1), message(2, queue_id=3)),
        "born-year-10000": (Raw(born_timestamp=253_402_300_800_000),),
        "born-wraps": (Raw(born_timestamp=1 << 62),),
        "stored-year-10000": (Raw(store_timestamp=253_402_300_800_000),),
        "due": (Raw(properties=properties(TIMER_OUT_MS="9" * 15)), Raw(properties=properties(TIMER_DELIVER_MS="1"))),
        "origin": (Raw(properties=properties(LB_ORIGIN="²:1:1:1:gt")), Raw(properties=properties(LB_ORIGIN="1:2:3:1:gt"))),
        "origin-33-bits": (Raw(properties=properties(LB_ORIGIN=f"{1 << 33}:1:1:1:gt")),),
        "origin-digits": (Raw(properties=properties(LB_ORIGIN="9" * 2000 + ":1:1:1:gt")),),
        "level": (Raw(topic=b"SCHEDULE_TOPIC_XXXX", properties=properties(DELAY="2", REAL_TOPIC="%RETRY%g", RETRY_TOPIC="t")),),
        "dead-letter": (Raw(topic=b"%DLQ%g", reconsume_times=3, properties=properties(RETRY_TOPIC="%RETRY%g_t")),),
        "greatest-text": (Raw(properties=properties(TAGS="a" * 32 + "\U0010ffff" + "b", KEYS="\U0010ffff" * 40)),),
        "repeated-key": (Raw(properties=properties(("a", "1"), ("a", "2"), ("a", ""), TAGS="x", KEYS="k k")),),
        "replaced-keys": (Raw(properties=b"\xff\x01a\x02\xfe\x01b\x02"),),
        "many-keys": (Raw(properties=b"".join(b"%d\x01\x02" % (n % 40) for n in range(80))),),
        "topic-no-text": (Raw(topic=b"\xff\xed\xa0\x80"), Raw(topic=b"")),
        "journal": (Raw(topic=journal, body=whole, properties=properties(TAGS="events")),),
        "journal-cut": (Raw(topic=journal, body=whole[:-1]), Raw(topic=journal, body=b"\xff")),
        "zlib": (Raw(sys_flag=1, body=bytes.fromhex("789c4b4c4a06000 24d0127".replace(" ", ""))), Raw(sys_flag=0x701)),
        "transactions": (Raw(sys_flag=4), Raw(sys_flag=8, prepared_transaction_offset=7), Raw(sys_flag=12)),
        "v6": (Raw(born_host=bytes(20), store_host=b"\xff" * 20),),
    }  # fmt: skip
