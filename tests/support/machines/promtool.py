"""Prometheus' own programs, `promtool` and the server: those on the PATH, or of Debian's package, unpacked under `.cache` at first use."""

from __future__ import annotations

import shutil
import subprocess

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT, ProcessError

_PACKAGE = "prometheus"
_CACHE = ROOT / ".cache" / "prometheus"


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """What it says, both outputs together, with `given` as its input; its status is left to the caller. Raises ProcessError where there is none."""
    return subprocess.run(
        [program("promtool"), *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`. Raises ProcessError where there is none."""
    if (there := shutil.which(name)) is not None:
        return there
    if shutil.which("apt-get") is None:
        raise ProcessError(
            f"{name} is not on the PATH, and there is no apt-get to fetch it with: install Prometheus"
        )
    with filled_once(_CACHE, _PACKAGE) as missing:
        if missing:
            for left in _CACHE.glob("*.deb"):
                left.unlink()
            try:
                _run("apt-get", "download", _PACKAGE)
            except ProcessError:  # its lists are old, or there are none
                _run("apt-get", "update")
                _run("apt-get", "download", _PACKAGE)
            (package,) = _CACHE.glob("*.deb")
            _run("dpkg", "-x", str(package), str(_CACHE))
            package.unlink()
    return str(_CACHE / "usr" / "bin" / name)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=_CACHE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
