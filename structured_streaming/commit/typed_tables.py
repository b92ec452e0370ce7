"""The typed tables of a lake in a folder: found by their names, made and altered whole.

A declaration and the columns of its table are one commit of that table's metadata. Two who alter it at once both have their
say: the later one begins again with what the other left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.commit.table_schema import check, plain
from structured_streaming.commit.typed_declared import declarations, declared_in, left_out, typed_names
from structured_streaming.errors import LakeError
from structured_streaming.lake import PROPERTIES
from structured_streaming.storage.folder import Folder
from structured_streaming.typed.declaration import (
    ACTIVE,
    DECLARED,
    FILLING,
    MOST_TYPED,
    Declaration,
    checked,
    declaration_of,
    written,
)
from structured_streaming.typed.topic import TypedTopic, typed_topic


class Look(NamedTuple):
    """Typed tables of a lake: those that the reput fills, those that are FILLING, names of those that cannot be used as they are."""

    kept_up: list[Declaration]
    filling: list[Declaration]
    unusable: list[str]


def look(
    lake: Folder,
    tell: Callable[[str], None] = lambda problem: None,
    logs: dict[str, TableLog] | None = None,
) -> Look:
    """As they are now. What is wrong with a table leaves it out, and is told; raises LakeError where the store is away.

    With `logs`, which are the caller's to keep, another look costs the names of the lake's tables and what is new in their logs.
    """
    known = {} if logs is None else logs
    found = Look([], [], [])
    for name in typed_names(lake, known):
        problems = list[str]()
        with left_out(name, problems.append):
            folder = lake.child(name)
            if name in known:
                known[name].follow()
            else:
                known[name] = TableLog(folder, reads=True)
            metadata = known[name].metadata
            declared = declaration_of(folder, metadata["configuration"])
            if declared is not None and declared.state == ACTIVE:
                check(folder, metadata, typed_topic(declared).table.schema)
                found.kept_up.append(declared)
            elif declared is not None and declared.state == FILLING:
                found.filling.append(declared)
        for problem in problems:
            found.unusable.append(name)
            tell(problem)
    return found


def declare(lake: Folder, declared: Declaration) -> None:
    """Makes the table of a new declaration. Raises LakeError where another table has its name, or the topic."""
    check_new(declarations(lake), declared)
    if lake.child(declared.table).exists():
        raise LakeError(
            f"{lake.child(declared.table)} is there, and no typed table; give another name (--table)"
        )
    table = TypedTopic(checked(declared)).table

    def fill(uri: str) -> None:
        DeltaTable.create(
            uri,
            schema=table.schema,
            name=table.name,
            description=table.comment,
            configuration={**PROPERTIES, DECLARED: written(declared)},
            raise_if_key_not_exists=False,
        )

    try:
        lake.create(table.name, fill)
    except (DeltaError, OSError) as error:
        raise LakeError(f"table {lake.child(table.name)} cannot be made: {error}") from error
    if declared_in(lake, declared.table) != declared:
        raise LakeError(
            f"another command declared table {declared.table} meanwhile; look with `lakebroker typed list`"
        )


def check_new(there: Sequence[Declaration], declared: Declaration) -> None:
    """Raises LakeError where a topic cannot be declared beside others."""
    for other in there:
        if other.topic == declared.topic:
            raise LakeError(f"topic {declared.topic} is typed already, in table {other.table}")
        if other.table == declared.table:
            raise LakeError(
                f"table {declared.table} has topic {other.topic}; give the table of {declared.topic} another name (--table)"
            )
    if len(there) >= MOST_TYPED:
        raise LakeError(f"the lake has {len(there)} typed topics, and at most {MOST_TYPED} are possible")


def alter(lake: Folder, table: str, change: Callable[[Declaration], Declaration]) -> Declaration:
    """Puts a changed declaration in the place of a table's, with the columns that it adds; what it is then. Raises LakeError."""
    log = TableLog(lake.child(table))
    while True:
        before = declaration_of(lake.child(table), log.metadata["configuration"])
        if before is None:
            raise LakeError(f"{lake.child(table)} is no typed table")
        after = checked(change(before))
        metadata = _altered(log.metadata, after)
        if metadata == plain(log.metadata):
            return after
        try:
            log.alter(metadata)
        except VersionTakenError:
            log.follow()
        else:
            return after


def _altered(metadata: dict[str, Any], declared: Declaration) -> dict[str, Any]:
    """The metadata with the columns of a declaration, then others that somebody added."""
    wanted = json.loads(Schema.from_arrow(TypedTopic(declared).table.schema).to_json())["fields"]
    names = {field["name"] for field in wanted}
    there = json.loads(metadata["schemaString"])["fields"]
    others = [field for field in there if field["name"] not in names]
    if sorted(map(_text, there)) == sorted(map(_text, [*wanted, *others])):
        schema = metadata["schemaString"]
    else:
        schema = json.dumps({"type": "struct", "fields": [*wanted, *others]})
    configuration = {**metadata["configuration"], DECLARED: written(declared)}
    return {**plain(metadata), "schemaString": schema, "configuration": configuration}


def _text(field: Any) -> str:
    return json.dumps(field, sort_keys=True)
