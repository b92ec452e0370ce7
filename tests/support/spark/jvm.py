"""The JVMs of Spark that tests start: very many, for a short time and little data each.

The second compiler, code made for each plan, and plans made anew between stages would never earn there what they cost; the
reput does without the last two by itself. The first compiler alone has 48 MB for its code, which Delta's writer fills
within a minute: a JVM that has no room left may end.

A JVM loads ten thousand classes before it has read a table, which was two fifths of what it did. `make` keeps them as the
JVM wants them (class data sharing) in an archive beside the virtual environment's Python:

    python -m tests.support.spark.jvm

Where the archive is missing or of other jars, a JVM loads them from the jars, and is slower. It refuses one that was made
beside a configuration folder with files, so the settings are system properties here and no spark-defaults.conf.

The archive has no classes of Delta, whose jars come behind the JVM's start, and none of Scala's functions: JDK 17 keeps none
that can be serialized, which leaves eight thousand of them to be made anew. With Delta's jars on the class path and so in the
archive, or with fewer methods compiled (`CompileThresholdScaling`), a JVM that commits cost the same; so it did without verifying
classes, without Delta's checksums of its logs, with local files that Hadoop keeps no checksums of, and with plans that are written
out in short for a UI that is not there. What costs is code that runs for the first time: the first commits of a JVM take more
than twice what later ones do, and a start of Spark's sink, which commits to each table, 11 CPU seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from broker_gateway.cli.signals import Signalled, raised_signals
from structured_streaming.without_pandas import WITHOUT_PANDAS

ARCHIVE = Path(sys.prefix) / ".spark-classes.jsa"
JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable that has them."""
_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    "-Xmn300m",  # of 1 GB; a third of it is in use
    "-Djdk.lang.Process.launchMechanism=VFORK",  # Hadoop has other programs read links and set permissions of local files
    "-Xlog:disable",  # of an archive that does not fit
    "-Xlog:all=error:stderr",
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Dspark.sql.adaptive.enabled=false",
    f"-Dspark.executorEnv.{WITHOUT_PANDAS}=1",
)
NO_CONFIGURATION = Path(__file__).parents[2] / "data" / "no-spark-configuration"
"""There is no such folder. Its name counts: an archive fits the class path that it was made with, which begins with this."""


@contextmanager
def environment(archive: str = f"-XX:SharedArchiveFile={ARCHIVE}") -> Iterator[None]:
    """For the JVMs that this process and its children start. What the environment says already stays as it is.

    Their temporary files go at the end, also those of JVMs that were killed.
    """
    scratch = tempfile.mkdtemp(prefix="lakebroker-jvms-")
    try:
        with patch.dict(os.environ):
            os.environ.setdefault("SPARK_CONF_DIR", str(NO_CONFIGURATION))
            options = (*_OPTIONS, archive, f"-Djava.io.tmpdir={scratch}")
            os.environ.setdefault(JVM_OPTIONS, " ".join(options))
            yield
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # a JVM may be removing its own


def make_archive() -> None:
    """Has a JVM do what tests do, and keep the classes that it loaded."""
    # a JVM whose process was interrupted still writes, into a folder that is gone
    with tempfile.TemporaryDirectory(prefix=".spark-classes-", dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        with environment(f"-XX:ArchiveClassesAtExit={made}"):
            _load_classes()
        made.replace(ARCHIVE)


def _load_classes() -> None:
    from structured_streaming.interruptible import jvm_of, started
    from structured_streaming.sql import delta_session, tables_in
    from structured_streaming.views import VIEWS
    from tests.support.spark.lake import SparkLake
    from tests.support.spark.reput_runs import reput_once

    session = started(delta_session)
    with tempfile.TemporaryDirectory() as folder:
        lake = SparkLake(session, Path(folder))
        first, *_, end = lake.cuts()
        lake.sink().commit(lake.manifest(first, end))
        reput_once(session, Path(folder) / "other", lake.store)
        tables_in(session, str(lake.lake)).bind_all()
        for view in VIEWS:
            session.sql(f"SELECT * FROM {view.name}").collect()
    jvm = jvm_of(session)
    session.stop()
    jvm.stdin.close()  # it ends then, and writes the archive
    jvm.wait()


if __name__ == "__main__":
    try:
        with raised_signals():
            make_archive()
    except Signalled as stop:
        sys.exit(stop.status)
