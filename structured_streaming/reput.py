"""The reput job: one streaming query that builds the lake from the commit logs.

Executors scan and stage (`staging/stage.py`), the driver commits (`commit/delta_commit.py`). Where to begin is
decided by the lake, never by Spark's checkpoint, which is scratch: each start makes a new one, so that a
lost, copied or second checkpoint neither skips nor repeats.

What is away (brokers, an object store, a catalog) is waited for as long as it takes; a run with `once` ends after some tries.

A signal ends the job cleanly, whoever else got it: a commit under way is finished, a batch that was not
committed repeats at the next start. A second signal ends Spark at once, which is as safe. With `once`, a signal makes the
run fail and say how far it got.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from structured_streaming.absence import OURS, Telling, as_spark_reports, is_absence, names, unless
from structured_streaming.batch_commits import BatchCommits
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.report import BatchReport
from structured_streaming.destination import Destination, destination_of
from structured_streaming.errors import (
    ForeignWriterError,
    GapError,
    LakeError,
    LostDataError,
    SameBrokerError,
    StoppedError,
)
from structured_streaming.interruptible import activate, jvm_of, started
from structured_streaming.jvm_output import STARTING
from structured_streaming.reput_options import Goal, ReputOptions, checked
from structured_streaming.reput_session import (
    expect_end_of_jvm,
    provided_session,
    reput_session,
    sends_in_plaintext,
)
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
_PLAINTEXT = (
    "the gateways' token goes to executors over Spark's connections, which are not encrypted; set "
    "spark.authenticate=true and spark.network.crypto.enabled=true in the cluster"
)
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_DETAILS = re.compile(r"JVM stacktrace|=== Streaming Query ===")
WORKER_DIED = "Python worker exited unexpectedly"
"""What Spark says when the process that stages a range dies."""
CAREFUL_AFTER = 2
"""Deaths in a row until a batch is staged by processes of their own (`staging/careful.py`)."""
_REACHED_S = 3.0
"""What looking where the lake is may take at the end, when all else is done."""
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
) -> _Running:
    """The query's scratch folder is in `place`; without it, where temporary files are."""
    from structured_streaming.reput_source import ReputDataSource

    goal = Goal(options) if options.once else None
    session.dataSource.register(ReputDataSource)
    scratch = Path(tempfile.mkdtemp(prefix="lakebroker-checkpoint-", dir=place))
    try:
        sink, places = destination.open(session, scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    commits = BatchCommits(sink, options.access, on_batch)
    notes = scratch / "notes"
    read = (
        session.readStream.format("lakebroker_reput")
        .options(**options.source() | places)
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


def run_reput(
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    master: str = "local[2]",
    destination: Destination | None = None,
    tell: Callable[[str], None] = lambda text: None,
    driver_host: str = "",
) -> None:
    """Runs the job until it is done (`once`) or a signal stops it; a failed query starts again.

    Where the platform provides a session, that one is used as it is, and left as it was; `master` and `driver_host` are
    of no effect then. Raises LakeError, StoppedError where a signal came before it was done.

    `tell` gets a line before Spark starts, one when it begins to read, and one when it has ended as it should.
    """
    destination = destination or destination_of(options)
    destination.check()
    options = checked(options)
    destination.prepare()
    provided = provided_session()
    stopping, complete = Stopping(), False
    with tempfile.TemporaryDirectory(prefix="lakebroker-spark-", ignore_cleanup_errors=True) as scratch:
        session, undo = provided, _nothing
        try:
            if session is None:
                tell(STARTING)
                session = started(
                    lambda: reput_session(master, scratch, driver_host, delta=destination.by_spark)
                )
                stopping.ends(jvm_of(session))
            undo = expect_end_of_jvm(session, lambda: stopping.wait(SIGNAL_S))
            if not stopping.is_set():
                tell(_reading(options))
                if options.token_file and sends_in_plaintext(session):
                    tell(_PLAINTEXT)
            complete = _run(session, options, on_batch, destination, stopping, scratch)
        except KeyboardInterrupt:
            if not stopping.is_set():
                raise
        except Exception as error:
            if isinstance(error, LakeError) or not stopping.wait(SIGNAL_S):
                raise
        finally:
            if stopping.is_set():
                # the JVM may be gone: it got the signal too
                logging.getLogger("py4j").setLevel(logging.CRITICAL)
            if provided is not None:
                undo()
                stopping.restore()
            elif session is not None:
                with contextlib.suppress(Exception):
                    session.stop()
            stopping.reap()
    if options.once and not complete:
        raise StoppedError(stopping.number, _reached(options.lake, destination))
    tell(f"{'done' if options.once else 'stopped'}; {_reached(options.lake, destination)}")


def _nothing() -> None:
    """What is to be undone at first."""


class StartAgainError(Exception):
    """The lake did not let a query start. The first one's failure is final; later ones may be of a store that is away."""

    def __init__(self, cause: LakeError) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.as_of_spark = as_spark_reports(cause)


def _reading(options: ReputOptions) -> str:
    named, asked = options.targets, options.name_servers
    if asked:
        also = f" and {', '.join(each.partition(':')[2] for each in named)}" if named else ""
        return f"reading the brokers that {', '.join(asked)} know{'s' if len(asked) == 1 else ''}{also}"
    logs = "1 log" if len(named) == 1 else f"{len(named)} logs"
    return f"reading {logs} from {', '.join(each.partition(':')[2] for each in named)}"


def _reached(lake: str, destination: Destination) -> str:
    """Says up to where the lake holds each log; a lake that does not answer is given up after `_REACHED_S`."""
    until = time.monotonic() + _REACHED_S
    try:
        offsets = unless(lambda: time.monotonic() > until, destination.ends, _nothing_of)
    except LakeError as error:
        return f"where the lake {lake} is cannot be read: {error}"
    if offsets is None:
        return f"where the lake {lake} is cannot be read: it does not answer"
    places = [
        f"{offset:,} of {broker} (log {log_id})" for (broker, log_id), offset in sorted(offsets.items())
    ]
    return f"the lake {lake} is at {', '.join(places) or 'the beginning'}"


def _run(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    scratch: str | None = None,
) -> bool:
    """Starts the query again until it is done; whether everything was read. Raises LakeError."""
    committed, telling = 0, Telling()

    def counted(report: BatchReport) -> None:
        nonlocal committed
        committed += 1
        on_batch(report)

    failures, tries, seen, careful = 0, 0, 0, False
    while not stopping.is_set():
        try:
            chosen = replace(options, careful=careful)
            ended = _run_query(session, chosen, counted, destination, stopping, scratch)
        except StartAgainError as error:
            if not failures:
                raise error.cause from error
            ended = error.as_of_spark
        if isinstance(ended, bool):
            return ended
        if ended is None:
            careful = False
            continue
        problem = ended
        if committed > seen:
            telling.over()
            failures = tries = 0
        seen = committed
        failures += 1
        tries += options.once or not is_absence(
            problem
        )  # what was away for long leaves tries to what comes then
        careful = tries >= CAREFUL_AFTER and WORKER_DIED in problem
        final = tries > _retries(problem, once=options.once)
        if final and OURS in problem:  # the end of a JVM never looks like that
            raise LakeError(_cause(problem))
        if stopping.wait(SIGNAL_S):
            return False
        if final:
            raise LakeError(_cause(problem))
        wait_s = min(2.0 ** min(failures, _DOUBLINGS), LONGEST_WAIT_S)
        if not is_absence(problem):
            sys.stderr.write(f"lakebroker: {_cause(problem)}; the query starts again in {wait_s:g} s\n")
        elif telling.is_due():
            sys.stderr.write(f"lakebroker: {_cause(problem)}; the query starts again when that is over\n")
        stopping.wait(max(wait_s - SIGNAL_S, 0))
    return False


def _retries(problem: str, *, once: bool) -> float:
    """How often what a query failed with is worth another start: a run that ends by itself only waits out a slow host,
    and for a while for what is away."""
    if names(problem, ForeignWriterError, GapError, LostDataError, SameBrokerError):
        return 0
    if once:
        waits = WORKER_LATE in problem or WORKER_DIED in problem or is_absence(problem)
        return RETRIES_ONCE if waits else 0
    return math.inf if is_absence(problem) else RETRIES


def _run_query(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    scratch: str | None,
) -> str | bool | None:
    """Runs the query until it ends or `stopping` is set; returns what it failed with or, for a good end, whether
    everything was read that a run that ends by itself has to read. One that stages carefully ends with its first batch:
    None.

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
        return _start(session, options, counted, destination, scratch)

    try:
        running = unless(stopping.is_set, start, _undo)
    except LakeError as error:
        raise StartAgainError(error) from error
    if running is None:
        return False
    try:
        while not stopping.is_set() and not running.query.awaitTermination(1):
            running.notes.show()
            if options.careful and batches:
                break
        running.commits.close()
        running.query.stop()
    except StreamingQueryException as error:
        return str(error)
    finally:
        running.commits.close()
        running.notes.show()
        shutil.rmtree(running.scratch, ignore_errors=True)
    if options.careful and batches and not stopping.is_set():
        return None
    if running.goal is None:
        return False
    lacking = running.goal.lacking(destination.ends())
    if lacking and not stopping.is_set():
        raise LakeError(f"not everything was read: {'; '.join(lacking)}; run it again")
    return not lacking


def _undo(running: _Running) -> None:
    """Ends a query that nobody waits for any more."""
    running.commits.close()
    running.query.stop()
    shutil.rmtree(running.scratch, ignore_errors=True)


def _nothing_of(_ends: Ends) -> None:
    """Looking leaves nothing to undo."""


def _cause(text: str) -> str:
    """The sentence of our error inside Spark's report of it."""
    for line in reversed(text.splitlines()):
        if OURS in line:
            return line.split("Error: ", 1)[-1].strip()
    if lacking := _NO_MODULE.search(text):
        return (
            f"Spark's workers have no Python module {lacking[1]}: install lakebroker there, and name the Python that has "
            "it in PYSPARK_PYTHON"
        )
    if WORKER_DIED in text:
        return "a Python worker of Spark died while it staged a batch (it is short of memory, or native code crashed)"
    if WORKER_LATE in text:
        return (
            "a Python worker of Spark did not start within 10 s: this host is overloaded, or that Python cannot run "
            "(PYSPARK_PYTHON; what it printed is above)"
        )
    return " ".join(_DETAILS.split(text, maxsplit=1)[0].split())
