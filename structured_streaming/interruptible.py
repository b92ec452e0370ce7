"""Spark's work that a signal can stop: it runs on a thread of its own, so that no signal breaks into a call of py4j.

pyspark has a handler of SIGINT too, which does; it leaves it away where it is not started by the main thread.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.2
_PATIENCE_S = 5.0
"""What a JVM may take to end by itself."""
T = TypeVar("T")


class Abandoned(KeyboardInterrupt):
    """A second interrupt came before the work had ended."""


def interruptible(
    work: Callable[[], T], stop: Callable[[], None], stopping: threading.Event | None = None
) -> T:
    """The result of `work`.

    At a KeyboardInterrupt, or once `stopping` is set, `stop` is called until the work ended, with whatever; then
    KeyboardInterrupt is raised. At a second one the work is left alone, and Abandoned is raised.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="spark").start()
    try:
        while not future.done():
            wait([future], _LOOK_S)
            if stopping is not None and stopping.is_set():
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            with _nothing_logged():
                while not future.done():
                    stop()
                    wait([future], _LOOK_S)
        except KeyboardInterrupt:
            raise Abandoned from None
        raise
    return future.result()


def started(start: Callable[[], SparkSession], stopping: threading.Event | None = None) -> SparkSession:
    """The session that `start` makes. Interrupted as `interruptible` is; its JVM has ended then."""
    from pyspark import java_gateway

    module: Any = java_gateway  # it hands the process out to nobody before it answers
    launched: list[subprocess.Popen[Any]] = []
    popen = module.Popen
    until = 0.0

    def launch(*arguments: Any, **options: Any) -> Any:
        launched.append(popen(*arguments, **options))
        return launched[-1]

    def stop() -> None:
        nonlocal until
        until = until or time.monotonic() + _PATIENCE_S
        for process in launched:
            if process.poll() is None:
                process.terminate() if time.monotonic() < until else process.kill()

    module.Popen = launch
    try:
        return interruptible(start, stop, stopping)
    except KeyboardInterrupt:
        for process in launched:
            _end(process)
        raise
    finally:
        module.Popen = popen


def of_jobs(session: SparkSession, work: Callable[[], T]) -> T:
    """The result of `work`; interrupted as `interruptible` is, with its Spark jobs cancelled."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    def run() -> T:
        _activate(session)
        session.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "true")
        return work()

    def cancel() -> None:
        with contextlib.suppress(Py4JError):  # the JVM is gone: it got the signal too
            session.sparkContext.cancelAllJobs()

    return interruptible(run, cancel)


def _activate(session: SparkSession) -> None:
    """Makes it the session of this thread, whose options the parser of SQL asks for."""
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends a JVM, with its last words where it is fast."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """py4j logs that connections break, which they are meant to."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
