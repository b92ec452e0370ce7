"""This checkout's wheel, built once for each state of its sources and kept under `.cache/`; unpacked, it is a folder for PYTHONPATH
that has the packages and their entry points, and nothing else of the checkout."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.programs import output_of

_CACHE = ROOT / ".cache" / "wheel"
_OF_BUILD = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
_FOLDERS = ("proto", "broker_gateway", "store", "structured_streaming", "lakebroker_testing")


def built_wheel() -> Path:
    """The wheel. It is built from a copy, since the build writes generated code."""
    files = sources()
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    with filled_once(_CACHE, digest.hexdigest()) as missing:
        if missing:
            _build(files)
    (wheel,) = _CACHE.glob("*.whl")
    return wheel


def unpacked(folder: Path) -> Path:
    """What is in the wheel, in a new folder."""
    with zipfile.ZipFile(built_wheel()) as archive:
        archive.extractall(folder)
    return folder


def sources() -> list[Path]:
    """What the wheel is made of."""
    found = [ROOT / name for name in _OF_BUILD]
    for name in _FOLDERS:
        found += [
            each for each in (ROOT / name).rglob("*") if each.is_file() and "__pycache__" not in each.parts
        ]
    return sorted(found)


def build_wheel(sources: Path, into: Path) -> Path:
    """Builds the wheel of a source folder `sources` (their build writes generated code there) into the folder `into`, by the tests' own environment: nothing is
    fetched for it. Raises ProcessError."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--wheel-dir", str(into), str(sources)]
    output_of(command, f"the build of the wheel of {sources}", cwd=into)
    (wheel,) = into.glob("lakebroker-*.whl")
    return wheel


def _build(files: list[Path]) -> None:
    """Raises ProcessError."""
    shutil.rmtree(_CACHE)
    source = _CACHE / "source"
    for file in files:
        copy = source / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    build_wheel(source, _CACHE)
    shutil.rmtree(source)
