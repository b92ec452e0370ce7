"""A wheel of a source folder, by the tests' own environment: nothing is fetched for the build."""

from __future__ import annotations

import sys
from pathlib import Path

from lakebroker_testing.programs import output_of


def build_wheel(sources: Path, into: Path) -> Path:
    """Builds the wheel of `sources` (their build writes generated code there) into the folder `into`. Raises ProcessError."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--wheel-dir", str(into), str(sources)]
    output_of(command, f"the build of the wheel of {sources}", cwd=into)
    (wheel,) = into.glob("lakebroker-*.whl")
    return wheel
