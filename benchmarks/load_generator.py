"""The load generator of `benchmarks/load/`, a Go program: built at first use, run with one line of JSON out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lakebroker_testing.gateway import ROOT, ProcessError

_SOURCE = Path(__file__).with_name("load")
_PROGRAM = ROOT / ".cache" / "load"
_LIMIT_S = 600.0
"""Of a run, beside the seconds that it was asked for."""


def program() -> Path:
    """The built program. Raises ProcessError without Go or when the build fails."""
    if shutil.which("go") is None:
        raise ProcessError("go is not on the PATH; the load generator needs Go 1.24 or later")
    built = subprocess.run(
        ["go", "build", "-o", str(_PROGRAM), "."], cwd=_SOURCE, capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise ProcessError(f"the load generator does not build: {built.stderr[-2000:]}")
    return _PROGRAM


def run(mode: str, address: str, pid: int, **options: str | int | float | bool) -> dict[str, Any]:
    """One run (see `load -h`); options are its flags with `_` for `-`. Raises ProcessError when it fails."""
    flags = [f"-{name.replace('_', '-')}={str(value).lower()}" for name, value in options.items()]
    command = [str(_PROGRAM), mode, f"-address={address}", f"-pid={pid}", *flags]
    limit_s = _LIMIT_S + float(options.get("seconds", 0))
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise ProcessError(f"load {mode} at {address}: {done.stderr.strip()[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Echo:
    """The empty echo server: the limit of what a transport can do."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([str(program()), "echo"], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"
        self.pid = self._process.pid

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
