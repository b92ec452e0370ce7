"""What a Spark session of ours needs for Delta. A session that a platform provides has it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_JARS = "~/.ivy2.5.2/jars"
"""Where Spark puts jars that it has fetched, if no spark-defaults.conf says otherwise."""


@contextmanager
def delta_jars(builder: SparkSession.Builder, packages: Sequence[str] = ()) -> Iterator[SparkSession.Builder]:
    """The builder with Delta's jars and others (`group:artifact:version`), for a session that is started within. They come from Maven
    Central once, then from Ivy's cache."""
    from delta import configure_spark_with_delta_pip
    from pyspark import __version__ as spark

    ours = f"io.delta:delta-spark_{'.'.join(spark.split('.')[:2])}_*:{version('delta-spark')}"
    with fetched_in_turn((ours, *packages)):
        yield configure_spark_with_delta_pip(builder, list(packages))


@contextmanager
def fetched_in_turn(packages: Sequence[str]) -> Iterator[None]:
    """Waits while another process of this user fetches jars, and lets others wait while one of the packages is not there yet: of two
    whose Ivy fetches the same jar at once, one finds the other's half, and its Spark does not start."""
    jars = Path(os.path.expanduser(_JARS))  # which is no absolute path where the user has no home
    names = [each.replace(":", "_", 1).replace(":", "-") for each in packages]
    with ExitStack() as fetching:
        if jars.is_absolute():
            with suppress(OSError):  # where nothing can be written, nobody fetches
                jars.mkdir(parents=True, exist_ok=True)
                lock = fetching.enter_context((jars.parent / "lakebroker.lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        if all(any(jars.glob(f"{name}.jar")) for name in names):
            fetching.close()
        yield
