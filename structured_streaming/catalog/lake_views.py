"""The lake's views as Spark makes them: in a session for its time, in a catalog for every tool that asks it.

A view in a catalog names its tables in full, and carries a mark of its definition as the property `lakebroker.view`. A
view of another definition is made anew; what has no such mark is somebody else's and stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from structured_streaming.catalog.lake_tables import sql_text
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import said, spark_errors
from structured_streaming.views import VIEWS, View, leaving_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "lakebroker.view"


def make_temporary(session: SparkSession, view: View, shown: Callable[[str], str]) -> None:
    """A view as a temporary one of the session, over tables or views that it has; `shown` says how each stands in SQL."""
    session.sql(f"CREATE OR REPLACE TEMP VIEW {view.name} {_described(view)} AS {view.over(shown)}")


def make_views(
    session: SparkSession, schema: CatalogSchema, retired: Iterable[str], tell: Callable[[str], None]
) -> None:
    """Makes the views of a schema that are missing, and those of another definition anew, without the brokers that are `retired`.

    `tell` gets a line for each name that is somebody else's, and one where the catalog keeps no views. The tables are
    there before.
    """
    shown = leaving_out(retired)
    for view in VIEWS:
        text = view.over(lambda name: shown(schema.table(name)))
        described = _described(view)
        mark = hashlib.sha256(f"{described}{text}".encode()).hexdigest()[:16]
        name = schema.table(view.name)
        try:
            there = session.catalog.tableExists(name)
            if there:
                properties = session.sql(f"SHOW TBLPROPERTIES {name}").collect()
                marks = [row.value for row in properties if row.key == MARK]
                if not marks:
                    tell(
                        f"{schema}.{view.name} is not lakebroker's, it stays as it is; rename it, and `lakebroker init` makes "
                        "the view"
                    )
                if marks in ([], [mark]):
                    continue
            session.sql(
                f"CREATE {'OR REPLACE ' if there else ''}VIEW {name} {described} "
                f"TBLPROPERTIES ({sql_text(MARK)} = {sql_text(mark)}) AS {text}"
            )
        except spark_errors() as error:
            tell(
                f"{schema} has no views of the lake: {said(error)}; `lakebroker sql --lake {schema}` has them"
            )
            return


def _described(view: View) -> str:
    """Its columns and what they mean."""
    columns = ", ".join(f"`{column.name}` COMMENT {sql_text(column.comment)}" for column in view.columns)
    return f"({columns}) COMMENT {sql_text(view.comment)}"
