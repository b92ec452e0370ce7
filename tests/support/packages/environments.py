"""Environments of their own in which the wheel is installed as a user installs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from packaging.utils import canonicalize_name

from lakebroker_testing.programs import output_of
from lakebroker_testing.virtual_environment import install, new_environment

_MOST_S = 600.0


class Environment:
    """An environment in a new `folder` with this interpreter's Python, and nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.python = new_environment(folder)
        self.lakebroker = folder / "bin" / "lakebroker"

    def install(self, *wanted: str) -> None:
        """As `pip install`. Raises ProcessError."""
        install(self.python, *wanted)

    def distributions(self) -> set[str]:
        """The names of what is installed."""
        asked = (
            "from importlib.metadata import distributions; print(*{each.name for each in distributions()})"
        )
        return {canonicalize_name(each) for each in output_of([str(self.python), "-c", asked]).split()}

    def run(
        self, *arguments: str, program: bool = False, path: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`lakebroker` with arguments, or with `program` its Python; `path` has packages besides, as a Spark cluster has."""
        return subprocess.run(
            [str(self.python if program else self.lakebroker), *arguments],
            cwd=self.python.parent,
            env=variables(path),
            capture_output=True,
            text=True,
            timeout=_MOST_S,
            check=False,
        )


def variables(path: Path | None = None) -> dict[str, str]:
    """The environment without what leads to other packages: those of this checkout, of this Python, of a Spark."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SPARK", "PYSPARK", "LAKEBROKER", "VIRTUAL_ENV"))
    }
    return kept | ({"PYTHONPATH": str(path)} if path else {})
