"""JSON Schema as fields with types. What decides whether a message fits is `type`, `required`, `enum` and `const`,
`format` of dates, `properties` and `items`; what else a schema says (lengths, patterns, ranges) is not looked at.

| JSON Schema | column |
|---|---|
| `string` | string; with `format` `date-time` timestamp, with `date` date |
| `integer`, `number`, `boolean` | bigint, double, boolean |
| `object` with `properties` | struct |
| `array` with `items` | array |
| a type with `null`, `nullable: true`, `anyOf`/`oneOf` of one type and null | that of the type |
| `enum`, `const` of one type | that of the type |
| `$ref` into the document, or by the `$id` of a schema in it | what it names |
| several types, an object without properties, an array without items, a schema that contains itself | none: left out |

`required` is: there, and not null unless null is a type of it. A field that is not required may be null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

import pyarrow as pa

from structured_streaming.tables import TIMESTAMP
from structured_streaming.typed.fields import MOST_DEPTH, SchemaError, TypedField, check_fields

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS = {"date-time": TIMESTAMP, "date": pa.date32()}
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keywords with values, in which nothing is a schema."""
_MOST_NODES = 5000
"""That a schema leads to: one that names its parts again and again grows beyond any size."""


@dataclass(frozen=True, slots=True)
class Node:
    """A field. `type` is its column's; `raw` is what is read before dates are made of texts."""

    type: pa.DataType
    raw: pa.DataType
    nullable: bool = False
    enum: tuple[Any, ...] | None = None
    children: Mapping[str, Child] = field(default_factory=dict)
    item: Node | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """A field of an object."""

    node: Node
    required: bool


