"""`lakebroker` in a fresh Python, with a constant of one of its modules set to another value: a time limit that is too long for a test, or
too short."""

from __future__ import annotations

import ctypes
import importlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from lakebroker_testing.prestarted import ROOT

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Found before there is a process to call it in."""


def start(
    module: str,
    name: str,
    value: float,
    *words: str,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`lakebroker WORDS` as a process, as `prestarted.start`, where `name` of the module has the value."""
    return subprocess.Popen(
        # not by -c: without a program's file DuckDB prints how far a statement is
        [sys.executable, "-m", __name__, module, name, str(value), *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=ROOT,
        env=env,
        preexec_fn=_end_with_us,
    )


def _end_with_us() -> None:
    """The kernel kills the process when the thread that started it ends: one that a killed test run leaves behind would go on."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main() -> None:
    module, name, value = sys.argv[1:4]
    del sys.argv[1:4]
    changed = importlib.import_module(module)
    assert hasattr(changed, name), f"{module} has no {name}"
    setattr(changed, name, float(value))
    from broker_gateway.cli.main import app

    app(prog_name="lakebroker")


if __name__ == "__main__":
    _main()
