"""Commands of `lakebroker`, one behind the other in one process: what most of a command's time is, its start, is paid once, also that
of Spark's JVM, which goes on. Each has a Spark session of its own, as it would have alone: the one before it is stopped.

    with OneProcess() as lakebroker:
        done = lakebroker.run("sql", "--lake", "spark_catalog.lake", "SELECT 1")

The JVM keeps what its first session was started with (master, jars): a command that Delta's jars are needed for goes first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Self

from lakebroker_testing.gateway import ROOT, ProcessError

_END_S = 60.0


class OneProcess:
    """A process for commands, with the environment of now. `program` is a module that ends in calling `main`."""

    def __init__(self, program: str = __name__) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", program],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends then, and the JVM with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command's status, and what it printed. Raises ProcessError where the process itself ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ProcessError(f"the process ended in {' '.join(arguments)}")
        status, out, err = json.loads(line)
        return subprocess.CompletedProcess(arguments, status, out, err)


def main() -> None:
    """Reads commands, a line of JSON each, and answers each with its status and output."""
    from broker_gateway.cli.entry import run

    answers, errors = os.fdopen(os.dup(1), "w"), os.dup(2)
    for line in sys.stdin:
        sys.argv = ["lakebroker", *json.loads(line)]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 0
            try:
                run()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(errors, 2)
            answers.write(json.dumps([status, _text(out), _text(err)]) + "\n")
            answers.flush()
        _stop_session()


def _text(file: IO[bytes]) -> str:
    """As `subprocess.run` has it."""
    data = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    return data.decode(errors="replace").replace("\r\n", "\n")


def _stop_session() -> None:
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()


if __name__ == "__main__":
    main()
