"""Programs, run to their end or until they serve."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from lakebroker_testing.prestarted import Process

T = TypeVar("T")
START_S = 240.0
"""Far longer than a start takes: it ends what hangs."""
_LOOK_S = 0.05


class ProcessError(Exception):
    """A process did not start, or ended by itself."""


def until_ready(name: str, process: Process, log: Path, ready: Callable[[], T | None]) -> T:
    """The first answer of `ready` that is true. Raises ProcessError with the end of the log when the process ends before, or none
    comes within `START_S`. Whatever is raised, ctrl-C too, the process is killed: nobody else knows of it yet."""
    deadline = time.monotonic() + START_S
    try:
        while not (found := ready()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProcessError(f"{name} did not start: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(_LOOK_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return found


def output_of(
    command: Sequence[str],
    named: str = "",
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """What a program prints. Raises ProcessError with the end of its output, under its name, where it fails or does not end in time."""
    named = named or " ".join(command)
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:  # which has bytes, whatever was asked for
        printed = b"".join(each for each in (error.stdout, error.stderr) if each).decode(errors="replace")
        raise ProcessError(f"{named} did not end in {timeout_s:.0f} s: {printed[-2000:]}") from error
    if done.returncode:
        raise ProcessError(f"{named}: {done.stdout[-1500:]}{done.stderr[-2000:]}")
    return done.stdout
