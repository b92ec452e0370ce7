"""What tools ask about catalogs, schemas, tables, columns and keys, as tables of the schemas that Flight SQL gives.

The lake's tables and views are in one schema of one catalog, those that the engine has them in: a tool that writes
`catalog.schema.table` finds them. Row keys are primary keys; nothing enforces them, the reput keeps them. There are no
foreign keys. Names are compared without their case, as the engine does.

Source of the schemas: the comments of Arrow's FlightSql.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.flight.arrow_messages import schema_bytes
from structured_streaming.flight.failures import bad
from structured_streaming.flight.sql_info import type_name

if TYPE_CHECKING:
    from structured_streaming.embedded.interface import Relation

_PATTERN = 256
"""Characters of a pattern; no name has as many."""
_TYPES = {"table": "TABLE", "view": "VIEW"}


def _field(name: str, kind: pa.DataType = pa.string(), *, null: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=null)


CATALOGS = pa.schema([_field("catalog_name")])
DB_SCHEMAS = pa.schema([_field("catalog_name", null=True), _field("db_schema_name")])
TABLE_TYPES = pa.schema([_field("table_type")])
TABLES_WITHOUT_SCHEMA = pa.schema(
    [
        _field("catalog_name", null=True),
        _field("db_schema_name", null=True),
        _field("table_name"),
        _field("table_type"),
    ]
)
TABLES_WITH_SCHEMA = TABLES_WITHOUT_SCHEMA.append(_field("table_schema", pa.binary()))
PRIMARY_KEYS = pa.schema(
    [
        _field("catalog_name", null=True),
        _field("db_schema_name", null=True),
        _field("table_name"),
        _field("column_name"),
        _field("key_name", null=True),
        _field("key_sequence", pa.int32()),
    ]
)
FOREIGN_KEYS = pa.schema(
    [
        _field("pk_catalog_name", null=True),
        _field("pk_db_schema_name", null=True),
        _field("pk_table_name"),
        _field("pk_column_name"),
        _field("fk_catalog_name", null=True),
        _field("fk_db_schema_name", null=True),
        _field("fk_table_name"),
        _field("fk_column_name"),
        _field("key_sequence", pa.int32()),
        _field("fk_key_name", null=True),
        _field("pk_key_name", null=True),
        _field("update_rule", pa.uint8()),
        _field("delete_rule", pa.uint8()),
    ]
)


class Place(NamedTuple):
    """Where the engine has the relations."""

    catalog: str
    db_schema: str

    def within(self, catalog: str | None, db_schema: str | None = None) -> bool:
        """Whether these names, where they are given, are the place's."""
        return (catalog is None or catalog.lower() == self.catalog.lower()) and (
            db_schema is None or db_schema.lower() == self.db_schema.lower()
        )


def catalogs(place: Place) -> pa.Table:
    return pa.Table.from_pylist([{"catalog_name": place.catalog}], schema=CATALOGS)


def db_schemas(place: Place, catalog: str | None, pattern: str | None) -> pa.Table:
    """Raises CallError, as `tables` does, for a pattern that is none."""
    found = place.within(catalog) and _matching([place.db_schema], pattern)
    return pa.Table.from_pylist(
        [{"catalog_name": place.catalog, "db_schema_name": place.db_schema}] if found else [],
        schema=DB_SCHEMAS,
    )


def table_types() -> pa.Table:
    return pa.table([sorted(_TYPES.values())], schema=TABLE_TYPES)


def tables(
    place: Place,
    relations: Sequence[Relation],
    *,
    catalog: str | None = None,
    db_schema_pattern: str | None = None,
    pattern: str | None = None,
    types: Sequence[str] = (),
    with_schema: bool = False,
) -> pa.Table:
    """Those that match, by name."""
    names: set[str] = set()
    if place.within(catalog) and _matching([place.db_schema], db_schema_pattern):
        names = _matching([each.name for each in relations], pattern)
    rows = [
        {
            "catalog_name": place.catalog,
            "db_schema_name": place.db_schema,
            "table_name": each.name,
            "table_type": _TYPES[each.kind],
            "table_schema": schema_bytes(_described(place, each)) if with_schema else b"",
        }
        for each in sorted(relations, key=lambda each: each.name)
        if each.name in names and (not types or _TYPES[each.kind] in types)
    ]
    return pa.Table.from_pylist(rows, schema=TABLES_WITH_SCHEMA if with_schema else TABLES_WITHOUT_SCHEMA)


def primary_keys(
    place: Place, relations: Sequence[Relation], catalog: str | None, db_schema: str | None, table: str
) -> pa.Table:
    """Of a table, also a typed one; a view has none."""
    there = relations if place.within(catalog, db_schema) else ()
    found = next((each for each in there if each.name == table.lower()), None)
    rows = (
        [
            {
                "catalog_name": place.catalog,
                "db_schema_name": place.db_schema,
                "table_name": found.name,
                "column_name": column,
                "key_name": None,
                "key_sequence": at,
            }
            for at, column in enumerate(found.key, 1)
        ]
        if found is not None
        else []
    )
    return pa.Table.from_pylist(rows, schema=PRIMARY_KEYS)


def foreign_keys() -> pa.Table:
    """There are none."""
    return FOREIGN_KEYS.empty_table()


def _described(place: Place, relation: Relation) -> pa.Schema:
    """A relation's schema with what drivers read of its fields' metadata."""
    fields = []
    for field in relation.schema:
        facts = {
            "CATALOG_NAME": place.catalog,
            "SCHEMA_NAME": place.db_schema,
            "TABLE_NAME": relation.name,
            "TYPE_NAME": type_name(field.type),
            "IS_AUTO_INCREMENT": "0",
            "IS_CASE_SENSITIVE": "1" if pa.types.is_string(field.type) else "0",
            "IS_READ_ONLY": "1",
            "IS_SEARCHABLE": "1",
        }
        if comment := (field.metadata or {}).get(b"comment", b"").decode():
            facts["REMARKS"] = comment
        fields.append(
            field.with_metadata({f"ARROW:FLIGHT:SQL:{name}": value for name, value in facts.items()})
        )
    return pa.schema(fields)


def _matching(names: Sequence[str], pattern: str | None) -> set[str]:
    """Names that a pattern matches: % is any text, _ any character, a backslash takes either as it is."""
    if pattern is None:
        return set(names)
    if len(pattern) > _PATTERN:
        raise bad(f"the pattern has {len(pattern):,} characters; give one of {_PATTERN} at most")
    try:
        found = pc.match_like(pa.array(names, pa.string()), pattern, ignore_case=True).to_pylist()
    except pa.ArrowInvalid as error:
        raise bad(f"the pattern {pattern!r} cannot be read: {error}") from error
    return {name for name, matches in zip(names, found, strict=True) if matches}
