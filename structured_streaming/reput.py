"""The reput job: one streaming query that builds the lake from the commit logs.

Executors scan and stage (`staging/stage.py`), the driver commits (`commit/delta_commit.py`). Where to begin is
decided by the lake, never by Spark's checkpoint, which is scratch: each start makes a new one, so that a
lost, copied or second checkpoint neither skips nor repeats.

What is away (brokers, an object store, a catalog) is waited for as long as it takes; a run with `once` ends after some tries.
A JVM of our own that ends (killed for want of memory, crashed) is started again.

A signal ends the job cleanly, whoever else got it: a commit under way is finished, a batch that was not
committed repeats at the next start. A second signal ends Spark at once, which is as safe. With `once`, a signal makes the
run fail and say how far it got.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from store.counting import counted
from structured_streaming.absence import unless
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.report import BatchReport
from structured_streaming.destination import Destination, destination_of
from structured_streaming.errors import (
    JvmEndedError,
    LakeError,
    SparkStartError,
    StoppedError,
)
from structured_streaming.interruptible import jvm_of, started
from structured_streaming.jvm_output import STARTING, output_end
from structured_streaming.provided_session import (
    DEFAULT_MASTER,
    check_delta,
    provided_session,
    refuse_address,
)
from structured_streaming.reput_options import ReputOptions, checked
from structured_streaming.reput_query import LONGEST_WAIT_S, RETRIES, RETRIES_ONCE, SIGNAL_S, run_until_done
from structured_streaming.reput_session import (
    end_session,
    expect_end_of_jvm,
    jvm_ends,
    reput_session,
    sends_in_plaintext,
)
from structured_streaming.reput_watch import NOBODY, Watch
from structured_streaming.scratch import remove_scratch, scratch_folder
from structured_streaming.stopping import Stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PLAINTEXT = (
    "the gateways' token goes to executors over Spark's connections, which are not encrypted; set "
    "spark.authenticate=true and spark.network.crypto.enabled=true in the cluster"
)
_REACHED_S = 3.0
"""What looking where the lake is may take at the end, when all else is done."""


def run_reput(
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    master: str = "",
    destination: Destination | None = None,
    tell: Callable[[str], None] = lambda text: None,
    driver_host: str = "",
    watch: Watch = NOBODY,
) -> None:
    """Runs the job until it is done (`once`) or a signal stops it; a failed query starts again, and so does Spark whose JVM
    ended.

    A session that is there already is used as it is, and left as it was; `master` (else `local[2]`) and `driver_host` are refused then.
    Raises LakeError, StoppedError where a signal came before it was done.

    `watch` is told how it fares, besides of batches. `tell` gets a line before Spark starts, one when it begins to read, and
    one when it has ended as it should.
    """
    provided = provided_session()
    destination = destination or destination_of(options)
    if provided is not None:
        refuse_address(provided, master, driver_host)
        if destination.by_spark:
            check_delta(provided)
    destination.check()
    options = checked(options)
    destination.prepare()
    stopping, complete = Stopping(), False
    deaths = 0

    def alive(report: BatchReport) -> None:
        nonlocal deaths
        deaths = 0
        on_batch(report)

    if provided is not None:
        undo = expect_end_of_jvm(provided, lambda _: stopping.wait(SIGNAL_S), ours=False)
        try:
            complete = _in_session(provided, None, options, on_batch, destination, stopping, tell, watch)
        finally:
            undo()
            stopping.restore()
    while provided is None and not stopping.is_set():
        try:
            complete = _in_own_jvm(
                master or DEFAULT_MASTER, driver_host, options, alive, destination, stopping, tell, watch
            )
            break
        except (JvmEndedError, SparkStartError) as error:
            if isinstance(error, SparkStartError) and not deaths:
                raise
            deaths += 1
            watch.spark_ended()
            if deaths > (RETRIES_ONCE if options.once else RETRIES):
                raise
            wait_s = min(2.0**deaths, LONGEST_WAIT_S)
            sys.stderr.write(f"lakebroker: {error}; Spark starts again in {wait_s:g} s\n")
            stopping.wait(wait_s)
    if options.once and not complete:
        raise StoppedError(stopping.number, _reached(options.lake, destination))
    tell(f"{'done' if options.once else 'stopped'}; {_reached(options.lake, destination)}")


def _nothing() -> None:
    """What is to be undone at first."""


def _in_own_jvm(
    master: str,
    driver_host: str,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    tell: Callable[[str], None],
    watch: Watch,
) -> bool:
    """Starts Spark, then as `run_until_done`. Raises SparkStartError, and JvmEndedError where Spark's JVM ends before its work."""
    session: SparkSession | None = None
    undo: Callable[[], None] = _nothing
    scratch = scratch_folder()
    try:
        tell(STARTING)
        session = started(lambda: reput_session(master, scratch, driver_host, delta=destination.by_spark))
        jvm = jvm_of(session)
        stopping.ends(jvm)
        undo = expect_end_of_jvm(
            session, lambda error: jvm_ends(jvm, error, stopping) or stopping.wait(SIGNAL_S), ours=True
        )
        return _in_session(session, jvm, options, on_batch, destination, stopping, tell, watch, scratch)
    except KeyboardInterrupt:
        if not stopping.is_set():
            raise
        return False
    finally:
        end_session(session)
        undo()  # only now: until Spark has ended, broken connections are no errors
        stopping.reap()
        remove_scratch(scratch)


