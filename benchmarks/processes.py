"""What processes used: CPU seconds and memory, of one or of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lakebroker_testing.gateway import ROOT, ProcessError


def cpu_s(pid: int | None = None, session: int | None = None) -> float:
    """CPU seconds of a process, or of the processes of a session (a job, its JVM and its workers): those that live, and those
    that they waited for."""
    return sum(_cpu_s(fields) for _, _, fields in _stats(pid, session))


def cpu_by_process(session: int) -> dict[str, float]:
    """As `cpu_s`, the session's first process under `main`, others by name: together where several have one name."""
    found: dict[str, float] = {}
    for pid, name, fields in _stats(None, session):
        key = "main" if pid == session else name
        found[key] = found.get(key, 0.0) + _cpu_s(fields)
    return found


def rss_mb(session: int) -> dict[str, int]:
    """Resident memory by process, named as in `cpu_by_process`, MB."""
    found: dict[str, int] = {}
    for pid, name, fields in _stats(None, session):
        key = "main" if pid == session else name
        found[key] = found.get(key, 0) + int(fields[21]) * os.sysconf("SC_PAGE_SIZE") // (1 << 20)
    return found


@contextlib.contextmanager
def job(
    arguments: list[str], folder: Path, name: str, *, piped: bool = False, ends: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session, which SIGKILL ends; its output is in files of the folder, or `piped`.

    Raises ProcessError when it has ended by itself by then, unless it `ends`.
    """
    log = folder / f"{name}.log"
    with (folder / f"{name}.jsonl").open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE if piped else out,
            stderr=errors,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        yield process
        if not ends and process.poll() is not None:
            raise ProcessError(f"{name} ended: {log.read_text()[-2000:]}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _cpu_s(fields: list[str]) -> float:
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _stats(pid: int | None, session: int | None) -> Iterator[tuple[int, str, list[str]]]:
    """Id, name, and fields of `/proc/PID/stat` from the third on."""
    for stat in Path("/proc").glob(f"{pid or '[0-9]*'}/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        number, _, name = head.partition(" (")
        fields = rest.split()
        if session is None or int(fields[3]) == session:
            yield int(number), name, fields
