"""Java programs of one file: `java X.java` compiles one at each start, which takes longer than most of them run."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import CACHE, ProcessError


def compiled(source: Path, class_path: str) -> Path:
    """The folder of its classes, compiled at first use and when the file has changed. Raises ProcessError."""
    folder = CACHE / "java" / source.stem
    with filled_once(folder, hashlib.sha256(source.read_bytes()).hexdigest()) as missing:
        if missing:
            command = ["javac", "-proc:none", "-cp", class_path, "-d", str(folder), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ProcessError(f"{source.name}: {done.stderr[-2000:]}")
    return folder
