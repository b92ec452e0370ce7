"""Up to where the lake holds each log, as the reput's driver wrote it down for its reader.

The reader plans in a Python of its own, without a Spark session, so it cannot ask tables of a catalog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class ProgressFile:
    """The file at `path`, as it was read last; see `planning.Progress`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._ends: dict[tuple[str, str], int] = {}
        self.refresh()

    def position(self, broker: str, log_id: str) -> int | None:
        """See `planning.Progress.position`."""
        return self._ends.get((broker, log_id))

    def refresh(self) -> None:
        """See `planning.Progress.refresh`."""
        found = json.loads(self._path.read_text(encoding="utf-8"))
        self._ends = {(broker, log_id): end for broker, log_id, end in found}

    def stops(self, broker: str, log_id: str) -> list[int]:
        """None: what a crash left unfinished is removed before the reader starts."""
        return []


def write_progress(path: Path, ends: Mapping[tuple[str, str], int]) -> None:
    """Puts the ends in the place of those before."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps([[*log, end] for log, end in ends.items()]), encoding="utf-8")
    os.replace(new, path)
