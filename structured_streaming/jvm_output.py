"""Keeps what the JVM prints out of the terminal: it goes to a file, whose end is shown when Spark cannot start or has ended."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from structured_streaming.errors import SparkStartError

STARTING = "starting Spark ..."
"""For who waits: it takes ten seconds and more."""
_SHOWN = 3000
_newest: list[int] = []
"""Descriptor of the file of the JVM that was started last."""


@contextmanager
def jvm_output_to_file() -> Iterator[None]:
    """A JVM started within inherits a standard output and error that are a file, and keeps them. Raises SparkStartError
    with its end."""
    handle, name = tempfile.mkstemp(prefix="lakebroker-spark-", suffix=".log")
    while _newest:
        os.close(_newest.pop())
    _newest.append(os.dup(handle))
    kept = {}
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if stream is not None:  # it is not, where it was closed at the start
            stream.flush()
            kept[number] = os.dup(number)
    for number in kept:
        os.dup2(handle, number)
    os.close(handle)
    try:
        yield
    except Exception as error:
        said = output_end()
        words = f"; its output ends: {said}" if said else ""
        raise SparkStartError(f"Spark did not start ({error}){_needed()}{words}") from error
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)
        Path(name).unlink(missing_ok=True)  # the JVM's descriptor keeps the file as long as it lives


def output_end() -> str:
    """The last characters that the JVM printed which was started last; none before the first."""
    if not _newest:
        return ""
    size = os.fstat(_newest[0]).st_size
    return os.pread(_newest[0], _SHOWN, max(0, size - _SHOWN)).decode(errors="replace").strip()


def _needed() -> str:
    """What is not there, as far as that can be told."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return ""
    return "; it needs a JDK 17 or later, and there is no java on the PATH and no JAVA_HOME"
