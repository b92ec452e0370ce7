"""What a round of maintenance says it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Removed(NamedTuple):
    """How many files, and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class TableReport:
    """What was done with a table; `problems`: what was not, and why."""

    table: str
    files_before: int
    files_after: int
    rewritten_files: int
    rewritten_bytes: int
    removed: Removed
    problems: list[str]
