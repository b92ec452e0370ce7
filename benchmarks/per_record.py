"""The pipeline that one would write first: every record parsed in Python, rows to Spark, Spark's Delta writer for three tables.

`python -m benchmarks.per_record STORE LAKE` prints a line of JSON for each batch: the records in it. Messages have fewer columns than
the reput's, statistics and order are left to Spark.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from store.log_reader import LogReader
from structured_streaming.sql import delta_session

_BATCH_BYTES = 256 << 20
_RANGE_BYTES = 64 << 20
_ROWS = 10_000
_SCHEMA = (
    "physical_offset long, topic string, queue_id int, queue_offset long, size int, store_timestamp long, "
    "properties map<string,string>, body binary"
)


def records(data: bytes, base: int) -> Iterator[tuple[Any, ...]]:
    """A row of each record."""
    at = 0
    while at + 4 <= len(data):
        size, magic = struct.unpack_from(">ii", data, at)
        if magic != -626843481:
            return
        queue_id, _, queue_offset = struct.unpack_from(">iiq", data, at + 12)
        (stored,) = struct.unpack_from(">q", data, at + 56)
        (length,) = struct.unpack_from(">i", data, at + 84)
        begin = at + 88 + length
        body, topic_end = data[at + 88 : begin], begin + 1 + data[begin]
        topic = data[begin + 1 : topic_end].decode()
        (count,) = struct.unpack_from(">h", data, topic_end)
        text = data[topic_end + 2 : topic_end + 2 + count].decode()
        properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        yield base + at, topic, queue_id, queue_offset, size, stored, properties, body
        at += size


def main(store: str, lake: Path) -> None:
    """Appends the whole log, a batch at a time."""
    import pandas as pd
    from pyspark.sql.functions import col, explode, split

    session = delta_session()
    columns = [field.split()[0] for field in _SCHEMA.split(", ")]

    def parsed(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        reader = LogReader(Path(store))
        for part in parts:
            for first, last in zip(part["first"], part["last"], strict=True):
                for offset, data, _ in reader.read_chunks(first, last, _RANGE_BYTES):
                    rows = records(bytes(data), offset)
                    while some := list(itertools.islice(rows, _ROWS)):
                        yield pd.DataFrame(some, columns=columns)

    reader = LogReader(Path(store))
    bounds = reader.split(reader.min_offset, reader.readable_offset, _RANGE_BYTES)
    ranges = list(itertools.pairwise(bounds))
    a_batch = _BATCH_BYTES // _RANGE_BYTES
    for at in range(0, len(ranges), a_batch):
        some = ranges[at : at + a_batch]
        frame = session.createDataFrame(some, "first long, last long").repartition(len(some))
        messages = frame.mapInPandas(parsed, _SCHEMA).persist()
        keys = explode(split(col("properties")["KEYS"], " ")).alias("key")
        tables = {
            "messages": messages,
            "consume_queue": messages.drop("properties", "body"),
            "message_index": messages.select("physical_offset", "topic", "queue_id", "queue_offset", keys),
        }
        for name, rows in tables.items():
            rows.write.format("delta").mode("append").save(str(lake / name))
        print(json.dumps({"records": messages.count()}), flush=True)
        messages.unpersist()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
