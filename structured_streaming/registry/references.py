"""Schemas that a version of a subject refers to, and one schema made of them all.

A version names each by the subject and version that has it, and those name further ones. A name counts once in all of them. What is
made is whole by itself, so nobody who reads bodies asks for anything:

| | a name is | made of it |
|---|---|---|
| Avro | whatever; types are found by their own full names | the definition of a type in the place of its first use |
| Protobuf | the path of an import | a descriptor set |
| JSON Schema | the URI of a `$ref`, relative to the schema's `$id` | the schemas below `$defs`, each with its `$id` |

Their number, depth and bytes are bounded; one that leads to itself is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from structured_streaming.typed.declaration import MOST_SCHEMA
from structured_streaming.typed.fields import SchemaError
from structured_streaming.typed.json_schema import resolved

MOST_REFERENCES, MOST_DEPTH = 100, 16
"""Of a version: schemas that it leads to, and how far."""
Version = Mapping[str, Any]
"""What a registry says of a version: `schema`, `schemaType`, `id`, `references`."""
_BUILT_IN = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "string", "bytes", "array", "map")
)
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_MOST_LEVELS = 100


class Reference(NamedTuple):
    """A subject's version under a name."""

    name: str
    subject: str
    version: int


def referred(given: Version, ask: Callable[[str, int], Version]) -> dict[str, Version]:
    """All that a version leads to, by name, what each needs before it. `ask` gives a subject's version. Raises SchemaError."""
    found: dict[str, tuple[Reference, Version]] = {}
    size = len(_text(given))

    def is_there(each: Reference) -> bool:
        other = found[each.name][0] if each.name in found else each
        if other != each:
            raise SchemaError(
                f"reference {each.name!r:.200} is version {each.version} of {each.subject} and version {other.version} of "
                f"{other.subject}; let it be one"
            )
        return each.name in found

    def follow(of: Version, within: tuple[tuple[str, int], ...]) -> None:
        nonlocal size
        for each in _references(of):
            place = (each.subject, each.version)
            if place in within:
                way = " refers to ".join(f"version {number} of {name}" for name, number in (*within, place))
                raise SchemaError(f"it leads to itself: {way}")
            if is_there(each):
                continue
            if len(within) >= MOST_DEPTH:
                raise SchemaError(f"its references are more than {MOST_DEPTH} levels deep")
            its = ask(*place)
            if its.get("schemaType", "AVRO") != given.get("schemaType", "AVRO"):
                raise SchemaError(
                    f"it refers to version {each.version} of {each.subject}, which is {its.get('schemaType', 'AVRO')!r:.50}"
                )
            size += len(_text(its))
            if size > MOST_SCHEMA:
                raise SchemaError(f"it and what it refers to are larger than {MOST_SCHEMA:,} bytes")
            follow(its, (*within, place))
            is_there(each)  # by what it refers to itself
            found[each.name] = (each, its)
            if len(found) > MOST_REFERENCES:
                raise SchemaError(f"it refers to more than {MOST_REFERENCES} schemas")

    follow(given, ())
    return {name: version for name, (_, version) in found.items()}


def avro(text: str, others: Mapping[str, Version]) -> str:
    """A schema with the types of others that it uses. Raises SchemaError."""
    types: dict[str, tuple[Any, str]] = {}
    for each in others.values():
        _collect(_json(_text(each)), "", types, 0)
    return json.dumps(_Inlined(types).of(_json(text), "", 0))


def json_schema(text: str, others: Mapping[str, Version]) -> str:
    """A schema with others below its `$defs`. Raises SchemaError."""
    document = _json(text)
    if not others:
        return text
    there = document.get("$defs", {}) if isinstance(document, dict) else None
    if not isinstance(there, dict):
        raise SchemaError("it refers to other schemas, and is no object with objects in $defs")
    own = document.get("$id")
    base = own if isinstance(own, str) else ""
    added: dict[str, Any] = {}
    for name, version in others.items():
        uri = resolved(base, name)
        other = _json(_text(version))
        its = other.get("$id") if isinstance(other, dict) else None
        key = f"lakebroker:{name}"
        if not isinstance(other, dict):  # true or false
            continue
        if not isinstance(its, str) or resolved(uri, its) == uri:
            added[key] = {**other, "$id": uri}
        else:
            full = resolved(uri, its)
            added[key] = {"$id": uri, "$ref": full}
            added[f"{key}:"] = {**other, "$id": full}
    return json.dumps({**document, "$defs": {**there, **added}})


