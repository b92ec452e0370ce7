"""ctrl-C in `lakebroker sql`: it ends the statement, not the session, and leaves neither jobs nor a JVM."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.sql_engines import Form, of_spark
from broker_gateway.cli.sql_session import run_text
from lakebroker_testing.gateway import ROOT, command
from tests.suite.evidence import LONG
from tests.support.lakes.empty import empty_lake
from tests.support.machines.processes import children, jvm_below, of_process, threads
from tests.support.waiting import wait_until

PATIENCE_S = 200.0
AGAIN_S = 10.0
ENDLESS = "SELECT sum(a.id * b.id) FROM range(100000000000) a CROSS JOIN range(100000000000) b"
ENDLESS_IN = {"spark": ENDLESS, "duckdb": ENDLESS.replace(".id", ".range % 7")}
PROMPT = "lakebroker> "


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_statement(spark: SparkSession, number: signal.Signals) -> None:
    tracker = spark.sparkContext.statusTracker()

    def press() -> None:
        wait_until(tracker.getActiveJobsIds, "a job")
        os.kill(os.getpid(), number)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(Signalled) as stopped, raised_signals():
        run_text(of_spark(spark, Form("csv", escape=True), None, write=False), ENDLESS)
    pressing.join()
    assert stopped.value.status == 128 + number
    # Spark reports the end of a job on another thread
    wait_until(lambda: not tracker.getActiveJobsIds(), "the end of the job")
    assert spark.range(3).count() == 3


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("sql", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_signal_cancels_what_the_embedded_engine_does(lake: Path) -> None:
    """SIGTERM; ctrl-C is pressed in the session on a terminal."""
    asked = f"SELECT 'begun' AS a; {ENDLESS_IN['duckdb']}"
    process = started("--lake", str(lake), "--format", "csv", asked)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["a\n", "begun\n"]
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, errors) == (143, "", "lakebroker: interrupted\n")
    finally:
        kill_session(process)


def test_a_jvm_that_starts_ends_with_us(lake: Path) -> None:
    process = started("--engine", "spark", "--lake", str(lake), "SELECT 1")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "lakebroker: starting Spark ...\n"
        jvm = wait_until(lambda: children(process.pid), "a JVM")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, errors) == (130, "", "lakebroker: interrupted\n")
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in jvm), "the end of the JVM")
    finally:
        kill_session(process)


class Terminal:
    """The other end of a process's terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """What is shown up to the next such text."""
        until = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert self._read_until(until), f"{text!r} is not shown, but {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before

    def interrupt_prompt(self) -> str:
        """Presses ctrl-C at the prompt; what is shown before the next one.

        Again where none comes: Python overlooks a signal between showing a prompt and reading what is typed.
        """
        until = time.monotonic() + PATIENCE_S
        while PROMPT not in self.shown:
            assert time.monotonic() < until, self.shown
            self.type("\x03")
            again = time.monotonic() + AGAIN_S
            while PROMPT not in self.shown and self._read_until(again):
                pass
        return self.until(PROMPT)

    def _read_until(self, until: float) -> bool:
        """Whether something more was shown."""
        ready, _, _ = select.select([self._master], [], [], max(until - time.monotonic(), 0))
        if not ready:
            return False
        try:
            self.shown += os.read(self._master, 1 << 16).decode()
        except OSError as error:
            raise AssertionError(f"it ended, after {self.shown!r}") from error
        return True


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """The command in a session of its own, on its own terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command(*arguments)],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield process, Terminal(master)
    finally:
        kill_session(process)
        os.close(master)


def kill_session(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ends the process, if a test left it, with its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def use_interactively(terminal: Terminal, engine: str) -> None:
    """Presses ctrl-C while something is typed, and while a statement runs; the session goes on."""
    terminal.until(PROMPT)
    terminal.type("SELECT what is not")
    assert "Traceback" not in terminal.interrupt_prompt()
    terminal.type(f"SELECT 'beg' || 'un;' AS a; {ENDLESS_IN[engine]};\n")
    terminal.until("begun;")
    terminal.type("\x03")
    shown = terminal.until(PROMPT)
    assert shown.strip().splitlines()[-1] == "lakebroker: interrupted"
    assert "Traceback" not in shown
    assert "Exception" not in shown
    terminal.type("SELECT 1 AS none FROM nowhere; SELECT 'beh' || 'ind' AS a;\n")
    shown = terminal.until(PROMPT)
    assert "nowhere" in shown
    assert "behind" not in shown
    terminal.type("SELECT 'st' || 'ill'\n")
    terminal.until("-> ")
    terminal.type("AS a;\n")
    terminal.until("still")
    terminal.until(PROMPT)


def test_ctrl_c_leaves_the_interactive_session_as_it_was(lake: Path) -> None:
    with on_a_terminal("sql", "--lake", str(lake), "--format", "csv") as (process, terminal):
        use_interactively(terminal, "duckdb")
        terminal.type("\x04")
        assert process.wait(PATIENCE_S) == 0


def runs_a_task(jvm: int) -> bool:
    """Whether a thread of Spark's executor has the processor, or waits for it."""
    stats = (of_process(jvm, f"task/{thread}/stat") for thread in threads(jvm))
    return any(re.search(r"\(Executor task.*\) R ", stat) for stat in stats)


def is_told_to_end(stopped: int) -> bool:
    """Whether SIGTERM awaits a stopped process, or it is gone."""
    pending = re.search(r"^ShdPnd:\s+(\w+)", of_process(stopped, "status"), re.M)
    return pending is None or bool(int(pending[1], 16) >> (signal.SIGTERM - 1) & 1)


# short: a signal cancels a statement above, and a second one ends the JVM in `test_interruptible.py`
@LONG  # a JVM of its own
def test_ctrl_c_leaves_a_session_of_spark_as_it_was_and_ends_one_whose_jvm_hangs(lake: Path) -> None:
    """The JVM gets every ctrl-C of the terminal, too."""
    with on_a_terminal("sql", "--engine", "spark", "--lake", str(lake), "--format", "csv") as (
        process,
        terminal,
    ):
        use_interactively(terminal, "spark")
        terminal.type(f"{ENDLESS};\n")
        jvm = jvm_below(process.pid)
        # a JVM that hangs before the statement does is not what is tried
        wait_until(lambda: runs_a_task(jvm), "a task")
        os.kill(jvm, signal.SIGSTOP)
        # from the second on; ctrl-C that come at once are one
        while process.poll() is None and not is_told_to_end(jvm):
            terminal.type("\x03")
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        assert process.wait(PATIENCE_S) == 130
        assert not Path(f"/proc/{jvm}").exists()
