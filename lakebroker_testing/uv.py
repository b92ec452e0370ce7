"""Virtual environments and packages by uv: seconds, where pip needs half a minute."""

from __future__ import annotations

import subprocess
import sys

from lakebroker_testing.gateway import ProcessError

_MOST_S = 600.0


def uv(*arguments: str) -> str:
    """What uv prints. Raises ProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments],
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        check=False,
    )
    if done.returncode:
        raise ProcessError(f"uv {' '.join(arguments)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout
