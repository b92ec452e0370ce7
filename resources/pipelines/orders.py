"""An example of Spark Declarative Pipelines on top of `messages`: a topic's JSON bodies as typed columns, counted by minute.

Open-source Spark 4.1 and later runs the same file (`spark-pipelines run`). Bodies of a topic with a schema need no
pipeline: `lakebroker typed` makes their table.

| setting of the pipeline | |
|---|---|
| `lakebroker.messages` | the table `messages` of the lake, `catalog.schema.messages` |
| `lakebroker.topic` | the topic whose bodies are orders |
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.getActiveSession()
assert spark is not None
MESSAGES = spark.conf.get("lakebroker.messages")
TOPIC = spark.conf.get("lakebroker.topic")
ORDER = "order_id STRING, customer STRING, amount DECIMAL(18, 2), unreadable STRING"
"""Fields of a body; what a body lacks is NULL. `unreadable` is the whole body where it is none of that form."""


@dp.table(comment="Orders, one row for each message")
def orders() -> DataFrame:
    """Maintenance rewrites and removes rows of `messages`; `skipChangeCommits` leaves such commits out, which bring nothing new."""
    messages = spark.readStream.option("skipChangeCommits", "true").table(MESSAGES)
    body = f.make_valid_utf8(f.col("body").cast("string"))  # other readers refuse what is not
    parsed = f.from_json(body, ORDER, {"columnNameOfCorruptRecord": "unreadable"})
    return messages.where((f.col("topic") == TOPIC) & ~f.col("is_system")).select(
        "broker", "log_id", "physical_offset", "message_id", "store_timestamp", parsed.alias("order")
    )


@dp.materialized_view(comment="Orders and their amount by minute of storing")
def orders_by_minute() -> DataFrame:
    return (
        spark.read.table("orders")
        .groupBy(f.date_trunc("minute", "store_timestamp").alias("minute"))
        .agg(
            f.count("*").alias("orders"),
            f.count_if(f.col("order.unreadable").isNotNull()).alias("unreadable"),
            f.sum("order.amount").alias("amount"),
        )
    )
