"""What a statement is and what it reads, by DuckDB's own parser and planner, before it gets near the lake's files.

It is planned over tables without rows, in a database that can read no file. So it fails here when it names a file, a
function that reads one, or what is not there. What may run:

- one statement, which the parser calls a SELECT (also `DESCRIBE`, `SHOW TABLES`, `SUMMARIZE`, `FROM`, `VALUES`), or
  `EXPLAIN` of such a one;
- that calls no function, and reads no view of the system, but the harmless ones of `functions.py`: `query('…')` would hide
  another statement, `enable_logging()` would change the engine.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from structured_streaming.embedded.database import definition
from structured_streaming.embedded.failures import BEFORE, not_a_query
from structured_streaming.embedded.filters import filtered
from structured_streaming.embedded.functions import (
    INTO_STRUCTURES,
    MOST_DEEP,
    OF_PLACES,
    REFUSED,
    REFUSED_VIEWS,
    TABLE_FUNCTIONS,
    is_harmless,
)
from structured_streaming.embedded.functions import VIEWS as SYSTEM_VIEWS
from structured_streaming.embedded.interface import Parameters
from structured_streaming.embedded.quoting import literal, name
from structured_streaming.embedded.running import Running
from structured_streaming.embedded.trees import nodes
from structured_streaming.errors import LakeError
from structured_streaming.rows.conditions import Condition
from structured_streaming.tables import TABLES, Table
from structured_streaming.views import VIEWS, View

_EXPLAIN = re.compile(
    rf"{BEFORE}EXPLAIN\b\s*+(?P<analyze>ANALYZE\b)?\s*+(?P<options>\(\s*+(?:FORMAT|ANALYZE)\b[\w\s,]*+\))?",
    re.IGNORECASE | re.DOTALL,
)
_OF_TWO = re.compile(r".*_\d+", re.DOTALL)
"""What a subquery makes of a name that stands twice; `DESCRIBE` tells it as it is."""


_TOLD = "SELECT md5('x'), sum(1) OVER (), count(*), 1 + 1 FROM messages, range(1)"
"""Calls a function of each kind."""

_FUNCTION = "SELECT min(function_name) FROM duckdb_functions() WHERE lower(function_name) IN (SELECT lower(unnest(?)))"
_VIEW = "SELECT min(view_name) FROM duckdb_views() WHERE internal AND lower(view_name) IN (SELECT lower(unnest(?)))"


_READ_BY = {view.name: view.reads for view in VIEWS}


class Read(NamedTuple):
    """What a statement reads of a table: columns in the table's order, and what rows it needs have in common."""

    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]


class Plan(NamedTuple):
    """`text` is what runs. `tables` and `views` are named in it, some perhaps without being read; `reads` are those that
    are. `by_catalog` are those that it names as tools do, `memory.main.messages`. `explains`: its rows tell how a query runs."""

    text: str
    tables: frozenset[str]
    views: tuple[View, ...]
    reads: dict[str, Read]
    by_catalog: frozenset[str]
    explains: bool


