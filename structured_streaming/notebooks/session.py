"""The Spark session of a notebook, and a lake in it.

| there is | then |
|---|---|
| a session (Databricks' `spark`, a notebook's own, spark-submit's) | a new session of the same Spark with the settings of that one: its views, its settings and its life stay as they are |
| one over Spark Connect, which makes no new ones | that one; tables and views of the lake are temporary views in it |
| none | one on this machine, which `NotebookLake.close` stops |
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from structured_streaming import sql
from structured_streaming.catalog.lake_tables import sql_text
from structured_streaming.errors import LakeError
from structured_streaming.notebooks import parameters
from structured_streaming.notebooks.errors import NotebookError
from structured_streaming.notebooks.sizes import TableSize, sizes
from structured_streaming.provided_session import beside, is_hosted, is_remote_session
from structured_streaming.read_only import Statement
from structured_streaming.union.tables import SessionTables

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

_POINTS = 720
"""Of a plot over time, at most some more."""
_RAW_LITERALS = "spark.sql.parser.escapedStringLiterals"
"""With it, a backslash in a literal escapes nothing."""
_made: list[SparkSession] = []
"""The session that was made here, if it lives: a first cell that runs again finds it, and it is still ours."""
Value = str | int | float | datetime.datetime | list[str] | None


class NotebookLake:
    """A lake for a notebook: rows of SQL over its tables and views, and the notebook's parameters."""

    def __init__(
        self,
        session: SparkSession,
        location: str,
        values: Mapping[str, str],
        tables: SessionTables,
        *,
        own: bool,
    ) -> None:
        self._session = session
        self._location = location
        self._values = values
        self._tables = tables
        self._own = own

    @property
    def spark(self) -> SparkSession:
        """With the lake's tables and views under their names; times in UTC. Raises NotebookError and pyspark's errors."""
        try:
            self._tables.bind_all()
        except LakeError as error:
            raise NotebookError(str(error)) from None
        return self._session

    def text(self, name: str) -> str:
        """A parameter; "" where none was given."""
        return self._values[name]

    def number(self, name: str) -> float:
        """A parameter that is a number. Raises NotebookError."""
        return parameters.number(self._values, name)

    def rows(self, statement: str, **values: Value) -> pd.DataFrame:
        """The rows of a query, on the driver; `:name` in it stands for a value. Times are UTC; integers may be NA."""
        return _frame(self._arrow(statement, values))

    def window(self) -> tuple[datetime.datetime | None, datetime.datetime | None, int]:
        """The last `hours` up to the lake's newest message: from, to, and the minutes that a point of a plot stands for.

        None and None for a lake without messages. Raises NotebookError.
        """
        hours = self.number("hours")
        newest = self._arrow("SELECT max(store_timestamp) AS newest FROM consume_queue", {})["newest"][
            0
        ].as_py()
        minutes = max(1, -(-int(hours * 60) // _POINTS))
        if newest is None:
            return None, None, minutes
        since = newest - datetime.timedelta(hours=hours)
        step = minutes * 60
        begin = datetime.datetime.fromtimestamp(since.timestamp() // step * step, datetime.UTC)
        return begin, newest, minutes

    def sizes(self) -> pd.DataFrame:
        """`table`, and `files` and `bytes` of its newest version, as its Delta log says; typed tables too. Raises NotebookError."""
        import pandas as pd

        try:
            return pd.DataFrame(sizes(self._session, self._location), columns=list(TableSize._fields))
        except LakeError as error:
            raise NotebookError(str(error)) from None

    def gateways(self) -> dict[str, str]:
        """`host:port` by broker name, of the parameter `brokers`; none without it. Raises NotebookError for one that does not answer."""
        try:
            return self._tables.addresses()
        except LakeError as error:
            raise NotebookError(f"{error}; or leave the parameter brokers empty") from None

    def close(self) -> None:
        """Stops Spark where it was started for the notebook; a session that was there before lives on."""
        self._tables.close()
        if self._own:
            _made.clear()
            self._session.stop()

    def _arrow(self, statement: str, values: Mapping[str, Value]) -> Any:
        """Raises NotebookError for a log that does not answer."""
        text = filled(statement, values)
        try:
            self._tables.bind(Statement(self._session, text))
        except LakeError as error:
            other = "; or leave the parameter brokers empty" if self._tables.with_logs else ""
            raise NotebookError(f"{error}{other}") from None
        return self._session.sql(text).toArrow()


def open_lake(namespace: Mapping[str, Any], *names: str) -> NotebookLake:
    """The lake that the parameters `lake` and `brokers` say, with those of these `names`; `namespace` is the notebook's
    `globals()`, in which a platform puts `spark` and `dbutils`. Raises NotebookError."""
    values = parameters.read(("lake", "brokers", *names), namespace.get("dbutils"))
    location = parameters.lake_location(values["lake"])
    source = _source(values["brokers"])
    there = session_there(namespace)
    try:
        if there is None:
            return _in_own(location, source, values)
        session = _beside(there)
        if source and session is there:
            raise NotebookError(
                "brokers cannot be read over Spark Connect: leave the parameter brokers empty, or run where the driver is"
            )
        tables = sql.tables_in(session, location, source, print)
    except LakeError as error:
        raise NotebookError(str(error)) from None
    print(f"{location}, in the Spark session that already exists")
    return NotebookLake(session, location, values, tables, own=any(map(_alive, _made)))


def session_there(namespace: Mapping[str, Any]) -> SparkSession | None:
    """The notebook's `spark`, else the active session of this process; None where none lives."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given: Any = namespace.get("spark")
    if hasattr(given, "sql") and hasattr(given, "readStream") and _alive(given):
        return given  # type: ignore[no-any-return]
    if SparkContext._active_spark_context is None and not is_hosted():
        remote = SparkSession.getActiveSession() if "SPARK_REMOTE" in os.environ else None
        return remote
    return SparkSession.builder.getOrCreate()


def _in_own(location: str, source: Mapping[str, str], values: Mapping[str, str]) -> NotebookLake:
    """Raises LakeError."""
    session: SparkSession
    tables: SessionTables
    if source:
        session, tables = sql.union_session(location, source, tell=print)
    else:
        session, tables = sql.lake_session(location, tell=print)
    _made[:] = [session]
    return NotebookLake(session, location, values, tables, own=True)


def _beside(session: SparkSession) -> SparkSession:
    """A session of the same Spark with the same settings, but times in UTC; the same where there can be no other."""
    if not is_remote_session(session):
        own = beside(session)
    else:
        own = session
        own.conf.set("spark.sql.session.timeZone", "UTC")
    if own.conf.get(_RAW_LITERALS, "false") == "true":
        own.conf.set(_RAW_LITERALS, "false")
    return own


def _alive(session: Any) -> bool:
    """Whether a session was not stopped, as far as it says so."""
    stopped = getattr(session, "is_stopped", None)  # of Spark Connect
    if isinstance(stopped, bool):
        return not stopped
    context = getattr(session, "_sc", None)
    return context is None or context._jsc is not None


def _source(brokers: str) -> dict[str, str]:
    """Options of the data source for the logs; none without brokers."""
    if not brokers:
        return {}
    named = {"tokenFile": "LAKEBROKER_TOKEN_FILE", "tlsCa": "LAKEBROKER_TLS_CA"}
    given = {option: os.environ.get(variable, "") for option, variable in named.items()}
    return {"brokers": brokers} | {option: value for option, value in given.items() if value}


def filled(statement: str, values: Mapping[str, Value]) -> str:
    """The statement with literals for `:name`. Text, not Spark's own parameters: what it reads of the logs is planned before."""
    if not values:
        return statement
    names = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
    return re.sub(rf"(?<![:\w]):({names})\b", lambda found: _literal(values[found[1]]), statement)


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S.%f}Z'"
    if isinstance(value, list):
        return f"array({', '.join(map(sql_text, value))})"
    return sql_text(value) if isinstance(value, str) else repr(value)


def _frame(rows: Any) -> pd.DataFrame:
    """pandas' nullable integers: a column of NA and 3 stays one of whole numbers."""
    import pandas as pd
    import pyarrow as pa

    kinds = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}
    frame: pd.DataFrame = rows.to_pandas(types_mapper=kinds.get)
    return frame
