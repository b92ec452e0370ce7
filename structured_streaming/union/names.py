"""The names that a lake gives a Spark session: tables, views and functions, each made when a statement first uses it.

There are some thirty, of which a statement uses few. Spark takes a tenth of a second for each, and four times as long in a JVM that has
just started.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from structured_streaming.catalog.lake_functions import function_makers
from structured_streaming.catalog.lake_views import make_temporary
from structured_streaming.catalog.spark_errors import lake_errors, said
from structured_streaming.errors import LakeError
from structured_streaming.read_only import QUERY, Statement, kind_of
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS, View, leaving_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LakeNames:
    """Temporary views and functions of a session. `tables` has what makes the frame of each table; views are without the brokers that
    are `retired`."""

    with_logs = False

    def __init__(
        self, session: SparkSession, tables: Mapping[str, Callable[[], DataFrame]], retired: Iterable[str]
    ) -> None:
        self._session = session
        self._shown = leaving_out(retired)
        self._tables = tuple(tables)
        self._missing: dict[str, Callable[[], object]] = {
            **{name: functools.partial(self._make_table, name, frame) for name, frame in tables.items()},
            **{view.name: functools.partial(self._make_view, view) for view in VIEWS},
            **function_makers(session),
        }
        self._names = frozenset(self._missing)

    def bind(self, statement: Statement) -> None:
        """Makes the names that a statement uses, and all of them for one that is no query, such as SHOW TABLES, or makes a view of
        its own under one of these names, which the lake's would replace later. Raises LakeError for a query of a table that cannot be
        read, and pyspark's errors."""
        if self._missing:
            used = names_in(statement)
            if used is None or view_made_by(statement) in self._names:
                self.bind_all()
            else:
                self._make(used)

    def bind_all(self) -> None:
        """Makes every name, for statements that are not seen here. Of a table that cannot be read, reading it will fail; it is tried
        again with the next statement that needs it. Raises pyspark's errors."""
        unread: dict[str, Callable[[], object]] = {}
        try:
            for name in self._tables:
                try:
                    self._make((name,))
                except LakeError as error:
                    unread[name] = self._missing[name]
                    unreadable(self._session, name, str(error)).createOrReplaceTempView(name)
                    del self._missing[name]
            for view in VIEWS:  # made over what stands for the table, and made again with the table
                if not unread.keys().isdisjoint(view.reads):
                    unread[view.name] = functools.partial(self._make_view, view)
            self._make(self._missing)
        finally:
            self._missing |= unread

    def addresses(self) -> dict[str, str]:
        """There are no logs."""
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def _make(self, names: Iterable[str]) -> None:
        for name in list(names):
            if make := self._missing.get(name):
                make()
                del self._missing[name]

    def _make_table(self, name: str, frame: Callable[[], DataFrame]) -> None:
        try:
            frame().createOrReplaceTempView(name)
        except lake_errors() as error:
            raise LakeError(f"table {name} of the lake cannot be read: {said(error)}") from error

    def _make_view(self, view: View) -> None:
        self._make(view.reads)
        make_temporary(self._session, view, self._shown)


def unreadable(session: SparkSession, name: str, why: str) -> DataFrame:
    """Stands in for a table that cannot be read: it has the columns that a table of this name always has, which a typed one has none
    of, and reading its rows fails with the reason."""
    from pyspark.sql.functions import lit, raise_error
    from pyspark.sql.pandas.types import from_arrow_schema

    failing = session.range(1).where(raise_error(lit(why)).cast("boolean"))
    fields = from_arrow_schema(TABLES[name].schema).fields if name in TABLES else []
    return failing.select([lit(None).cast(field.dataType).alias(field.name) for field in fields])


def names_in(statement: Statement) -> set[str] | None:
    """Tables, views and functions that a statement names, in lower case; None where it may use others: it is no query, it names
    something by an expression, or the session is one of Spark Connect, which does not show its parser. Raises pyspark's ParseException."""
    if not hasattr(statement.session, "_jsparkSession"):
        return None
    found = set[str]()
    for kind, node, functions in statement.nodes:
        if not QUERY.fullmatch(kind):
            return None
        if kind == "RelationTimeTravel":  # its relation is none of its children
            return None
        if kind == "UnresolvedRelation":
            found.add(str(node.multipartIdentifier().last()).lower())
        for called in functions:
            if called is None:
                return None
            found.add(called)
    return found


def view_made_by(statement: Statement) -> str:
    """The name, in lower case, of the temporary view that a statement makes over a query; empty for others."""
    plan = statement.plan
    return str(plan.name().table()).lower() if kind_of(plan) == "CreateViewCommand" else ""
