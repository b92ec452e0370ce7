"""Which tables a lake has: those of every lake, and its typed ones, which are declared, altered and removed while an engine is open."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from structured_streaming.commit.typed_declared import left_out, shown_table
from structured_streaming.embedded.database import check_definition
from structured_streaming.tables import TABLES, Table
from structured_streaming.typed.declaration import STOPPED, Declaration, declaration_of
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant
from structured_streaming.union.tails import not_filled
from structured_streaming.views import VIEWS

if TYPE_CHECKING:
    from structured_streaming.typed.topic import TypedRows

_TYPED = re.compile(r"typed_", re.IGNORECASE)
_LISTS = re.compile(
    r"duckdb_|information_schema|pg_|sqlite_|pragma|\b(?:show|desc|describe)\b", re.IGNORECASE
)
_OF_EVERY_LAKE = re.compile(rf"\b(?:{'|'.join([*TABLES, *(view.name for view in VIEWS)])})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Known:
    """`tables` by name; `typed` are the declarations of typed ones that rows of logs belong to, and `rows` makes these."""

    tables: Mapping[str, Table]
    typed: Mapping[str, Declaration]
    rows: Mapping[str, TypedRows]

    def check_filled(self, lake: FollowedLake, reads: Collection[str], instant: Instant) -> None:
        """Raises LakeError where one of the tables that are read lacks rows that the lake has: those of logs would leave a gap."""
        for table, declared in self.typed.items():
            if table in reads and (size := lake.lacks(declared, instant.ends)):
                raise not_filled(table, size)


class KnownTables:
    """Of a lake; with logs, what makes their typed rows is known, too."""

    def __init__(self, lake: FollowedLake, *, with_logs: bool) -> None:
        self._lake = lake
        self._with_logs = with_logs
        self._seen: Mapping[str, Mapping[str, Any]] = {}
        self._known = Known(TABLES, {}, {})

    def now(self) -> Known:
        """The same object as long as nothing changed. Costs as of `FollowedLake.typed_metadata`. Raises LakeError."""
        seen = self._lake.typed_metadata()
        if seen != self._seen:
            self._known = self._made(seen)
            self._seen = seen
        return self._known

    def _made(self, seen: Mapping[str, Mapping[str, Any]]) -> Known:
        tables, typed = dict(TABLES), dict[str, Declaration]()
        for name, metadata in seen.items():
            with left_out(name, lambda problem: None):
                declared = declaration_of(self._lake.folder.child(name), metadata["configuration"])
                if declared is not None:
                    shown = shown_table(metadata, declared)
                    check_definition(shown.schema)
                    tables[name], typed[name] = shown, declared
        if not self._with_logs:
            return Known(tables, {}, {})
        from structured_streaming.typed.topic import TypedRows  # compiled code: not for tables alone

        kept_up = {name: declared for name, declared in typed.items() if declared.state != STOPPED}
        rows = {name: TypedRows(declared) for name, declared in kept_up.items()}
        return Known(tables | {name: each.table for name, each in rows.items()}, kept_up, rows)


def may_ask_typed(statement: str) -> bool:
    """Whether typed tables may be read, or listed: it has a name of a typed one, or asks what tables there are, and not of those that
    every lake has."""
    if _TYPED.search(statement) is not None:
        return True
    return _LISTS.search(statement) is not None and _OF_EVERY_LAKE.search(statement) is None
