"""Virtual environments, and packages in them: by uv in seconds, or by pip in half a minute where uv is not installed or fails."""

from __future__ import annotations

import sys
from pathlib import Path

from lakebroker_testing.programs import ProcessError, output_of

_MOST_S = 600.0


def new_environment(folder: Path) -> Path:
    """The Python of an environment that is made in a folder, in place of whatever is there; it has no packages. Raises ProcessError."""
    output_of([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], timeout_s=_MOST_S)
    return folder / "bin" / "python"


def install(python: Path, *wanted: str) -> None:
    """As `pip install` in the environment of a Python. Raises ProcessError."""
    uv = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", str(python), *wanted]
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", *wanted]
    try:
        output_of(uv, timeout_s=_MOST_S)
    except ProcessError as by_uv:  # pip has settings of its own, for mirrors and certificates
        try:
            output_of(pip, timeout_s=_MOST_S)
        except ProcessError as by_pip:
            raise ProcessError(f"{by_pip}\nand before, by uv: {by_uv}") from by_uv
