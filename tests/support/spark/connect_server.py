"""Spark Connect over a lake's table `messages`, as a catalog has it: `python -m tests.support.spark.connect_server LAKE WAREHOUSE PORT`.

Prints a line when it serves; ends when its standard input does. The catalog is in its memory, so that all who connect see the same.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from structured_streaming.delta_session import DELTA_SETTINGS, delta_jars


def serve(lake: str, warehouse: str, port: str) -> None:
    builder = SparkSession.builder.master("local[2]")
    settings = DELTA_SETTINGS | {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"file://{warehouse}",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with delta_jars(builder) as with_jars:
        session = with_jars.getOrCreate()
    session.sql(f"CREATE TABLE messages USING delta LOCATION 'file://{lake}/messages'")
    print("serves", flush=True)
    sys.stdin.read()
    session.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
