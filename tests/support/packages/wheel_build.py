"""A wheel of a source folder, by the tests' own environment: nothing is fetched for the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lakebroker_testing.gateway import ProcessError


def build_wheel(sources: Path, into: Path) -> Path:
    """Builds the wheel of `sources` (their build writes generated code there) into the folder `into`. Raises ProcessError."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", str(into), str(sources)],
        cwd=into,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ProcessError(
            f"the wheel of {sources} could not be built: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    (wheel,) = into.glob("lakebroker-*.whl")
    return wheel
