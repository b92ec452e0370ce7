"""What is done with the typed tables of a lake, wherever that is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from structured_streaming.commit.ends import Ends, FollowedEnds
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_declared import declarations, readable
from structured_streaming.commit.typed_fill import Before, Lacking, before, fill, lacking, reads_more
from structured_streaming.commit.typed_tables import Look, alter, declare, look
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS
from structured_streaming.typed.declaration import Declaration

FILLED_BYTES = 2 << 30
"""Of `messages`: what a fill may read for the reput to do it before it goes on, while all else waits. A table that lacks more is
FILLING, and maintenance or `lakebroker typed fill` fills it."""


class TypedTables(Protocol):
    """Calls raise LakeError."""

    def declarations(self) -> list[Declaration]:
        """Of all typed tables, by their names. One that cannot be read is an error."""

    def readable(self) -> list[Declaration]:
        """Without those that cannot be read."""

    def look(self, tell: Callable[[str], None]) -> Look:
        """As they are now; what leaves one out is told."""

    def look_again(self) -> Look:
        """As they are now, at less cost; in a catalog, as they were less than half a minute ago."""

    def before(self, table: str) -> Before:
        """What the lake's batches say of a table that is to be made."""

    def declare(self, declared: Declaration) -> None:
        """Makes the table of a new declaration."""

    def alter(self, table: str, change: Callable[[Declaration], Declaration]) -> Declaration:
        """Puts a changed declaration in the place of a table's, with the columns that it adds; what it is then."""

    def lacking(self, declared: Declaration) -> Lacking:
        """What the lake has and a typed table was not filled with."""

    def lacks_more(self, declared: Declaration, most: int) -> bool:
        """Whether a fill has to read more than so many bytes: of `messages`; in a catalog, which does not tell, of the logs."""

    def fill(
        self,
        declared: Declaration,
        tell: Callable[[int], None] = lambda rows: None,
        until: float = math.inf,
    ) -> int:
        """Brings a typed table to the lake's progress, out of `messages`; the rows that it got. `tell` gets how many messages
        were read, part by part. In a folder, what begins once `time.monotonic()` is beyond `until` is left. Raises UnknownSchemaError,
        too."""

    def ends(self) -> Ends:
        """Up to where the lake holds each log."""


class FolderTyped:
    """Of a lake in a folder or an object store."""

    def __init__(self, lake: Folder) -> None:
        self._lake = lake
        self._logs: dict[str, TableLog] = {}

    def declarations(self) -> list[Declaration]:
        """See `TypedTables.declarations`."""
        return declarations(self._lake)

    def readable(self) -> list[Declaration]:
        """See `TypedTables.readable`."""
        return readable(self._lake)

    def look(self, tell: Callable[[str], None]) -> Look:
        """See `TypedTables.look`."""
        self._logs = {}  # also what cannot be followed any more is read anew
        return look(self._lake, tell, self._logs)

    def look_again(self) -> Look:
        """See `TypedTables.look_again`."""
        return look(self._lake, logs=self._logs)

    def before(self, table: str) -> Before:
        """See `TypedTables.before`."""
        return before(self._lake, table)

    def declare(self, declared: Declaration) -> None:
        """See `TypedTables.declare`."""
        declare(self._lake, declared)

    def alter(self, table: str, change: Callable[[Declaration], Declaration]) -> Declaration:
        """See `TypedTables.alter`."""
        return alter(self._lake, table, change)

    def lacking(self, declared: Declaration) -> Lacking:
        """See `TypedTables.lacking`."""
        return lacking(self._lake, TableLog(self._lake.child(declared.table), reads=True), declared)

    def lacks_more(self, declared: Declaration, most: int) -> bool:
        """See `TypedTables.lacks_more`."""
        return reads_more(self._lake, declared, most)

    def fill(
        self,
        declared: Declaration,
        tell: Callable[[int], None] = lambda rows: None,
        until: float = math.inf,
    ) -> int:
        """See `TypedTables.fill`."""
        return fill(self._lake, declared, tell, until)

    def ends(self) -> Ends:
        """See `TypedTables.ends`."""
        progress = TableLog(self._lake.child(REPUT_PROGRESS.name), reads=True)
        return FollowedEnds(self._lake).at(progress)
