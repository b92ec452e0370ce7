"""`lakebroker` in a fresh Python, with a constant of one of its modules set to another value: a time limit that is too long for a test, or
too short."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from lakebroker_testing.prestarted import ROOT
from tests.support.machines.ending_with_us import end_with_us


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
        preexec_fn=end_with_us,
    )


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
