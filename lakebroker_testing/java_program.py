"""Java programs of one file: `java X.java` compiles one at each start, which takes longer than most of them run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import CACHE
from lakebroker_testing.programs import output_of


def compiled(source: Path, class_path: str) -> Path:
    """The folder of its classes, compiled at first use and when the file has changed. Raises ProcessError."""
    folder = CACHE / "java" / source.stem
    with filled_once(folder, hashlib.sha256(source.read_bytes()).hexdigest()) as missing:
        if missing:
            command = ["javac", "-proc:none", "-cp", class_path, "-d", str(folder), str(source)]
            output_of(command, source.name)
    return folder