def _in_session(
    session: SparkSession,
    jvm: subprocess.Popen[Any] | None,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    destination: Destination,
    stopping: Stopping,
    tell: Callable[[str], None],
    watch: Watch,
    scratch: str | None = None,
) -> bool:
    """As `run_until_done`, and tells what is read. `jvm` is the session's, where it is ours; raises JvmEndedError where it ends."""
    undo = _nothing
    try:
        if not stopping.is_set():
            undo = watch.attached(session)
            tell(_reading(options))
            if options.access.token and sends_in_plaintext(dict(session.sparkContext.getConf().getAll())):
                tell(_PLAINTEXT)
        return run_until_done(session, options, on_batch, destination, stopping, scratch, jvm, watch)
    except KeyboardInterrupt:
        if not stopping.is_set():
            raise
        return False
    except Exception as error:
        ended = jvm_ends(jvm, error, stopping)
        if isinstance(error, LakeError) and not ended:
            raise
        if stopping.wait(SIGNAL_S):
            return False
        if jvm is not None and ended:
            raise JvmEndedError(jvm.returncode, output_end()) from error
        raise
    finally:
        undo()


def _reading(options: ReputOptions) -> str:
    named, asked = options.targets, options.name_servers
    if asked:
        also = f" and {', '.join(each.partition(':')[2] for each in named)}" if named else ""
        return f"reading the brokers that {', '.join(asked)} know{'s' if len(asked) == 1 else ''}{also}"
    return f"reading {counted(len(named), 'log')} from {', '.join(each.partition(':')[2] for each in named)}"


def _reached(lake: str, destination: Destination) -> str:
    """Says up to where the lake holds each log; a lake that does not answer is given up after `_REACHED_S`."""
    until = time.monotonic() + _REACHED_S
    try:
        offsets = unless(lambda: time.monotonic() > until, destination.ends, _nothing_of)
    except LakeError as error:
        return f"where the lake {lake} is cannot be read: {error}"
    if offsets is None:
        return f"where the lake {lake} is was not read within {_REACHED_S:g} s; what was committed stands"
    places = [
        f"{offset:,} of {broker} (log {log_id})" for (broker, log_id), offset in sorted(offsets.items())
    ]
    return f"the lake {lake} is at {', '.join(places) or 'the beginning'}"


def _nothing_of(_ends: Ends) -> None:
    """Looking leaves nothing to undo."""
