"""Prometheus' own programs, `promtool` and the server: those on the PATH, or of Debian's package, unpacked under `.cache` at first use."""

from __future__ import annotations

import shutil
import subprocess

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT, ProcessError
from lakebroker_testing.programs import output_of

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
                output_of(["apt-get", "download", _PACKAGE], cwd=_CACHE)
            except ProcessError:  # its lists are old, or there are none
                output_of(["apt-get", "update"], cwd=_CACHE)
                output_of(["apt-get", "download", _PACKAGE], cwd=_CACHE)
            (package,) = _CACHE.glob("*.deb")
            output_of(["dpkg", "-x", str(package), str(_CACHE)], cwd=_CACHE)
            package.unlink()
    return str(_CACHE / "usr" / "bin" / name)
