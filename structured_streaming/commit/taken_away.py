"""Commits of other people's hands that took a table's rows away. Our own (retention, erasure) are none of them: they name us.

A commit is told apart by its own words, so it costs readers nothing but looking at what they read of a log anyway; whether
rows were left is asked of the version that it made, once. A commit behind a checkpoint is not read any more: then
`lakebroker lake check` finds what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from structured_streaming.commit.versions import of_version
from structured_streaming.storage.folder import Folder

ENGINE = "lakebroker"
"""What our commits name as the program that made them."""


class TakenAway(NamedTuple):
    """A version that removed files and added no rows, of another program; `how` says what it called itself."""

    version: int
    how: str


def taken_away(
    actions: Sequence[Mapping[str, Any]], version: int, before: TakenAway | None
) -> TakenAway | None:
    """The newest such commit, with the one of `version`, after `before`; none behind one that restored the table."""
    said = next(_of(actions, "commitInfo"), {})
    if said.get("operation") == "RESTORE":
        return None
    removes = any(each.get("dataChange", True) for each in _of(actions, "remove"))
    if not removes or said.get("engineInfo") == ENGINE or any(map(_has_rows, _of(actions, "add"))):
        return before
    operation, engine = (str(said.get(name, "unknown")) for name in ("operation", "engineInfo"))
    return TakenAway(version, f"{operation:.50} by {engine:.80}")


def emptied(folder: Folder, found: TakenAway) -> bool:
    """Whether that version has no rows; False, too, where it is gone. Raises LakeError."""
    actions = of_version(folder, found.version, lambda table: pa.table(table.get_add_actions(flatten=True)))
    if actions is None:
        return False
    counts = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [None]
    return actions.num_rows == 0 or all(count == 0 for count in counts)


def _of(actions: Sequence[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, Any]]:
    """Actions of a kind; what is none says nothing here."""
    return (action[kind] for action in actions if isinstance(action.get(kind), dict))


def _has_rows(add: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(add.get("stats") or "{}").get("numRecords") != 0)
    except (ValueError, TypeError, AttributeError):  # they are no statistics
        return True
