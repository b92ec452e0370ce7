"""A driver as a platform runs one: it has a Spark session, and calls the entry point of a wheel within its own process.

    python -m tests.support.spark.hosted_driver '{"runs": [["init", "--lake", "LAKE"]], "threads": [0], "settings": {}, "again": {}, "at_run_time": {}}'

`settings` are those of the session at its start; `again` are a builder's that finds it there, `at_run_time` are set later. Each run is the parameters of a task; `threads` are the
numbers of those that run on another thread than the main one. With `stop_when_read` a query that has read what there is is stopped, as
a platform stops a job that goes on for ever. The last line that
it prints is JSON: how each run ended (null for returned), and what it found changed of what is the driver's. The status is 0
whatever the runs did: a driver that is ended prints none.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import signal
import sys
import threading
import time
from typing import Any

from pyspark.sql import SparkSession

from structured_streaming.workers_python import workers_with_this_python

NAME = "lakebroker"


def main() -> None:
    """See the module."""
    asked = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("somebody-else")
    for name, value in asked.get("settings", {}).items():
        builder = builder.config(name, value)
    # a platform's workers import pyspark from no zip either; Spark waits 10 s for one, also on a busy machine
    with workers_with_this_python("local"):
        spark = builder.getOrCreate()
    for name, value in asked.get("again", {}).items():
        spark = SparkSession.builder.config(name, value).getOrCreate()
    for name, value in asked.get("at_run_time", {}).items():
        spark.conf.set(name, value)
    spark.range(7).createOrReplaceTempView("messages")
    before = state(spark)
    ended: list[str | None] = []
    if asked.get("stop_when_read"):
        threading.Thread(target=stop_when_read, args=(spark,), daemon=True).start()
    for number, parameters in enumerate(asked["runs"]):
        if number in asked.get("threads", []):
            thread = threading.Thread(target=task, args=(parameters, ended))
            thread.start()
            thread.join()
        else:
            task(parameters, ended)
    after = state(spark)
    changed = {name: difference(before[name], after[name]) for name in before if before[name] != after[name]}
    alive = [spark.range(3).count(), spark.table("messages").count()]
    print(
        json.dumps({"ended": ended, "changed": changed, "alive": alive, "spark": spark.version}), flush=True
    )


def task(parameters: list[str], ended: list[str | None]) -> None:
    """Calls the entry point as a platform does, and notes what became of it."""
    (entry,) = importlib.metadata.distribution(NAME).entry_points.select(name=NAME)
    sys.argv = [NAME, *parameters]
    try:
        entry.load()()
    except BaseException as error:
        ended.append(f"{type(error).__name__}: {error}")
    else:
        ended.append(None)


def stop_when_read(spark: SparkSession) -> None:
    """Stops the next query once it has read what there is."""
    while not spark.streams.active:
        time.sleep(0.2)
    (query,) = spark.streams.active
    with contextlib.suppress(Exception):  # what it failed with is told by the task
        query.processAllAvailable()
        query.stop()


def difference(before: Any, after: Any) -> list[Any]:
    """Both; of settings those alone that are not the same."""
    if not isinstance(before, dict):
        return [before, after]
    names = {name for name in before | after if before.get(name) != after.get(name)}
    return [{name: each[name] for name in sorted(names) if name in each} for each in (before, after)]


def state(spark: SparkSession) -> dict[str, Any]:
    """What a task has to leave as it is."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    return {
        "settings": {row["key"]: row["value"] for row in spark.sql("SET").collect()},
        "context": sorted(context.getConf().getAll()),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "log level": str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()),
        "py4j": [logging.getLogger(name).level for name in ("", "py4j")],
        "filters": [len(logging.getLogger(name).filters) for name in ("", "py4j")],
        "listeners": len(spark._jsparkSession.streams().listListeners()),
        "queries": [query.name for query in spark.streams.active],
        "views": sorted(row["viewName"] for row in spark.sql("SHOW VIEWS").collect()),
        "active": SparkSession.active()._jsparkSession.equals(spark._jsparkSession),
        "tags": sorted(context.getJobTags()),
        "properties": context.getLocalProperty("spark.job.interruptOnCancel"),
        "terminal": [str(stream) for stream in (sys.stdout, sys.stderr)],
    }


if __name__ == "__main__":
    main()
