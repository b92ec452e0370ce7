"""Which tables and columns a statement reads, by Spark's optimizer: it is asked of stand-ins, which hold nothing.

Spark prunes no columns of a Python data source. So a statement is first planned over stand-ins; what its plan asks of
them is then all that is read of the logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from structured_streaming.read_only import Statement, each_of, kind_of, tree_of
from structured_streaming.tables import TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARK = "lakebroker.table"
_NAMING = re.compile(
    "Aggregate|Expand|Filter|Generate|GlobalLimit|Join|LocalLimit|Offset|Project|Sort|Window"
)
"""Nodes that name every column of their children that they need, or hand it on for others to name."""


def stand_in(session: SparkSession, table: Table) -> DataFrame:
    """A frame without rows, with the columns of the table, that `columns_read` knows again."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(table.schema)
    for field in schema.fields:
        field.metadata = {_MARK: table.name}
    return session.createDataFrame(session.sparkContext.emptyRDD(), schema)


def columns_read(statement: Statement, tables: Mapping[str, Table] = TABLES) -> dict[str, tuple[str, ...]]:
    """Columns by table, in the tables' order; of a table of which only the rows count, its offset.

    Runs nothing. Raises pyspark's errors for bad SQL.
    """
    state = statement.session._jsparkSession.sessionState()
    jvm: Any = statement.session._jvm
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    plan = state.optimizer().execute(state.executePlan(statement.plan, skip).analyzed())
    named = set(_ids(plan.output()))
    read: list[Any] = []
    for node in tree_of(plan):
        named.update(_ids(node.references()))
        inner = [*each_of(node.subqueries()), *each_of(node.innerChildren())]
        if not _NAMING.fullmatch(kind_of(node)):
            inner += each_of(node.children())
        for each in inner:
            named.update(_ids(each.output()))
        if kind_of(node) == "LogicalRDD":
            read.append(node)
    found: dict[str, set[str]] = {}
    for node in read:
        for attribute in each_of(node.output()):
            if not attribute.metadata().contains(_MARK):
                break
            wanted = found.setdefault(attribute.metadata().getString(_MARK), set())
            if attribute.exprId().id() in named:
                wanted.add(attribute.name())
    return {name: tables[name].chosen(wanted) for name, wanted in found.items()}


def _ids(attributes: Any) -> Iterator[int]:
    for attribute in each_of(attributes):
        yield attribute.exprId().id()