class JsonSchema:
    """A version of a schema. `root` has its fields, `left_out` those without a column. Raises SchemaError."""

    def __init__(self, text: str) -> None:
        try:
            self._document = json.loads(text)
            json.dumps(self._document, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the schema is no JSON: {error}") from error
        self.left_out: list[str] = []
        self._nodes = 0
        self._base = ""
        self._by_id = _identified(self._document)
        root = self._node(self._document, "the message", (), 0)
        if root is None or not root.children:
            said = f": {self.left_out[0]}" if self.left_out else ""
            raise SchemaError(f"the schema is none of an object with properties{said}")
        self.root = root
        check_fields(self.fields)

    @property
    def fields(self) -> list[TypedField]:
        return [TypedField(name, child.node.type) for name, child in self.root.children.items()]

    def _node(self, schema: Any, place: str, within: tuple[str, ...], depth: int) -> Node | None:
        """Of a part of the document; None for what is left out."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise SchemaError(f"the schema leads to more than {_MOST_NODES:,} fields")
        if depth > MOST_DEPTH:
            return self._without(place, f"it is more than {MOST_DEPTH} levels deep")
        if not isinstance(schema, dict):
            return self._without(place, "anything fits it")
        before = self._base
        self._base = _base_of(schema, before)
        try:
            return self._identified(schema, place, within, depth)
        finally:
            self._base = before

    def _identified(
        self, schema: Mapping[str, Any], place: str, within: tuple[str, ...], depth: int
    ) -> Node | None:
        """Of a part whose `$ref`s are relative to `_base`."""
        if "$ref" in schema:
            name = schema["$ref"]
            if not isinstance(name, str):
                raise SchemaError(f"$ref {name!r} is no text")
            name = resolved(self._base, name) if not name.startswith("#") else f"{self._base}{name}"
            if name in within:
                return self._without(place, "it contains itself")
            document, base = self._document_of(name.partition("#")[0])
            before, self._base = self._base, base
            try:
                found = _within(document, name)
                return self._node(found, place, (*within, name), depth + 1)
            finally:
                self._base = before
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self._choice(schema, choice, place, within, depth)
        return self._plain(schema, place, within, depth)

    def _choice(
        self, schema: Mapping[str, Any], choice: str, place: str, within: tuple[str, ...], depth: int
    ) -> Node | None:
        options = schema[choice] if isinstance(schema[choice], list) else []
        others = [each for each in options if each != {"type": "null"}]
        if len(others) != 1:
            return self._without(place, f"{choice} of several types")
        node = self._node(others[0], place, within, depth + 1)
        return node and _nullable(node, node.nullable or len(others) < len(options))

    def _plain(
        self, schema: Mapping[str, Any], place: str, within: tuple[str, ...], depth: int
    ) -> Node | None:
        enum = self._enum(schema, place)
        kinds = schema.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        for kind in kinds:
            if not isinstance(kind, str):
                raise SchemaError(f"{place} has type {kind!r}, which JSON Schema does not know")
        if not kinds and enum:
            kinds = sorted({_kind(value) for value in enum})
        if not kinds and "properties" in schema:
            kinds = ["object"]
        nullable = "null" in kinds or schema.get("nullable") is True
        kinds = [kind for kind in kinds if kind != "null"]
        if set(kinds) == {"integer", "number"}:
            kinds = ["number"]
        if len(kinds) != 1:
            return self._without(place, "several types" if kinds else "it has no type")
        if kinds[0] == "object":
            return self._object(schema, place, within, depth, nullable)
        if kinds[0] == "array":
            return self._array(schema, place, within, depth, nullable)
        scalar = _SCALARS.get(kinds[0])
        if scalar is None:
            raise SchemaError(f"{place} has type {kinds[0]!r}, which JSON Schema does not know")
        stated = schema.get("format")
        final = _FORMATS.get(stated, scalar) if scalar == pa.string() and isinstance(stated, str) else scalar
        return Node(final, scalar, nullable, enum)

    def _object(
        self, schema: Mapping[str, Any], place: str, within: tuple[str, ...], depth: int, nullable: bool
    ) -> Node | None:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return self._without(place, "an object without properties")
        required = schema.get("required", [])
        required = required if isinstance(required, list) else []
        children: dict[str, Child] = {}
        for name, part in properties.items():
            inner = name if depth == 0 else f"{place}.{name}"
            node = self._node(part, inner, within, depth + 1)
            if node is not None:
                children[name] = Child(node, name in required)
        if not children:
            return self._without(place, "none of its properties has a column")
        final = pa.struct([(name, child.node.type) for name, child in children.items()])
        raw = pa.struct([(name, child.node.raw) for name, child in children.items()])
        return Node(final, raw, nullable, None, children)

    def _array(
        self, schema: Mapping[str, Any], place: str, within: tuple[str, ...], depth: int, nullable: bool
    ) -> Node | None:
        items = schema.get("items")
        if not isinstance(items, dict):
            return self._without(place, "an array without one kind of items")
        item = self._node(items, f"{place}[]", within, depth + 1)
        if item is None:
            return None
        return Node(pa.list_(item.type), pa.list_(item.raw), nullable, None, {}, item)

    def _enum(self, schema: Mapping[str, Any], place: str) -> tuple[Any, ...] | None:
        if "const" in schema:
            return (schema["const"],)
        values = schema.get("enum")
        if values is None:
            return None
        if not isinstance(values, list) or not values:
            raise SchemaError(f"enum of {place} is no list of values")
        return tuple(values)

    def _document_of(self, uri: str) -> tuple[Any, str]:
        """What a URI without its fragment names, and what `$ref`s in it are relative to."""
        if uri == _base_of(self._document, ""):
            return self._document, uri
        for _ in range(MOST_DEPTH):
            if uri not in self._by_id:
                break
            found = self._by_id[uri]
            if set(found) != {"$id", "$ref"}:
                return found, uri
            uri = resolved(uri, str(found["$ref"])).partition("#")[0]  # another name of a schema
        raise SchemaError(f"$ref {uri!r} leads out of the schema; put what it names into it")

    def _without(self, place: str, reason: str) -> Node | None:
        self.left_out.append(f"{place}: {reason}")
        return None


def resolved(base: str, uri: str) -> str:
    """A URI that may be relative to another. Raises SchemaError."""
    try:
        return urljoin(base, uri)
    except ValueError as error:
        raise SchemaError(f"{uri!r:.200} in the schema is no URI: {error}") from error


def _base_of(schema: Any, around: str) -> str:
    """What `$ref`s in a schema are relative to."""
    own = schema.get("$id") if isinstance(schema, dict) else None
    return resolved(around, own).partition("#")[0] if isinstance(own, str) else around


def _identified(document: Any) -> dict[str, Any]:
    """Schemas in a document that have an `$id`, by their whole URIs."""
    found: dict[str, Any] = {}
    todo = [(document, "")]
    while todo:
        schema, around = todo.pop()
        if isinstance(schema, dict):
            base = _base_of(schema, around)
            if base != around:
                found.setdefault(base, schema)
            todo += [(value, base) for name, value in schema.items() if name not in _VALUES]
        elif isinstance(schema, list):
            todo += [(each, around) for each in schema]
    return found


def _within(document: Any, name: str) -> Any:
    """What the fragment of a URI names in a document."""
    found = document
    for part in filter(None, unquote(name.partition("#")[2]).split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            raise SchemaError(f"$ref {name!r} names nothing in the schema")
        found = found[key]
    return found


def _nullable(node: Node, nullable: bool) -> Node:
    return Node(node.type, node.raw, nullable, node.enum, node.children, node.item)


def _kind(value: Any) -> str:
    """The type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names[type(value)]
