"""The Spark session that the reput makes for itself where none is there (`provided_session.py`), and how one ends."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from structured_streaming.delta_session import DELTA_SETTINGS, delta_jars
from structured_streaming.errors import CutShortError, with_causes
from structured_streaming.interruptible import has_ended, nothing_logged
from structured_streaming.jvm_output import jvm_output_to_file
from structured_streaming.provided_session import DEFAULT_MASTER, made_here
from structured_streaming.scratch import scratch_folder
from structured_streaming.stopping import Stopping
from structured_streaming.without_pandas import WITHOUT_PANDAS
from structured_streaming.workers_python import is_local, workers_with_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""The JVM only coordinates: optimising its code took two of every three seconds that the batches had. That mode keeps 48 MB
for compiled code, which Delta's own writer fills within a minute; where it is full, a JVM may end."""
_MEMORY_SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=268435456",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Environment of the processes that stage: what one range freed, the next one takes. Given back to the system and zeroed by
it again, that memory was a fifth of their time. Spark ends a process that is idle for a minute."""
_ENDS_S = 1.0
_BROKEN_S = 30.0
"""For the end of a JVM, behind any error, and behind a connection to it that broke."""
_LOOK_S = 0.2
_late = weakref.WeakSet[threading.Thread]()
"""Threads that there were when a session of ours had ended."""
_ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def reput_session(
    master: str = DEFAULT_MASTER, scratch: str = "", driver_host: str = "", *, delta: bool = False
) -> SparkSession:
    """A Spark session for the job: no UI, one Python for driver and workers. With `delta`, Spark itself writes tables: Delta's
    jars are needed, and the catalogs that spark-defaults.conf configures are used.

    A local master stays on loopback. With another one, executors connect to `driver_host`; without it Spark decides
    (`spark.driver.host` of spark-defaults.conf, SPARK_LOCAL_IP, the host name). What Spark leaves on disk is in
    `scratch`, which the caller removes; without it, in a folder that goes with the process.
    """
    from pyspark.sql import SparkSession

    scratch = scratch or scratch_folder()
    settings = {
        "spark.driver.extraJavaOptions": f'{_JVM_OPTIONS} "-Djava.io.tmpdir={scratch}"',
        "spark.local.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.stopTimeout": "30s",
        **addresses_of(master, driver_host),
        **{f"spark.executorEnv.{name}": value for name, value in _MEMORY_SETTINGS.items()},
        f"spark.executorEnv.{WITHOUT_PANDAS}": "1",
    }
    if is_local(master):  # there they have the JVM's environment
        for name, value in _MEMORY_SETTINGS.items():
            os.environ.setdefault(name, value)
    settings |= DELTA_SETTINGS if delta else {"spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    builder = SparkSession.builder.appName("lakebroker-reput").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    jars = delta_jars(builder) if delta else contextlib.nullcontext(builder)
    with workers_with_this_python(master), jars as with_jars, jvm_output_to_file():
        session = with_jars.getOrCreate()
        made_here(session)
        session.sparkContext.setLogLevel("ERROR")
        _write_checkpoints_cheaply(session)
    return session


def end_session(session: SparkSession | None) -> None:
    """Stops Spark. Where its JVM has ended, the next session of this process starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with nothing_logged(), warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # pyspark warns that the JVM is gone
        if session is not None:
            session.stop()
    gateway: Any = SparkContext._gateway
    if gateway is None or not has_ended(gateway.proc):
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    with nothing_logged(), contextlib.suppress(Exception):
        gateway.shutdown()  # its callback server


def _write_checkpoints_cheaply(session: SparkSession) -> None:
    """The checkpoint is scratch, and was a third of a small batch's time: each of its files was made with a checksum file
    beside, and a process that sets its permissions."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    streaming = session._jvm.org.apache.spark.sql.execution.streaming  # type: ignore[union-attr]
    for package in (streaming.checkpointing, streaming):  # of Spark 4.1 and later, and 4.0
        manager = package.FileSystemBasedCheckpointFileManager
        if isinstance(manager, JavaClass):
            session.conf.set("spark.sql.streaming.checkpointFileManagerClass", manager._fqn)
            return


def addresses_of(master: str, driver_host: str) -> dict[str, str]:
    if is_local(master):
        return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return {"spark.driver.host": driver_host} if driver_host else {}


def sends_in_plaintext(settings: Mapping[str, str]) -> bool:
    """Whether what executors need is sent to them over connections that are not encrypted; by the settings of the context."""
    return not is_local(settings.get("spark.master", "")) and not any(
        settings.get(each) == "true" for each in _ENCRYPTED
    )


def jvm_ends(jvm: subprocess.Popen[Any] | None, error: BaseException | None, stopping: Stopping) -> bool:
    """Whether our JVM has ended, or ends after an error that its end may be the cause of.

    Its connections break before its process has ended: seconds before on a busy host. A signal, which ends both, says enough.
    """
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    broken = error is not None and any(
        isinstance(each, Py4JNetworkError | CutShortError) for each in with_causes(error)
    )
    if jvm is None or not broken:
        return has_ended(jvm, _ENDS_S)
    until = time.monotonic() + _BROKEN_S
    while not (ends := stopping.is_set() or has_ended(jvm, _LOOK_S)) and time.monotonic() < until:
        pass
    return ends


def expect_end_of_jvm(
    session: SparkSession, is_expected: Callable[[BaseException | None], bool], *, ours: bool
) -> Callable[[], None]:
    """A signal to the process group ends the JVM too: its connections break then, which is no error.

    `is_expected` gets what py4j failed with, and waits for a signal, or the JVM's end, for a while; whether one came. Returns
    what undoes it. Where the JVM is `ours`, a thread that waited for it may log later, which is no error either.
    """

    def is_told(record: logging.LogRecord) -> bool:
        return not _of_failure(record) or not is_expected(_error_of(record))

    # py4j logs to the root logger too
    loggers = [logging.getLogger(name) for name in ("", "py4j", "py4j.java_gateway", "py4j.clientserver")]
    for each in loggers:
        each.addFilter(is_told)
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    tell = getattr(server, "handle_error", None)

    def handle_error(request: object, address: object) -> None:
        if tell is not None and not is_expected(sys.exception()):
            tell(request, address)

    if server is not None:
        server.handle_error = handle_error

    def undo() -> None:
        if ours:
            _late.update(set(threading.enumerate()) - {threading.current_thread()})
        for each in loggers:
            if ours:
                each.addFilter(_is_of_no_late_thread)
            each.removeFilter(is_told)
        if server is not None and not ours:
            server.handle_error = tell

    return undo


def _is_of_no_late_thread(record: logging.LogRecord) -> bool:
    return not _of_failure(record) or threading.current_thread() not in _late


def _of_failure(record: logging.LogRecord) -> bool:
    """Whether py4j says that a connection failed."""
    return "py4j" in record.pathname and (record.levelno >= logging.WARNING or _error_of(record) is not None)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None
