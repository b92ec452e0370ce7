"""What statements are planned with: a planner over the tables that the lake has now. Another one takes its place when a typed topic
was declared, altered or removed; what was begun with the earlier one goes on in that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from structured_streaming.embedded.known import Known, KnownTables
from structured_streaming.embedded.planning import Planner


class Planned(NamedTuple):
    """A planner, and the tables that it knows."""

    known: Known
    planner: Planner


class Current:
    """Of the `tables` of a lake; `made` makes a planner in a database of its own. For one thread at a time."""

    def __init__(self, tables: KnownTables, made: Callable[[Known], Planner]) -> None:
        self._tables = tables
        self._made = made
        known = tables.now()
        self.last = Planned(known, made(known))
        """What was planned with last."""

    def now(self) -> Planned:
        """As the lake is now. Raises LakeError."""
        known = self._tables.now()
        if known is not self.last.known:
            self.last = Planned(known, self._made(known))
        return self.last

    def close(self) -> None:
        """Gives back the database; cursors go on."""
        self.last.planner.close()
