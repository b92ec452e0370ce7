"""Processes as /proc has them, which may end at any moment."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


class Hanging(subprocess.Popen[bytes]):
    """A process that does nothing, and ends by SIGKILL alone."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.send_signal(signal.SIGSTOP)
        # of signals that wait together the one with the smaller number counts first, and SIGTERM's is smaller
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def __exit__(self, *exc: object) -> None:
        self.kill()
        super().__exit__(None, None, None)


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """Within, this process can open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def of_process(pid: int, name: str) -> str:
    """A file below /proc/PID; empty when the process or thread has ended."""
    try:
        return Path(f"/proc/{pid}", name).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def threads(pid: int) -> list[int]:
    """Those of a process; none when it has ended."""
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def runs(pid: int) -> bool:
    """Whether it has not ended. One that nobody has waited for is a zombie until the system's first process does."""
    state = of_process(pid, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def children(pid: int) -> list[int]:
    """Processes that a process started; those of a thread in the order of their start."""
    lists = (of_process(pid, f"task/{thread}/children") for thread in threads(pid))
    return [int(each) for found in lists for each in found.split()]


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and those that they did."""
    started = children(pid)
    return {*started, *(below for each in started for below in descendants(each))}


def jvm_below(pid: int) -> int:
    """The one JVM that a process started."""
    (jvm,) = [each for each in children(pid) if of_process(each, "comm") == "java\n"]
    return jvm
