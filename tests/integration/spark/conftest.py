"""Spark, and logs written straight to a store, for the tests of this folder."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.message_store import MessageStore
from store.record import SYS_COMPRESSED, Host, PendingRecord, encode_properties, tags_code
from structured_streaming.sql import delta_session

JOURNAL = "rmq_sys_lakebroker_journal"
HOST = Host("127.0.0.1", 10911)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    yield session
    session.stop()


class Writer:
    """A store and what writes to it; `close` before it is read by path to the end."""

    def __init__(self, folder: Path, broker: str = "broker-a") -> None:
        self.folder = folder
        self.store = MessageStore.open(
            folder, broker=broker, cluster="c", store_host=HOST, segment_size=1 << 18
        )
        self.number = 0

    def record(
        self, topic: str, body: bytes, queue_id: int = 0, sys_flag: int = 0, **properties: str
    ) -> None:
        self.store.append(
            [
                PendingRecord(
                    topic,
                    queue_id,
                    body,
                    encode_properties(properties),
                    1_700_000_000_000,
                    HOST.packed,
                    sys_flag=sys_flag,
                    tags_code=tags_code(properties.get("TAGS")),
                )
            ]
        )

    def messages(self, count: int) -> None:
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
        """Messages, a compressed one, a dead letter, a rollback, journal records."""
        self.messages(300)
        self.record("topic-0", gzip.compress(b"packed"), sys_flag=SYS_COMPRESSED, UNIQ_KEY="GZIP")
        self.record("topic-0", b"rolled back", sys_flag=0xC, UNIQ_KEY="ROLLBACK")
        self.record("%DLQ%g", b"dead", UNIQ_KEY="DEAD", LB_ORIGIN="1:7:3:1:gtopic-1", LB_REASON="because")
        for n in range(20):
            batch = pb.Batch(version=1, timestamp_ms=1_700_000_000_000 + n)
            queue = batch.queues.add(
                consumer_group="g", topic="topic-1", queue_id=1, has_committed=True, committed=n, cursor=n + 2
            )
            queue.events.add(
                kind=pb.DELIVERED,
                timestamp_ms=1_700_000_000_000,
                client_id="c",
                queue_offset=[n, n + 1],
                attempt=[1, 2],
                message_id=[f"M{n}", f"M{n + 1}"],
            )
            batch.stats.add(topic="topic-1", minute_ms=1_700_000_040_000, messages=n, bytes=9)
            self.record(JOURNAL, batch.SerializeToString(), TAGS="events")

    def close(self) -> None:
        self.store.close()


def rows(lake: Path, table: str) -> pa.Table:
    """A table of the lake."""
    return DeltaTable(str(lake / table)).to_pyarrow_table()
