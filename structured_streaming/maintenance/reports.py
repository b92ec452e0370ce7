"""What a round of maintenance says it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from structured_streaming.iceberg.report import MirrorReport


class Removed(NamedTuple):
    """How many files, and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Expired:
    """Rows of a topic in a table whose time has run out: in how many files, rows, bytes of their records (0 where the table does
    not say)."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Retention:
    """What retention removed of a table, or would: by topic; files that go as a whole, and those that are written anew, with
    their bytes."""

    topics: dict[str, Expired] = field(default_factory=dict)
    dropped: Removed = field(default_factory=Removed)
    rewritten: Removed = field(default_factory=Removed)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.topics.values())


@dataclass(slots=True)
class TableReport:
    """What was done with a table; `filled_rows`: those that a typed one got of what it lacked; `waits`: for people, why
    something is left for a later round, or for a command; `problems`: what was not, and why. `mirror`: None where it has no Iceberg mirror."""

    table: str
    files_before: int = 0
    files_after: int = 0
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    removed: Removed = field(default_factory=Removed)
    problems: list[str] = field(default_factory=list)
    mirror: MirrorReport | None = None
    retention: Retention = field(default_factory=Retention)
    erased_rows: int = 0
    filled_rows: int = 0
    waits: list[str] = field(default_factory=list)
