"""What a table's metadata must say so that files of this version may be added, and how older metadata is brought there.

| the table | then |
|---|---|
| has a newer `lakebroker.schema_version` | is refused |
| has an older one | is upgraded in place (`upgrade.py`): columns are added, rows that are there have nulls in them |
| lacks a column, or has one of another type | is refused by the column's name |
| has further columns that may be null | goes on: new rows have nulls in them |
| has further columns that may not be null | is refused by the column's name |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import Schema

from structured_streaming.errors import LakeError
from structured_streaming.lake import PROPERTIES, schema_version
from structured_streaming.tables import SCHEMA_PROPERTY, SCHEMA_VERSION

Metadata = Mapping[str, Any]
"""Delta's `metaData` action."""
_OF_FOLDERS, _OF_CATALOGS = "delta.logRetentionDuration", "delta.enableDeletionVectors"
"""Properties with which tables are made in a folder alone, and in a catalog alone."""


def plain(metadata: Metadata) -> dict[str, Any]:
    """The action as a commit has it, of one that a checkpoint may have: there maps are lists of pairs, and there are nulls."""
    found = {name: value for name, value in metadata.items() if value is not None}
    found["configuration"] = dict(found.get("configuration") or {})
    found["format"] = {**found["format"], "options": dict(found["format"].get("options") or {})}
    return found


def check(place: object, metadata: Metadata, wanted: pa.Schema) -> None:
    """Raises LakeError where files with the columns `wanted` do not fit the table at `place`."""
    schema_version(place, metadata["configuration"])
    there = {field["name"]: field for field in _fields(metadata["schemaString"])}
    for field in _fields_of(wanted):
        known = there.pop(field["name"], None)
        if known is None:
            raise LakeError(
                f"{place} lacks the column {field['name']}, which this version writes; add it (ALTER TABLE … ADD "
                "COLUMN), or begin a new lake"
            )
        if _shape(known["type"]) != _shape(field["type"]):
            raise LakeError(
                f"column {field['name']} of {place} is of type {_words(known['type'])}, this version writes "
                f"{_words(field['type'])}; restore the type, or begin a new lake"
            )
    for field in there.values():
        if not field["nullable"]:
            raise LakeError(
                f"{place} has a column {field['name']} NOT NULL, which this version does not write; allow nulls in it"
            )


def upgraded(metadata: Metadata, wanted: pa.Schema) -> dict[str, Any]:
    """The metadata of a table with the columns `wanted` in their order, then further ones that it has."""
    there = {field["name"]: field for field in _fields(metadata["schemaString"])}
    fields = [there.pop(field["name"], field) for field in _fields_of(wanted)]
    schema = {"type": "struct", "fields": [*fields, *there.values()]}
    configuration = {**metadata["configuration"], SCHEMA_PROPERTY: str(SCHEMA_VERSION)}
    return {**plain(metadata), "schemaString": json.dumps(schema), "configuration": configuration}


def completed(metadata: Metadata) -> dict[str, Any] | None:
    """The metadata of a table of a folder with the properties that it lacks; None where it lacks none, or is a catalog's."""
    properties = metadata["configuration"]
    of_folder = _OF_FOLDERS in properties and _OF_CATALOGS not in properties
    if not of_folder or PROPERTIES.keys() <= properties.keys():
        return None
    return {**plain(metadata), "configuration": {**PROPERTIES, **properties}}


def _fields(schema: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def _fields_of(schema: pa.Schema) -> list[dict[str, Any]]:
    return _fields(Schema.from_arrow(schema).to_json())


def _shape(kind: Any) -> Any:
    """A type without what does not matter to files: comments, and what may be null."""
    if isinstance(kind, list):
        return [_shape(each) for each in kind]
    if isinstance(kind, dict):
        return {
            name: _shape(value)
            for name, value in kind.items()
            if name not in ("metadata", "nullable", "containsNull", "valueContainsNull")
        }
    return kind


def _words(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
