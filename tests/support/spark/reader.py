"""Run by another version of Spark: a stream of the user's own over a store, then the lake's tables through Delta, then SQL over them.

Arguments: store, lake, folder for the checkpoint. Prints a line of JSON: physical offsets that `AvailableNow` read
in two queries, one behind the other, those of the lake's `messages` by Delta's own reader, and how many messages SQL counts.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.sql import delta_session, lake_session, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    store, lake, checkpoint = sys.argv[1:]
    spark = delta_session()
    spark.dataSource.register(LakebrokerDataSource)
    found: list[list[int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        found[-1] += [row.physical_offset for row in batch.select("physical_offset").collect()]

    for _ in range(2):  # the second goes on from the first one's checkpoint: there is nothing more
        found.append([])
        stream: Any = spark.readStream.format("lakebroker").option("store", store).load()
        writer = stream.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    messages = spark.read.format("delta").load(f"{lake}/messages").select("physical_offset").collect()
    session, tables = lake_session(lake)
    (count,) = query(session, "SELECT count(*) AS n FROM messages", tables=tables)["n"].to_pylist()
    print(
        json.dumps({"streams": found, "lake": [row.physical_offset for row in messages], "sql": int(count)})
    )


if __name__ == "__main__":
    main()
