"""What a Spark session of ours needs for Delta. A session that a platform provides has it."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from structured_streaming.errors import LakeError
from structured_streaming.interruptible import start_is_given_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_LONGEST_FETCH_S, _LOOK_S = 300.0, 0.2
_IVY = "~/.ivy2.5.2"
"""Where Spark puts jars that it has fetched, in a folder there, if no spark-defaults.conf says otherwise."""
_OTHER_IVY = re.compile(r"^\s*spark\.jars\.ivy[\s=:]+(\S+)", re.MULTILINE)


@contextmanager
def delta_jars(builder: SparkSession.Builder, packages: Sequence[str] = ()) -> Iterator[SparkSession.Builder]:
    """The builder with Delta's jars and others (`group:artifact:version`), for a session that is started within. They come from Maven
    Central once, then from Ivy's cache."""
    from delta import configure_spark_with_delta_pip

    configured: Any = configure_spark_with_delta_pip(builder, list(packages))
    with fetched_in_turn(configured._options["spark.jars.packages"].split(",")):
        yield configured


@contextmanager
def fetched_in_turn(packages: Sequence[str]) -> Iterator[None]:
    """Waits while another process of this user may fetch jars, and lets others wait while one of the packages is not there yet: of two
    whose Ivy fetches the same jar at once, one finds the other's half, and its Spark does not start. Waits for `_LONGEST_FETCH_S` at
    most, since it may do so in vain. Raises LakeError when a signal ends the start meanwhile."""
    jars = _ivy() / "jars"  # which is no absolute path where the user has no home
    names = [each.replace(":", "_", 1).replace(":", "-") for each in packages]
    with ExitStack() as fetching:
        if jars.is_absolute():
            with suppress(OSError):  # where nothing can be written, nobody fetches
                jars.mkdir(parents=True, exist_ok=True)
                _wait_for(fetching.enter_context((jars.parent / "lakebroker.lock").open("a")))
        if all((jars / f"{name}.jar").exists() for name in names):
            fetching.close()
        yield


def _ivy() -> Path:
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    other: list[str] = []
    with suppress(OSError):
        other = _OTHER_IVY.findall(Path(folder, "spark-defaults.conf").read_text(errors="replace"))
    return Path(other[-1] if other else os.path.expanduser(_IVY))


def _wait_for(lock: TextIO) -> None:
    until = time.monotonic() + _LONGEST_FETCH_S
    told = False
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told:
            sys.stderr.write(
                f"lakebroker: waiting for another process that starts Spark, and may fetch jars ({lock.name})\n"
            )
            told = True
        if start_is_given_up():
            raise LakeError(
                "Spark was not started: a signal came while it waited for another process that starts Spark"
            )
        time.sleep(_LOOK_S)
