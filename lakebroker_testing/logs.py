"""Writers of logs: good records, records of any bytes, damaged ones; as bytes, or as a store that a reader opens.

with LogWriter(folder) as writer:
    writer.messages(100)
    writer.raw(b"no record at all".ljust(500, b"?"))
    at = writer.record("orders", b"body", TAGS="a")
    writer.overwrite(at.physical_offset + 4, b"????")  # its magic
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import (
    BLANK_MAGIC,
    SYS_COMPRESSED,
    Host,
    PendingRecord,
    encode_properties,
    encode_record,
    tags_code,
)
from store.message_store import Appended, MessageStore
from store.opening import StoreOptions

HOST = Host("127.0.0.1", 10911)
BORN_MS = 1_700_000_000_000
_STORED_MS = 2


def pending(
    topic: str = "t",
    body: bytes = b"body",
    queue_id: int = 0,
    *,
    sys_flag: int = 0,
    born_ms: int = BORN_MS,
    born_host: Host = HOST,
    **properties: str,
) -> PendingRecord:
    """A record to be appended; its tags code is that of the property TAGS."""
    return PendingRecord(
        topic,
        queue_id,
        body,
        encode_properties(properties),
        born_ms,
        born_host.packed,
        sys_flag,
        tags_code=tags_code(properties.get("TAGS")),
    )


def encoded(
    records: Iterable[PendingRecord], base: int = 0, crc: bool = True, store_host: Host = HOST
) -> tuple[bytes, list[int]]:
    """The bytes of a log that begins at physical offset `base`, and where in them each record begins.

    Queue offsets count the records. Stored at 2 ms.
    """
    data, starts = bytearray(), []
    for number, record in enumerate(records):
        starts.append(len(data))
        at = base + len(data)
        for part in encode_record(record, number, at, _STORED_MS, store_host.packed, crc):
            data += part
    return bytes(data), starts


def blank(size: int) -> bytes:
    """What fills the end of a segment."""
    return struct.pack(">iI", size, BLANK_MAGIC) + bytes(size - 8)


def open_store(folder: Path, broker: str = "b", **options: Any) -> MessageStore:
    """A store of small segments, of cluster `c`; `options` are those of `MessageStore.open`."""
    given: dict[str, Any] = {"segment_size": 1 << 16, "cluster": "c", "store_host": HOST, **options}
    return MessageStore.open(folder, StoreOptions(broker=broker, **given))


class LogWriter:
    """A store and what writes to it; `close` it before it is read by path to the end."""

    def __init__(self, folder: Path, broker: str = "broker-a", **options: Any) -> None:
        self.folder = folder
        self.store = open_store(folder, broker, **{"segment_size": 1 << 18, **options})
        self.number = 0
        """Of the next one of `messages`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(
        self, topic: str, body: bytes, queue_id: int = 0, sys_flag: int = 0, **properties: Any
    ) -> Appended:
        """Appends one; see `pending` for what may be given."""
        return self.store.append([pending(topic, body, queue_id, sys_flag=sys_flag, **properties)])[0]

    def messages(self, count: int) -> None:
        """Appends so many over three topics of four queues, no two alike, with tag, keys, id and a property."""
        for _ in range(count):
            n = self.number
            self.number += 1
            self.record(
                f"topic-{n % 3}",
                f"body {n} ".encode() * (n % 40 + 1),
                n % 4,
                TAGS=f"tag{n % 2}",
                KEYS=f"key{n} shared key{n}",
                UNIQ_KEY=f"ID{n:030d}",
                colour="ä",
            )

    def everything(self) -> None:
        """Messages, a compressed one, a dead letter, a rollback, journal records, one that erases records of another log."""
        self.messages(300)
        self.record("topic-0", gzip.compress(b"packed"), sys_flag=SYS_COMPRESSED, UNIQ_KEY="GZIP")
        self.record("topic-0", b"rolled back", sys_flag=0xC, UNIQ_KEY="ROLLBACK")
        self.record("%DLQ%g", b"dead", UNIQ_KEY="DEAD", LB_ORIGIN="1:7:3:1:gtopic-1", LB_REASON="because")
        for n in range(20):
            self.journal_record(n)
        self.erasure()

    def erasure(self) -> Appended:
        """A record of the journal that erases records of another log."""
        batch = pb.Batch(version=3, timestamp_ms=BORN_MS)
        batch.erasures.add(broker="gone", log_id="gone", physical_offset=[7, 900], requested_ms=BORN_MS)
        return self.record(JOURNAL_TOPIC, batch.SerializeToString(), TAGS="events")

    def journal_record(self, n: int) -> Appended:
        """One of the journal: deliveries of two messages, a committed offset, a minute's count, a topic and a group."""
        batch = pb.Batch(version=1, timestamp_ms=BORN_MS + n)
        queue = batch.queues.add(
            consumer_group="g", topic="topic-1", queue_id=1, has_committed=True, committed=n, cursor=n + 2
        )
        queue.events.add(
            kind=pb.DELIVERED,
            timestamp_ms=BORN_MS,
            client_id="c",
            queue_offset=[n, n + 1],
            attempt=[1, 2],
            message_id=[f"M{n}", f"M{n + 1}"],
        )
        batch.topics.add(topic="topic-1", read_queues=n + 1, write_queues=n + 1, permission=6)
        batch.groups.add(group="g", retry_max_times=n, deleted=n % 7 == 6)
        batch.stats.add(topic="topic-1", minute_ms=1_700_000_040_000, messages=n, bytes=9)
        return self.record(JOURNAL_TOPIC, batch.SerializeToString(), TAGS="events")

    def raw(self, data: bytes, topic: str = "t") -> Appended:
        """Any bytes where a record should be; the queue index takes them for a record of `topic`.

        Raises ValueError for less than a record needs at least.
        """
        least = len(encoded([pending(topic, b"")])[0])
        if len(data) < least:
            raise ValueError(f"{len(data)} bytes are less than a record of topic {topic!r} has, {least}")
        placed = self.record(topic, bytes(len(data) - least))
        assert placed.size == len(data)
        self.overwrite(placed.physical_offset, data)
        return placed

    def overwrite(self, offset: int, data: bytes) -> None:
        """Writes over the log in place, as a faulty disk does. Raises ValueError beyond its end or a segment's."""
        segment = self.store._log.segment_at(offset)
        if offset + len(data) > min(segment.end, self.store.max_offset):
            raise ValueError(f"{len(data)} bytes at {offset} reach beyond the log or its segment")
        position = offset - segment.start
        segment.view[position : position + len(data)] = data

    def close(self) -> None:
        """Flushes and closes the store."""
        self.store.close()


def written(folder: Path, broker: str, count: int, body: int = 1000, segment_size: int = 1 << 20) -> Path:
    """A closed store of `broker` with `count` records of `body` bytes each; the n-th begins with n."""
    with LogWriter(folder, broker, segment_size=segment_size) as writer:
        for first in range(0, count, 100):
            writer.store.append(
                [
                    pending(
                        f"topic-{n % 3}",
                        f"{n:08d}".encode().ljust(body, b"."),
                        n % 4,
                        UNIQ_KEY=f"{broker}-{n}",
                    )
                    for n in range(first, min(first + 100, count))
                ]
            )
    return folder