class Planner:
    """Plans in a database of its own, from several threads. Calls raise LakeError, ReadOnlyError; they have the statement's time, since
    a plan may take longer than its statement. Raises LakeError where the engine's trees do not tell what a statement calls."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Table] = TABLES) -> None:
        self._connection = connection
        self._tables = tables
        for table in tables.values():
            connection.execute(f"CREATE TABLE {name(table.name)} ({definition(table.schema)})")
            connection.execute(f"COMMENT ON TABLE {name(table.name)} IS {literal(table.comment)}")
        for view in VIEWS:
            connection.execute(f"CREATE VIEW {name(view.name)} AS {view.sql}")
            connection.execute(f"COMMENT ON VIEW {name(view.name)} IS {literal(view.comment)}")
        self._lock = threading.Lock()
        _check_told(_parsed(connection, _TOLD))

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For statements that read no table: those about tables, say."""
        with self._lock:
            return self._connection.cursor()

    def close(self) -> None:
        """Gives back the database; cursors go on."""
        self._connection.close()

    def plan(self, running: Running, statement: str, parameters: Parameters = ()) -> Plan:
        """How it is to run; `running` is on a `cursor` of these. Runs nothing."""
        cursor = running.cursor
        with running.working():
            prefix, query, tree = _checked(cursor, statement)
        with running.working(line=1):
            self._check_known(cursor, tree)
            named = _named(tree)
            shown = cursor.execute(f"EXPLAIN (FORMAT JSON)\n{query}", _given(parameters)).fetchall()
            self._check_listed(tree)
            reads = _reads(_of_json(shown[-1][1]), self._tables)
        views = tuple(view for view in VIEWS if view.name in named)
        tables = frozenset(self._tables.keys() & named) | reads.keys()
        if tables and (places := OF_PLACES & named):
            raise _refused(min(places), "tells where files are; ask it without the lake's tables")
        written = {each.lower() for each in _relations(tree, by_catalog=True)}
        by_catalog = (tables | {view.name for view in views}) & written
        return Plan(prefix + query, tables, views, reads, by_catalog, bool(prefix))

    def described(self, running: Running, statement: str) -> tuple[pa.Schema, list[str]]:
        """Schema of the rows, and the engine's types of their columns. Runs nothing; parameters count as NULL."""
        cursor = running.cursor
        with running.working():
            prefix, query, tree = _checked(cursor, statement)
        if prefix:
            return pa.schema([("explain_key", pa.string()), ("explain_value", pa.string())]), []
        with running.working(line=1):
            self._check_known(cursor, tree)
            named = cursor.extract_statements(query)[0].named_parameters
            nulls = dict.fromkeys(named) if named else None
            cursor.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0", nulls)
            self._check_listed(tree)
            schema, kinds = (
                cursor.to_arrow_reader().schema,
                [str(each[1]) for each in cursor.description or []],
            )
            if any(map(_OF_TWO.fullmatch, schema.names)):
                names = [row[0] for row in cursor.execute(f"DESCRIBE\n{query}", nulls).fetchall()]
                schema = pa.schema([field.with_name(of) for field, of in zip(schema, names, strict=True)])
            return schema, kinds

    def _check_known(self, cursor: duckdb.DuckDBPyConnection, tree: Any) -> None:
        """Raises LakeError, before anything is planned, where a statement calls or reads what the engine has and nobody knows to be
        harmless. Of what it has not either, its own error tells more."""
        if called := _one_of(cursor, _FUNCTION, _unlisted_functions(tree)):
            raise _refused(f"{called}()")
        if read := _one_of(cursor, _VIEW, self._unlisted_relations(tree)):
            raise _refused(read)

    def _check_listed(self, tree: Any) -> None:
        """Raises LakeError where the engine takes what it does not list either."""
        for called in _unlisted_functions(tree):
            raise _refused(f"{called}()")
        for read in self._unlisted_relations(tree):
            raise _refused(read)

    def _unlisted_relations(self, tree: Any) -> Iterator[str]:
        known = SYSTEM_VIEWS | self._tables.keys() | _READ_BY.keys() | set(_common_tables(tree))
        for node in nodes(tree):
            if node.get("type") == "BASE_TABLE" and node["table_name"].lower() not in known:
                yield node["table_name"]


def _named(tree: Any) -> frozenset[str]:
    """Names of tables and views in a statement, also those within views."""
    found: set[str] = set()
    named = {each.lower() for each in _relations(tree)}
    while named:
        found |= named
        named = {read for each in named for read in _READ_BY.get(each, ())} - found
    return frozenset(found)


def _check_told(tree: Any) -> None:
    """What is not known to be harmless is refused by its name in a tree: another DuckDB that writes those otherwise would let
    all of it pass."""
    found = set(_functions(tree)), set(_table_functions(tree)), set(_relations(tree))
    if found != ({"md5", "sum", "count_star", "+"}, {"range"}, {"messages"}):
        raise LakeError(
            f"DuckDB {duckdb.__version__} tells otherwise what a statement calls, so that nothing could be refused; install the "
            "extra 'sql' of lakebroker again"
        )


def _checked(cursor: duckdb.DuckDBPyConnection, statement: str) -> tuple[str, str, Any]:
    """What stands before the query (`EXPLAIN`), the query, and its tree. Raises LakeError, ReadOnlyError, DuckDB's errors."""
    kind, text = _only(cursor, statement)
    prefix = ""
    if kind == "EXPLAIN":
        found = _EXPLAIN.match(text)
        if found is None:
            raise LakeError("EXPLAIN of what? write EXPLAIN or EXPLAIN ANALYZE, then a query")
        kind, text = _only(cursor, text[found.end() :])
        runs = found["analyze"] or "ANALYZE" in (found["options"] or "").upper()
        prefix = "EXPLAIN ANALYZE " if runs else "EXPLAIN "
    if kind != "SELECT":
        raise not_a_query(kind, text)
    tree = _parsed(cursor, text)
    for called in _table_functions(tree):
        if called.lower() not in TABLE_FUNCTIONS:
            raise _refused(f"{called}()")
    for called in _functions(tree):
        if called.lower() in REFUSED:
            raise _refused(f"{called}()")
    for read in _relations(tree):
        if read.lower() in REFUSED_VIEWS:
            raise _refused(read)
    _check_depth(tree)
    return prefix, text, tree


def _check_depth(tree: Any) -> None:
    """Raises LakeError for what goes down into a value by calls within calls, as deep as the value is nested."""
    for node in nodes(tree):
        called = str(node.get("function_name", "")).lower()
        if called in INTO_STRUCTURES and not _is_shallow(node["children"][-1:]):
            raise LakeError(
                f'{called}() wants a text as its structure, nested at most {MOST_DEEP} deep, such as from_json(body, \'{{"id": "BIGINT"}}\')'
            )
        kind = node.get("cast_type")
        if isinstance(kind, dict) and any(map(_is_variant, nodes(kind))):
            raise _refused("type VARIANT")


