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
from structured_streaming.read_only import QUERY, Statement
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
        self._missing: dict[str, Callable[[], object]] = {
            **{name: functools.partial(self._make_table, name, frame) for name, frame in tables.items()},
            **{view.name: functools.partial(self._make_view, view) for view in VIEWS},
            **function_makers(session),
        }

    def bind(self, statement: Statement) -> None:
        """Makes the names that a statement uses, and all of them for one that is no query, such as SHOW TABLES. Raises LakeError
        and pyspark's errors."""
        if self._missing:
            used = names_in(statement)
            self._make(self._missing if used is None else used)

    def bind_all(self) -> None:
        """Makes every name, for statements that are not seen here. Raises LakeError and pyspark's errors."""
        self._make(self._missing)

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
        frame().createOrReplaceTempView(name)

    def _make_view(self, view: View) -> None:
        self._make(view.reads)
        make_temporary(self._session, view, self._shown)


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
