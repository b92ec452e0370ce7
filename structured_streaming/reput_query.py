"""The streaming query of the reput: how it starts, what its end means, and when it starts again."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structured_streaming.absence import OURS, Telling, as_spark_reports, is_absence, names, unless
from structured_streaming.batch_commits import BatchCommits
from structured_streaming.commit.report import BatchReport
from structured_streaming.destination import Destination, destination_of
from structured_streaming.errors import (
    CutShortError,
    ForeignWriterError,
    GapError,
    JvmEndedError,
    LakeError,
    LostDataError,
    SameBrokerError,
)
from structured_streaming.interruptible import activate, has_ended
from structured_streaming.jvm_output import output_end
from structured_streaming.reput_options import Goal, ReputOptions
from structured_streaming.reput_watch import NOBODY, Watch, tell_failure
from structured_streaming.source.notes import NotesFile
from structured_streaming.stopping import Stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RETRIES = 10
"""Times that a failed query starts again without having committed anything in between, where nothing is away."""
RETRIES_ONCE = 3
"""The same of a run that ends by itself, whatever is away."""
LONGEST_WAIT_S = 30.0
_DOUBLINGS = 10
"""Of the wait, which are more than it takes until it is the longest."""
WORKER_LATE = "Python worker failed to connect back"
"""What Spark says when a Python process that it starts took longer than its 10 s, which are not an option."""
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_DETAILS = re.compile(r"JVM stacktrace|=== Streaming Query ===")
WORKER_DIED = "Python worker exited unexpectedly"
"""What Spark says when the process that stages a range dies."""
CAREFUL_AFTER = 2
"""Deaths in a row until a batch is staged by processes of their own (`staging/careful.py`)."""
TYPED_LOOK_S = 5.0
"""Between looks at what typed topics are declared."""
SIGNAL_S = 3.0
"""Spark that failed without a signal may have got ours: it is on its way."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A query that was started, and what belongs to it. `scratch` is to be removed after it ended."""

    query: StreamingQuery
    commits: BatchCommits
    scratch: Path
    notes: NotesFile
    goal: Goal | None


def start_reput(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    destination: Destination | None = None,
) -> tuple[StreamingQuery, Path]:
    """Starts the query; returns it and its scratch folder, to be removed after it ended. Raises LakeError."""
    running = _start(session, options, on_batch, destination or destination_of(options), None)
    return running.query, running.scratch


def _start(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    place: str | None,
    watch: Watch = NOBODY,
) -> _Running:
    """The query's scratch folder is in `place`; without it, where temporary files are."""
    from structured_streaming.reput_source import ReputDataSource
    from structured_streaming.source.data_source import register

    goal = Goal(options) if options.once else None
    register(session, ReputDataSource)
    scratch = Path(tempfile.mkdtemp(prefix="lakebroker-checkpoint-", dir=place))
    notes = scratch / "notes"
    try:
        sink, places = destination.open(session, scratch)
        commits = BatchCommits(sink, options.access, on_batch, watch)
        read = (
            session.readStream.format("lakebroker_reput")
            .options(**options.source() | options.token_file_in(str(scratch)) | places)
            .option("notes", str(notes))
        )
        if goal is not None:
            read = read.option("endingOffsets", goal.ends)
        query = (
            read.load()
            .writeStream.foreachBatch(commits)
            .option("checkpointLocation", f"file://{scratch}/checkpoint")
            .queryName("reput")
            .trigger(processingTime=options.trigger if goal is None else "0 seconds")
            .start()
        )
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if _NO_MODULE.search(str(error)):  # the driver's side of the source is another Python too
            raise LakeError(cause(str(error))) from error
        raise
    if goal is not None:
        threading.Thread(target=_end_when_read, args=(query,), daemon=True).start()
    return _Running(query, commits, scratch, NotesFile(notes), goal)


def _end_when_read(query: StreamingQuery) -> None:
    """Ends a query once nothing more is to be read, with any version of Spark.

    `Trigger.AvailableNow` would read one batch with Spark 4.0 and 4.1.
    """
    with contextlib.suppress(Exception):  # what the query failed with is told by who awaits its end
        query.processAllAvailable()
        query.stop()


