"""Spark's work that a signal can stop: it runs on a thread of its own, so that no signal breaks into a call of py4j.

Signals are noted meanwhile, and handled as before when the work has ended. pyspark has a handler of SIGINT too, which
does break in; it installs none when it is not started by the main thread.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from structured_streaming.errors import LakeError
from structured_streaming.provided_session import is_hosted, is_ours, is_remote_session
from structured_streaming.signal_handlers import handled_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.2
_PATIENCE_S = 5.0
"""What a JVM may take to end by itself."""
_starts = threading.local()
T = TypeVar("T")


class Abandoned(KeyboardInterrupt):
    """Signals came again before the work had ended. `status` is what a command answers that the first one ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def interruptible(work: Callable[[], T], stop: Callable[[int], None], most: int = 2) -> tuple[T, int]:
    """The result of `work`, and the number of the first signal (SIGINT, SIGTERM) that came before it ended, else 0.

    From a signal on, `stop` is called again and again with how many came, until the work has ended. When it ended
    with an error, the signal is passed on (`pass_on`). The signal that makes `most` raises Abandoned, whatever `stop`
    does then, and the work is left alone. To other threads than the main one no signal comes: there it is only done.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(), 0
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    with _noted_signals(most) as noted:
        threading.Thread(target=run, daemon=True, name="spark").start()
        while not future.done() and not noted:
            wait([future], _LOOK_S)
        if noted:
            with nothing_logged():
                while not future.done():
                    stop(len(noted))
                    wait([future], _LOOK_S)
    if not noted:
        return future.result(), 0
    if future.exception() is not None:
        pass_on(noted[0])
    return future.result(), noted[0]


def pass_on(number: int) -> NoReturn:
    """Has a signal handled that was noted; raises KeyboardInterrupt where its handler raises nothing."""
    signal.raise_signal(number)
    raise KeyboardInterrupt


def started(start: Callable[[], SparkSession]) -> SparkSession:
    """The session that `start` makes. At a signal its JVM is ended, then the signal is passed on. Where a session is there already, whose
    JVM is another's, it is only called."""
    if is_hosted():
        return start()
    launched: list[subprocess.Popen[Any]] = []
    until = 0.0
    given_up = threading.Event()

    def watched() -> SparkSession:
        from pyspark import java_gateway

        _starts.given_up = given_up

        module: Any = java_gateway  # it hands the process out to nobody before it answers
        popen = module.Popen

        def launch(*arguments: Any, **options: Any) -> Any:
            launched.append(popen(*arguments, **options))
            return launched[-1]

        module.Popen = launch
        try:
            return start()
        finally:
            module.Popen = popen

    def stop(signals: int) -> None:
        nonlocal until
        given_up.set()
        until = until or time.monotonic() + _PATIENCE_S
        gently = signals == 1 and time.monotonic() < until
        for process in launched:
            if process.poll() is None:
                process.terminate() if gently else process.kill()

    try:
        session, number = interruptible(watched, stop, most=3)
        if number:
            pass_on(number)
    except KeyboardInterrupt:
        for process in launched:
            _end(process)
        raise
    return session


def start_is_given_up() -> bool:
    """Whether a signal came since `started` began to start a session on this thread."""
    given_up: threading.Event | None = getattr(_starts, "given_up", None)
    return given_up is not None and given_up.is_set()


def of_jobs(session: SparkSession, work: Callable[[], T]) -> tuple[T, int]:
    """As `interruptible`; Spark's jobs are cancelled at a signal. Where it raises Abandoned, the JVM is ended, and signals
    that come meanwhile do nothing. Of a session that was there before only the jobs of this work are cancelled, and the JVM stays.

    Raises LakeError when the JVM does not answer.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    ours, tag = is_ours(session), f"lakebroker-{uuid.uuid4().hex}"

    def run() -> T:
        try:
            activate(session)
            session.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "true")
            if not ours:
                session.sparkContext.addJobTag(tag)
        except (Py4JError, OSError) as error:
            raise LakeError(f"Spark does not answer ({error}); start again") from error
        return work()

    def cancel(_signals: int) -> None:
        with contextlib.suppress(Py4JError, OSError):  # the JVM is gone: it got the signal too
            if ours:
                session.sparkContext.cancelAllJobs()
            else:
                session.sparkContext.cancelJobsWithTag(tag)

    if not ours and threading.current_thread() is not threading.main_thread():
        with active_meanwhile(session):
            return work(), 0
    try:
        return interruptible(inheriting(session, run), cancel)
    except Abandoned:
        jvm = jvm_of(session) if ours else None
        if jvm is not None:
            with handled_by(signal.SIG_IGN):
                _end(jvm)
        raise


def inheriting(session: SparkSession, work: Callable[[], T]) -> Callable[[], T]:
    """`work` to be done once, on another thread: in a session that was there before with what was set for this one, by which a platform
    cancels. Each has a copy of its own: Spark notes there what a thread runs."""
    from pyspark import inheritable_thread_target

    if is_remote_session(session) or is_ours(session):
        return work
    inherited: Callable[[], T] = inheritable_thread_target(session)(work)
    return inherited


def jvm_of(session: SparkSession) -> subprocess.Popen[Any] | None:
    """The process that pyspark started for the session; None where it was there before, as under spark-submit."""
    gateway: Any = session.sparkContext._gateway
    process: subprocess.Popen[Any] | None = getattr(gateway, "proc", None)
    return process


def has_ended(process: subprocess.Popen[Any] | None, within_s: float = 0.0) -> bool:
    """Whether a process of ours has ended, or ends within so many seconds."""
    if process is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.returncode is not None


def activate(session: SparkSession) -> None:
    """Makes it the session of this thread, whose options the parser of SQL asks for."""
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextmanager
def active_meanwhile(session: SparkSession) -> Iterator[None]:
    """As `activate`; afterwards the thread has the session again that it had."""
    of_jvm: Any = session._get_j_spark_session_class(session._jvm)
    before = of_jvm.getActiveSession()
    activate(session)
    try:
        yield
    finally:
        if before.isDefined():
            of_jvm.setActiveSession(before.get())
        else:
            of_jvm.clearActiveSession()


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends a JVM, with its last words where it is fast."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: nobody can end it
            process.wait(_PATIENCE_S)


@contextmanager
def _noted_signals(most: int) -> Iterator[list[int]]:
    """The numbers of signals that come within, which are not handled; Abandoned is raised where there are `most`."""
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        if len(noted) >= most:
            raise Abandoned(noted[0])

    with handled_by(note):
        yield noted


@contextmanager
def nothing_logged() -> Iterator[None]:
    """py4j logs that connections break, which they are meant to."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
