"""`lakebroker` in a fresh Python, with constants of its modules set to other values: time limits that are too long for a test, or too
short. `constants` are values by module and name, `structured_streaming.absence.TELL_S`."""

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


def command(constants: Mapping[str, float], *words: str) -> list[str]:
    """Of `lakebroker WORDS`."""
    given = [f"{name}={value}" for name, value in constants.items()]
    # not by -c: without a program's file DuckDB prints how far a statement is
    return [sys.executable, "-m", __name__, *given, "--", *words]


def start(
    constants: Mapping[str, float],
    *words: str,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`lakebroker WORDS` as a process, as `prestarted.start`."""
    return subprocess.Popen(
        command(constants, *words),
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
    end = sys.argv.index("--")
    for given in sys.argv[1:end]:
        constant, _, value = given.partition("=")
        module, _, name = constant.rpartition(".")
        changed = importlib.import_module(module)
        assert hasattr(changed, name), f"{module} has no {name}"
        setattr(changed, name, float(value))
    del sys.argv[1 : end + 1]
    from broker_gateway.cli.main import app

    app(prog_name="lakebroker")


if __name__ == "__main__":
    _main()
