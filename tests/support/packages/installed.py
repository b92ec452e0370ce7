"""Packages with entry points, as an installer leaves them behind, and processes that find them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install(folder: Path, name: str, code: str, points: dict[str, dict[str, str]]) -> None:
    """A module, and a dist-info with entry points by group."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def found_by_processes(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Processes that are started from now on find packages in the folder."""
    patched.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
