"""What of the logs goes into the lake: which tables, and of which topics bodies.

A table that is left out gets no rows, and no version in the progress rows of that time: what it lacks can be seen
there, and is not made up for later. `quarantine` and `reput_progress` cannot be left out.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from structured_streaming.errors import SourceError
from structured_streaming.rows.records import every_topic
from structured_streaming.tables import DATA_TABLES, QUARANTINE
from structured_streaming.typed.declaration import Declaration, unpacked

_NAMES = tuple(table.name for table in DATA_TABLES if table is not QUARANTINE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`tables` by name. `without_bodies`: topics whose messages have no body, `*` and `?` as in file names. `typed`: topics
    with tables of their own."""

    tables: frozenset[str] = frozenset(_NAMES)
    without_bodies: tuple[str, ...] = ()
    typed: tuple[Declaration, ...] = ()

    def __contains__(self, table: object) -> bool:
        return (
            table in self.tables
            or table == QUARANTINE.name
            or any(declared.table == table for declared in self.typed)
        )

    def bodies(self, topics: pa.StringArray) -> pa.BooleanArray:
        """Topics whose messages have their body."""
        if not self.without_bodies:
            return every_topic(topics)
        without = re.compile("|".join(map(fnmatch.translate, self.without_bodies)))
        return pa.array([without.match(topic) is None for topic in topics.to_pylist()], pa.bool_())


EVERYTHING = Wanted()


def wanted(options: Mapping[str, str]) -> Wanted:
    """What the options `tables` and `withoutbodies` say, both lists divided by commas, and `typed`. Raises SourceError,
    LakeError."""
    named = _words(options.get("tables", ""))
    unknown = [name for name in named if name not in _NAMES]
    if unknown:
        raise SourceError(
            f"option tables: there is no table {unknown[0]!r} to fill; give of {', '.join(_NAMES)}"
        )
    without = tuple(_words(options.get("withoutbodies", "")))
    return Wanted(frozenset(named or _NAMES), without, unpacked(options.get("typed", "")))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
