"""Which parameters a statement has, and of which types, as far as it tells.

The engine knows types only when values are bound, and takes texts for numbers and times then. JDBC's driver asks before,
and takes no other values than those of the type that it was told. So a parameter that is compared with a column, or is a
limit, gets the column's type, or int64; any other is a text. Of times the type is in milliseconds: that is what JDBC's driver
writes, whatever the unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from structured_streaming.embedded.trees import nodes

if TYPE_CHECKING:
    from structured_streaming.embedded.interface import Relation, SqlEngine
    from structured_streaming.embedded.running import Watch

_NAMES = "SELECT json_serialize_sql($1)->'$.statements[0].named_param_map' AS names"
"""A list of `key` and `value`: names and places, in no order."""
_TREE = "SELECT json_serialize_sql($1) AS tree"
_COMPARED = ("left", "right", "input", "lower", "upper")
"""Where a comparison has its sides."""


def parameters_of(engine: SqlEngine, statement: str, watch: Watch | None = None) -> pa.Schema:
    """A field for each parameter, in order; none for a statement that has none, or is no SELECT. Raises LakeError."""
    places = json.loads(_asked(engine, _NAMES, statement, watch) or "[]")
    if not places:
        return pa.schema([])
    names = [each["key"] for each in sorted(places, key=lambda each: int(each["value"]))]
    try:
        types = _types(
            json.loads(_asked(engine, _TREE, statement, watch) or "{}"),
            _column_types(engine.relations(watch)),
        )
    except RecursionError:  # a statement so deep tells nothing
        types = {}
    return pa.schema([pa.field(name, types.get(name, pa.string())) for name in names])


def _asked(engine: SqlEngine, question: str, statement: str, watch: Watch | None) -> str | None:
    with engine.query(question, [statement], watch) as reader:
        (row,) = reader.read_all().to_pylist()
    (answer,) = row.values()
    return answer if isinstance(answer, str) else None


def _column_types(relations: Iterable[Relation]) -> dict[str, pa.DataType]:
    """The type of each column's name that has one type only, wherever it stands."""
    found: dict[str, set[pa.DataType]] = {}
    for relation in relations:
        for field in relation.schema:
            kind = field.type
            if pa.types.is_timestamp(kind):
                kind = pa.timestamp("ms", kind.tz)
            found.setdefault(field.name.lower(), set()).add(kind)
    return {name: types.pop() for name, types in found.items() if len(types) == 1}


def _types(tree: Any, columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    found: dict[str, pa.DataType] = {}
    for node in nodes(tree):
        kind = node.get("type")
        if kind == "LIMIT_MODIFIER":
            found |= {name: pa.int64() for name in _names([node.get("limit"), node.get("offset")])}
        elif node.get("class") in ("COMPARISON", "BETWEEN") or kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            sides = [node.get(side) for side in _COMPARED]
            if isinstance(node.get("children"), list):
                sides += node["children"]
            types = {columns.get(_column(side)) for side in sides if _column(side)}
            if len(types) == 1 and (known := types.pop()) is not None:
                found |= dict.fromkeys(_names(sides), known)
    return found


def _names(nodes: Iterable[Any]) -> Iterator[str]:
    """Those of the nodes that are parameters."""
    for node in nodes:
        if isinstance(node, dict) and node.get("class") == "PARAMETER":
            yield str(node.get("identifier"))


def _column(node: Any) -> str:
    """The name of a node that is a column; empty for others."""
    if isinstance(node, dict) and node.get("class") == "COLUMN_REF" and node.get("column_names"):
        return str(node["column_names"][-1]).lower()
    return ""