def _references(of: Version) -> list[Reference]:
    given = of.get("references") or []
    found = []
    for each in given if isinstance(given, list) else [given]:
        name, subject, version = map(each.get, Reference._fields) if isinstance(each, dict) else ("", "", 0)
        if not isinstance(name, str) or not isinstance(subject, str) or not name or not subject:
            raise SchemaError(f"its reference {json.dumps(each):.200} has no name and subject")
        try:
            f"{name}{subject}".encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise SchemaError(
                f"its reference {json.dumps(each):.200} has a name or subject that is no text"
            ) from None
        if type(version) is not int or version < 1:
            raise SchemaError(f"its reference {json.dumps(each):.200} has no version, a number from 1 on")
        if max(len(name), len(subject)) > 500:
            raise SchemaError(f"its reference {name!r:.50} has a name or subject of more than 500 characters")
        found.append(Reference(name, subject, version))
    return found


def _text(version: Version) -> str:
    text = version.get("schema")
    if not isinstance(text, str):
        raise SchemaError(f"what it refers to has no schema: {json.dumps(version):.100}")
    return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema, or one that it refers to, is no JSON: {error}") from error


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    """Avro's."""
    name = schema.get("name")
    if not isinstance(name, str):
        raise SchemaError(f"a type of the schema has no name: {json.dumps(schema):.100}")
    own = schema.get("namespace")
    if "." in name:
        return name
    space = own if isinstance(own, str) else space
    return f"{space}.{name}" if space else name


def _check_level(level: int) -> None:
    if level > _MOST_LEVELS:
        raise SchemaError(f"a type of the schema is more than {_MOST_LEVELS} levels deep")


def _parts(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What of an Avro type is types: `fields` of a record, `items`, `values`, a `type` that is one."""
    return [(name, schema[name]) for name in ("fields", "items", "values", "type") if name in schema]


def _is_named(schema: Any) -> bool:
    return isinstance(schema, dict) and isinstance(schema.get("type"), str) and schema["type"] in _NAMED


def _collect(schema: Any, space: str, types: dict[str, tuple[Any, str]], level: int) -> None:
    """Definitions by their full names, with the namespace around them."""
    _check_level(level)
    if isinstance(schema, list):
        for each in schema:
            _collect(each, space, types, level + 1)
    elif isinstance(schema, dict):
        if _is_named(schema):
            name = _full_name(schema, space)
            types.setdefault(name, (schema, space))
            space = name.rpartition(".")[0]
        for part, value in _parts(schema):
            if part == "fields" and isinstance(value, list):
                value = [each.get("type") for each in value if isinstance(each, dict)]
            _collect(value, space, types, level + 1)


class _Inlined:
    """Avro types with each definition in the place of its first use."""

    def __init__(self, types: Mapping[str, tuple[Any, str]]) -> None:
        self._types = types
        self._there: set[str] = set()

    def of(self, schema: Any, space: str, level: int) -> Any:
        _check_level(level)
        if isinstance(schema, str):
            return self._of_name(schema, space, level)
        if isinstance(schema, list):
            return [self.of(each, space, level + 1) for each in schema]
        if not isinstance(schema, dict):
            return schema
        made = dict(schema)
        if _is_named(schema):
            name = _full_name(schema, space)
            if name in self._there:
                return name
            self._there.add(name)
            space = name.rpartition(".")[0]
            made["name"], made["namespace"] = name.rpartition(".")[2], space
        for part, value in _parts(schema):
            if part == "fields" and isinstance(value, list):
                made[part] = [
                    {**each, "type": self.of(each["type"], space, level + 1)}
                    if isinstance(each, dict) and "type" in each
                    else each
                    for each in value
                ]
            elif part != "type" or not isinstance(value, str) or not _is_named(schema):
                made[part] = self.of(value, space, level + 1)
        return made

    def _of_name(self, name: str, space: str, level: int) -> Any:
        if name in _BUILT_IN:
            return name
        full = f"{space}.{name}" if space and "." not in name else name
        if full in self._there or full not in self._types:
            return name
        definition, around = self._types[full]
        return self.of(definition, around, level + 1)