def _is_shallow(structure: list[Any]) -> bool:
    """Whether an argument is a text in the statement, nested no deeper than `MOST_DEEP`."""
    value = structure[0].get("value") if structure else None
    text = value.get("value") if isinstance(value, dict) else None
    return isinstance(text, str) and text.count("[") + text.count("{") <= MOST_DEEP


def _is_variant(node: dict[str, Any]) -> bool:
    return "VARIANT" in (str(node.get("id")).upper(), str(node.get("name")).upper())


def _one_of(cursor: duckdb.DuckDBPyConnection, asked: str, names: Iterator[str]) -> str | None:
    """One of the names that the engine has, by a question of it."""
    if not (found := sorted(set(names))):
        return None
    row = cursor.execute(asked, [found]).fetchone()
    return row[0] if row else None


def _refused(what: str, why: str = "") -> LakeError:
    why = (
        why
        or "is none of what a statement may call or read (docs/using.md, The SQL shell); ask the lake's tables and views"
    )
    return LakeError(f"{what} is refused: it {why}")


def _only(cursor: duckdb.DuckDBPyConnection, text: str) -> tuple[str, str]:
    """Kind and text of the one statement of a text. Raises LakeError, DuckDB's errors."""
    _check_text(text)
    found = cursor.extract_statements(text)
    if not found:
        raise LakeError(f"there is no statement in {text!r}")
    if len(found) > 1:
        why = (
            ""
            if found[0].query
            else " (a PIVOT runs as several: name its values, as in ON event IN ('acked', 'expired'))"
        )
        raise LakeError(f"{len(found)} statements at once{why}; give one at a time")
    return found[0].type.name, found[0].query.strip().rstrip(";")


def _parsed(cursor: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The parser's tree of a SELECT. Raises LakeError, DuckDB's errors."""
    row = cursor.execute(f"SELECT json_serialize_sql({literal(query)})").fetchone()
    tree = _of_json(row[0]) if row else {"error": True}
    if tree["error"]:
        raise LakeError(
            f"the embedded engine cannot tell what this reads: {tree.get('error_message', query)}"
        )
    return tree


def _of_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise LakeError(
            "the statement is nested too deep: an expression in an expression, and so on for some hundred levels; put parts of it "
            "into WITH, a list of values into IN (…), texts into concat(…)"
        ) from error


def _relations(tree: Any, *, by_catalog: bool = False) -> Iterator[str]:
    """Names of tables and views; only those with their catalog, where that is asked for."""
    for node in nodes(tree):
        if node.get("type") in ("BASE_TABLE", "SHOW_REF") and isinstance(node.get("table_name"), str):
            if node.get("catalog_name") or not by_catalog:
                yield node["table_name"]


def _common_tables(tree: Any) -> Iterator[str]:
    """Names of WITH."""
    for node in nodes(tree):
        if isinstance(node.get("cte_map"), dict):
            yield from (str(each["key"]).lower() for each in node["cte_map"].get("map", ()))


def _table_functions(tree: Any) -> Iterator[str]:
    for node in nodes(tree):
        if node.get("type") == "TABLE_FUNCTION" and isinstance(node.get("function"), dict):
            yield str(node["function"].get("function_name"))


def _functions(tree: Any) -> Iterator[str]:
    """Names of all but table functions, as they are written: whatever their schema, wherever they stand."""
    tables = {id(node["function"]) for node in nodes(tree) if node.get("type") == "TABLE_FUNCTION"}
    for node in nodes(tree):
        if "function_name" in node and id(node) not in tables:
            yield str(node["function_name"])


def _unlisted_functions(tree: Any) -> Iterator[str]:
    return (each for each in _functions(tree) if not is_harmless(each))


def _reads(plan: Any, tables: Mapping[str, Table]) -> dict[str, Read]:
    """What the scans of a plan need of each table."""
    columns: dict[str, set[str]] = {}
    conditions: dict[str, frozenset[Condition]] = {}
    for node in nodes(plan):
        facts = node.get("extra_info")
        if not isinstance(facts, dict) or not isinstance(facts.get("Table"), str):
            continue
        table = tables[facts["Table"].rpartition(".")[2]]
        filters = filtered(
            _listed(facts.get("Filters")), table.schema.names
        )  # their columns are in no projection
        projected = {text.partition(".")[0].strip('"') for text in _listed(facts.get("Projections"))}
        columns.setdefault(table.name, set()).update(filters.columns, projected & set(table.schema.names))
        conditions[table.name] = conditions.get(table.name, filters.conditions) & filters.conditions
    return {
        each: Read(tables[each].chosen(wanted), tuple(sorted(conditions[each], key=str)))
        for each, wanted in columns.items()
    }


def _listed(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


def _check_text(value: object) -> None:
    """Raises LakeError for a text that is no Unicode: of an argument of a command, say."""
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise LakeError(f"{value!r} is no UTF-8 text") from error


def _given(parameters: Parameters) -> Any:
    for value in parameters.values() if isinstance(parameters, Mapping) else parameters:
        if isinstance(value, str):
            _check_text(value)
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
