"""What the source has to tell a person, on its way to a terminal.

Readers run in a Python of their own, whose standard error ends in the JVM's. The reput gives them a file
to write to, whose lines it shows.
"""

from __future__ import annotations

import sys
from pathlib import Path


class Notes:
    """Lines to a file, or to standard error where `path` is empty."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, text: str) -> None:
        if not self._path:
            sys.stderr.write(f"lakebroker: {text}\n")
            return
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(text.replace("\n", " ") + "\n")


class NotesFile:
    """The file's other end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def show(self) -> None:
        """Writes whole lines that are new to standard error."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            sys.stderr.write(f"lakebroker: {line}\n")
