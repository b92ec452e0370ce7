"""The Python that Spark's workers run, in a session of ours."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from structured_streaming.scratch import scratch_folder

_HOME, _PYTHON = "SPARK_HOME", "PYSPARK_PYTHON"
_COPY = "python"
"""The folder of Spark's home with its own copy of pyspark."""


def is_local(master: str) -> bool:
    """Whether driver and executors are one process: `local[2]`. `local-cluster` counts too: it is on one machine."""
    return master.startswith("local")


@contextmanager
def workers_with_this_python(master: str) -> Iterator[None]:
    """Workers of a JVM that is started within run this interpreter, unless PYSPARK_PYTHON names another one. On this machine they
    import the installed pyspark.

    Spark puts the copy of pyspark in its home, a zip, before the installed one. From a zip Python compiles each module at every
    import: 1.2 to 1.5 CPU seconds a worker in place of 0.4, and Spark waits for a worker 10 s, also on a host with much
    else to do. So that JVM gets a home that has everything but the copy. It is there until this process ends, since a JVM goes
    on when its session has ended, and may read it at any time.
    """
    os.environ.setdefault(_PYTHON, sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = None
    if is_local(master) and os.environ[_PYTHON] == sys.executable:
        with suppress(OSError):  # it only saves time
            home = _home_without_copy()
    if home is None:
        yield
        return
    before = os.environ.get(_HOME)
    os.environ[_HOME] = home
    try:
        yield
    finally:
        if before is None:
            del os.environ[_HOME]
        else:
            os.environ[_HOME] = before


def _home_without_copy() -> str | None:
    """Of Spark's home, where that is the pyspark which workers of this interpreter find installed. Raises OSError, also for a home that
    is not there, which Spark names when it starts."""
    from pyspark.find_spark_home import _find_spark_home

    installed = Path(sysconfig.get_path("purelib"), "pyspark")
    return _without_copy(installed) if installed.samefile(_find_spark_home()) else None


@functools.cache  # all JVMs of a process have the same
def _without_copy(home: Path) -> str:
    folder = Path(scratch_folder())
    for entry in home.iterdir():
        if entry.name != _COPY:
            (folder / entry.name).symlink_to(entry)
    return str(folder)