class StartAgainError(Exception):
    """The lake did not let a query start. The first one's failure is final; behind one that ran they may be of a store that is away."""

    def __init__(self, cause: LakeError | OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.as_of_spark = as_spark_reports(cause)


def run_until_done(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    scratch: str | None = None,
    jvm: subprocess.Popen[Any] | None = None,
    watch: Watch = NOBODY,
) -> bool:
    """Starts the query again until it is done; whether everything was read. Raises LakeError, JvmEndedError."""
    committed, telling = 0, Telling()

    def counted(report: BatchReport) -> None:
        nonlocal committed
        committed += 1
        on_batch(report)

    failures, tries, seen, careful, ran = 0, 0, 0, False, False
    while not stopping.is_set():
        try:
            chosen = replace(options, careful=careful)
            ended = _run_query(session, chosen, counted, destination, stopping, scratch, watch)
            ran = True
        except StartAgainError as error:
            if not ran:
                if isinstance(error.cause, LakeError):
                    raise error.cause from error
                raise LakeError(f"lake {options.lake}: {error.cause}") from error
            ended = error.as_of_spark
        if isinstance(ended, bool):
            return ended
        if ended is None:
            careful = False
            continue
        problem = ended
        tell_failure(watch, problem)
        if committed > seen:
            telling.over()
            failures = tries = 0
        seen = committed
        failures += 1
        tries += options.once or not is_absence(
            problem
        )  # what was away for long leaves tries to what comes then
        still_careful = careful and is_absence(problem)
        careful = tries >= CAREFUL_AFTER and (WORKER_DIED in problem or still_careful)
        final = tries > retries(problem, once=options.once)
        may_be_end_of_jvm = OURS not in problem or is_absence(problem) or names(problem, CutShortError)
        if final and not may_be_end_of_jvm:
            raise LakeError(cause(problem))
        if stopping.wait(SIGNAL_S):
            return False
        if jvm is not None and has_ended(jvm):
            raise JvmEndedError(jvm.returncode, output_end())
        if final:
            raise LakeError(cause(problem))
        wait_s = min(2.0 ** min(failures, _DOUBLINGS), LONGEST_WAIT_S)
        if not is_absence(problem):
            sys.stderr.write(f"lakebroker: {cause(problem)}; the query starts again in {wait_s:g} s\n")
        elif telling.is_due():
            sys.stderr.write(f"lakebroker: {cause(problem)}; the query starts again when that is over\n")
        stopping.wait(max(wait_s - SIGNAL_S, 0))
    return False


def retries(problem: str, *, once: bool) -> float:
    """How often what a query failed with is worth another start: a run that ends by itself only waits out a slow host
    or one short of memory, and for a while for what is away."""
    if names(problem, ForeignWriterError, GapError, LostDataError, SameBrokerError):
        return 0
    if once:
        waits = (
            WORKER_LATE in problem
            or WORKER_DIED in problem
            or is_absence(problem)
            or names(problem, CutShortError)
        )
        return RETRIES_ONCE if waits else 0
    return math.inf if is_absence(problem) else RETRIES


def _run_query(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    scratch: str | None,
    watch: Watch,
) -> str | bool | None:
    """Runs the query until it ends or `stopping` is set; returns what it failed with or, for a good end, whether
    everything was read that a run that ends by itself has to read. None for one that is to start again: that stages carefully
    and had a batch, or does not know what typed topics are declared by now.

    Raises LakeError for a run that ended by itself before all was read.
    """
    from pyspark.errors import StreamingQueryException

    batches = 0

    def counted(report: BatchReport) -> None:
        nonlocal batches
        batches += 1
        on_batch(report)

    def start() -> _Running:
        activate(session)
        return _start(session, options, counted, destination, scratch, watch)

    try:
        running = unless(stopping.is_set, start, _undo)
    except (LakeError, OSError) as error:
        raise StartAgainError(error) from error
    if running is None:
        return False
    watch.typed(destination.typed_behind())
    other_topics, look_at = False, time.monotonic() + TYPED_LOOK_S
    try:
        while not stopping.is_set() and not running.query.awaitTermination(1):
            running.notes.show()
            if options.careful and batches:
                break
            if not options.once and time.monotonic() > look_at:
                # a lake that hangs neither keeps a signal from being seen, nor that the query ended
                over = partial(_is_over, running, stopping)
                look = partial(_typed_changed, session, destination)
                other_topics = unless(over, look, lambda changed: None) or False
                watch.typed(destination.typed_behind())
                if other_topics:
                    break
                look_at = time.monotonic() + TYPED_LOOK_S
        running.commits.close()
        running.query.stop()
    except StreamingQueryException as error:
        return str(error)
    except BaseException:
        running.commits.close()
        with contextlib.suppress(Exception):  # the session may be a platform's: nothing of ours goes on in it
            running.query.stop()
        raise
    finally:
        running.commits.close()
        running.notes.show()
        shutil.rmtree(running.scratch, ignore_errors=True)
    lacking = None if running.goal is None else running.goal.lacking(destination.ends())
    is_over = stopping.is_set() or lacking == []
    if (other_topics and not stopping.is_set()) or (options.careful and batches and not is_over):
        return None
    if lacking is None:
        return False
    if not is_over:
        raise LakeError(f"not everything was read: {'; '.join(lacking)}; run it again")
    return not lacking


def _is_over(running: _Running, stopping: Stopping) -> bool:
    running.notes.show()
    return stopping.is_set() or not running.query.isActive


def _typed_changed(session: SparkSession, destination: Destination) -> bool:
    """False, too, where that cannot be known now: a lake that is away is the commits' business."""
    try:
        activate(session)
        return destination.typed_changed()
    except (LakeError, OSError):
        return False


def _undo(running: _Running) -> None:
    """Ends a query that nobody waits for any more."""
    running.commits.close()
    running.query.stop()
    shutil.rmtree(running.scratch, ignore_errors=True)


def cause(text: str) -> str:
    """The sentence of our error inside Spark's report of it."""
    for line in reversed(text.splitlines()):
        if OURS in line:
            return line.split("Error: ", 1)[-1].strip()
    if lacking := _NO_MODULE.search(text):
        return (
            f"Spark's workers have no Python module {lacking[1]}: install lakebroker there with its extra cluster, and "
            "name the Python that has it in PYSPARK_PYTHON before Spark starts"
        )
    if WORKER_DIED in text:
        return "a Python worker of Spark died while it staged a batch (it is short of memory, or native code crashed)"
    if WORKER_LATE in text:
        return (
            "a Python worker of Spark did not start within 10 s: this host is overloaded, or that Python cannot run "
            "(PYSPARK_PYTHON; what it printed is above)"
        )
    return " ".join(_DETAILS.split(text, maxsplit=1)[0].split())
