"""The typed tables of a lake in a folder, and what they say of themselves. Compiled code is not needed for that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from deltalake import Schema

from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError, is_away
from structured_streaming.storage.delta_names import LOG
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import Column, Table
from structured_streaming.typed.declaration import (
    DECLARED,
    NAME,
    Declaration,
    UnknownSchemaError,
    declaration_of,
)
from structured_streaming.typed.fields import OWN, typed_table


def declarations(lake: Folder) -> list[Declaration]:
    """Of all typed tables, by the names of their tables. Raises LakeError for a table that cannot be read."""
    return [declared for name in typed_names(lake) if (declared := declared_in(lake, name)) is not None]


def stored_tables(lake: Folder) -> list[Table]:
    """Every typed table, for who rewrites or checks its files whatever its schema: the row key, no fields. One that cannot be read is
    among them; what has such a name, and neither a declaration nor the columns of one, is somebody else's."""
    return [typed_table(name, "", ()) for name in typed_names(lake) if _may_be_typed(lake.child(name))]


def _may_be_typed(folder: Folder) -> bool:
    try:
        metadata = TableLog(folder, reads=True).metadata
    except LakeError:
        return True
    names = set(Schema.from_json(metadata["schemaString"]).to_arrow().names)
    return DECLARED in metadata["configuration"] or names >= {column.name for column in OWN}


def readable(lake: Folder) -> list[Declaration]:
    """Those whose tables can be read, filled or not."""
    found = []
    for name in typed_names(lake):
        with left_out(name, lambda problem: None):
            if (declared := declared_in(lake, name)) is not None:
                found.append(declared)
    return found


@contextlib.contextmanager
def left_out(table: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Tells what is wrong with one typed table, and goes on. Raises UnknownSchemaError, and errors that concern every table: a store
    that is away, too few descriptors."""
    try:
        yield
    except UnknownSchemaError:
        raise
    except LakeError as error:
        if is_away(error):
            raise
        tell(f"{table} is left as it is: {error}")


def shown_table(metadata: Mapping[str, Any], declared: Declaration) -> Table:
    """A typed table as readers see it: with all its columns, also those that somebody added, as its `metadata` says. Raises LakeError for
    what is no schema."""
    try:
        schema = pa.schema(Schema.from_json(metadata["schemaString"]).to_arrow())
    except (ValueError, KeyError, TypeError) as error:  # deltalake's own, too
        raise LakeError(f"its schema cannot be read: {error}") from error
    columns = [
        Column(each.name, each.type, (each.metadata or {}).get(b"comment", b"").decode()) for each in schema
    ]
    made = typed_table(declared.table, declared.topic, ())
    return Table(made.name, made.comment, tuple(columns), made.key, made.order)


def declared_in(lake: Folder, table: str) -> Declaration | None:
    folder = lake.child(table)
    return declaration_of(folder, TableLog(folder, reads=True).metadata["configuration"])


def typed_names(lake: Folder, known: Collection[str] = ()) -> list[str]:
    """The tables of a lake that have names of typed ones; the `known` are tables as long as they are there."""
    names = lake.names() if lake.exists() else []
    return sorted(
        name
        for name in names
        if NAME.fullmatch(name) and (name in known or lake.child(name).child(LOG).exists())
    )
