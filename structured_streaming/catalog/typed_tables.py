"""Typed tables of a lake in a catalog: found, made, altered and filled through Spark.

Columns are added first, then the declaration that needs them is put into the table's properties: in between, the table has columns
that nobody fills yet. A fill removes what an earlier one, that was killed, left of the same batches, adds what `messages` has of
them, and then notes up to where it filled (`FILLED`).
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from structured_streaming.catalog.lake_tables import TABLE_PROPERTIES, detail, sql_text, table_names
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import is_away, said, spark_errors
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.typed_declared import left_out
from structured_streaming.commit.typed_fill import FILL_COLUMNS, Batch, Before, Lacking, lacking_of
from structured_streaming.commit.typed_tables import Look, check_new
from structured_streaming.errors import CatalogAwayError, LakeError
from structured_streaming.provided_session import apart
from structured_streaming.tables import MESSAGES, REPUT_PROGRESS, SCHEMA_PROPERTY, SCHEMA_VERSION
from structured_streaming.typed.declaration import (
    ACTIVE,
    DECLARED,
    FILLING,
    NAME,
    Declaration,
    UnknownSchemaError,
    declaration_of,
    written,
)
from structured_streaming.typed.registry_frame import FRAME_BYTES, NO_FRAME
from structured_streaming.typed.topic import TypedTopic, typed_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILLED = "lakebroker.typed_filled"
"""Property of a typed table: JSON, up to where it was filled by `broker/log_id`."""
LOOK_S = 30.0
"""Between looks at the catalog."""
_MOST_IDS = 1000
_ROWS = 256
_ALTERED = 10
"""Times that a declaration is altered anew since somebody else did meanwhile."""
_OWN = {SCHEMA_PROPERTY: str(SCHEMA_VERSION), **TABLE_PROPERTIES}


class CatalogTyped:
    """See `TypedTables`. Those of a schema; the session that is given is left as it is."""

    def __init__(self, session: SparkSession, schema: CatalogSchema) -> None:
        self._session = apart(session)
        # a schema's text stands in statements: with its backslashes, and ${…} is no variable of Spark's
        self._session.conf.set("spark.sql.parser.escapedStringLiterals", "false")
        self._session.conf.set("spark.sql.variable.substitute", "false")
        # bodies may be large
        self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS))
        self._schema = schema
        self._last = Look([], [], [])
        self._look_at = 0.0

    def declarations(self) -> list[Declaration]:
        """See `TypedTables.declarations`."""
        return [declared for name in self.names() if (declared := self._declared(name)) is not None]

    def readable(self) -> list[Declaration]:
        """See `TypedTables.readable`."""
        return self._tolerant(lambda problem: None)

    def look(self, tell: Callable[[str], None]) -> Look:
        """See `TypedTables.look`."""
        unusable = list[str]()
        readable = self._tolerant(tell, unusable.append)
        self._last = Look(
            [declared for declared in readable if declared.state == ACTIVE],
            [declared for declared in readable if declared.state == FILLING],
            unusable,
        )
        return self._last

    def look_again(self) -> Look:
        """See `TypedTables.look_again`. A catalog is looked at less often than a folder."""
        if time.monotonic() < self._look_at:
            return self._last
        self._look_at = time.monotonic() + LOOK_S
        return self.look(lambda problem: None)

    def _tolerant(
        self, tell: Callable[[str], None], on_unusable: Callable[[str], None] = lambda name: None
    ) -> list[Declaration]:
        found = []
        for name in self.names():
            problems = list[str]()
            with left_out(name, problems.append):
                if (declared := self._declared(name)) is not None:
                    found.append(declared)
            for problem in problems:
                on_unusable(name)
                tell(problem)
        return found

    def _declared(self, name: str) -> Declaration | None:
        return declaration_of(f"{self._schema}.{name}", self._properties(name))

    def before(self, table: str) -> Before:
        """See `TypedTables.before`."""
        named = f"map_contains_key(table_versions, {sql_text(table)})"
        with _said(self._schema):
            progress = self._session.table(self._schema.table(REPUT_PROGRESS.name))
            (row,) = progress.selectExpr("max(batch)", f"coalesce(bool_or({named}), false)").collect()
        return Before(-1 if row[0] is None else int(row[0]), bool(row[1]))

    def declare(self, declared: Declaration) -> None:
        """See `TypedTables.declare`."""
        check_new(self.declarations(), declared)
        if declared.table in table_names(self._session, self._schema):
            raise LakeError(
                f"{self._schema}.{declared.table} is there, and no typed table; give another name (--table)"
            )
        table = TypedTopic(declared).table
        with _said(self._schema):
            writer = self._nothing(table.schema).writeTo(self._schema.table(table.name)).using("delta")
            for name, value in {**_OWN, DECLARED: written(declared)}.items():
                writer = writer.tableProperty(name, value)
            writer.create()

    def alter(self, table: str, change: Callable[[Declaration], Declaration]) -> Declaration:
        """See `TypedTables.alter`."""
        for _ in range(_ALTERED):
            before = self._there(table)
            after = change(before)
            if after == before:
                return after
            with _said(self._schema):
                frame = self._nothing(TypedTopic(after).table.schema)
                frame.writeTo(self._schema.table(table)).option("mergeSchema", "true").append()
                if self._there(table) != before:
                    continue  # somebody altered it meanwhile
                self._set(table, DECLARED, written(after))
            if self._there(table) == after:
                return after
        raise LakeError(
            f"{self._schema}.{table} is altered by others again and again; end them, and do it again"
        )

    def _there(self, table: str) -> Declaration:
        found = self._declared(table)
        if found is None:
            raise LakeError(f"{self._schema}.{table} is no typed table")
        return found

    def ends(self) -> Ends:
        """See `TypedTables.ends`."""
        with _said(self._schema):
            progress = self._session.table(self._schema.table(REPUT_PROGRESS.name))
            rows = progress.groupBy("broker", "log_id").agg({"end_offset": "max"}).collect()
        return {(str(row[0]), str(row[1])): int(row[2]) for row in rows}

    def lacking(self, declared: Declaration) -> Lacking:
        """See `TypedTables.lacking`."""
        filled = json.loads(self._properties(declared.table).get(FILLED, "{}"))
        starts = declared.starts
        ends = {f"{broker}/{log_id}": end for (broker, log_id), end in self.ends().items()}
        known = {name: max(starts.get(name, 0), int(filled.get(name, 0))) for name in ends}
        return lacking_of(known, ends, partial(self._batches, declared))

    def lacks_more(self, declared: Declaration, most: int) -> bool:
        """See `TypedTables.lacks_more`."""
        return self.lacking(declared).size > most

    def fill(
        self,
        declared: Declaration,
        tell: Callable[[int], None] = lambda rows: None,
        until: float = math.inf,
    ) -> int:
        """See `TypedTables.fill`."""
        found = self.lacking(declared)
        if not found.stretches:
            return 0
        within = " OR ".join(
            f"(broker = {sql_text(each.broker)} AND log_id = {sql_text(each.log_id)} AND physical_offset >= {each.start} "
            f"AND physical_offset < {each.end})"
            for each in found.stretches
        )
        with _said(self._schema):
            messages = self._session.table(self._schema.table(MESSAGES.name))
            wanted = messages.where(f"topic = {sql_text(declared.topic)} AND ({within})").select(
                *FILL_COLUMNS
            )
            if declared.registry:
                _check_ids(wanted, declared)
            self._session.sql(f"DELETE FROM {self._schema.table(declared.table)} WHERE {within}").collect()
            rows = self._typed(wanted, declared)
            rows.writeTo(self._schema.table(declared.table)).append()
            self._set(declared.table, FILLED, json.dumps(found.ends))
            count = self._session.table(self._schema.table(declared.table)).where(within).count()
        tell(count)
        return int(count)

    def _typed(self, messages: DataFrame, declared: Declaration) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = typed_topic(declared).table.schema

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            topic = typed_topic(declared)
            for batch in batches:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                body, encoding = columns.pop("body").cast(pa.binary()), columns.pop("body_encoding")
                for part in topic.rows(columns, body, encoding.cast(pa.string())):
                    yield from part.cast(schema).to_batches()

        return messages.mapInArrow(rows, from_arrow_schema(schema))

    def _nothing(self, schema: pa.Schema) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        fields = from_arrow_schema(schema)
        for field, of in zip(fields.fields, schema, strict=True):
            field.metadata = {"comment": (of.metadata or {}).get(b"comment", b"").decode()}
        return self._session.createDataFrame(self._session.sparkContext.emptyRDD(), fields)

    def _batches(self, declared: Declaration, behind: int) -> Iterator[Batch]:
        """See `typed_fill.lacking_of`."""
        with _said(self._schema):
            progress = self._session.table(self._schema.table(REPUT_PROGRESS.name))
            rows = progress.where(f"end_offset > {behind}").selectExpr(
                "broker",
                "log_id",
                "start_offset",
                "end_offset",
                "batch",
                "map_keys(table_versions) AS tables",
            )
            found = rows.collect()
        for row in sorted(found, key=lambda row: (row.broker, row.log_id, row.end_offset)):
            if row.batch <= declared.since or declared.table not in (row.tables or ()):
                yield Batch(row.broker, row.log_id, row.start_offset, row.end_offset)

    def names(self) -> list[str]:
        """The tables that have names of typed ones."""
        with _said(self._schema):
            return sorted(name for name in table_names(self._session, self._schema) if NAME.fullmatch(name))

    def topic_of(self, table: str) -> str | None:
        """The topic of a typed table, where it can be read."""
        try:
            declared = self._declared(table)
        except LakeError:
            return None
        return None if declared is None else declared.topic

    def _properties(self, table: str) -> dict[str, str]:
        with _said(self._schema):
            return dict(detail(self._session, self._schema.table(table))["properties"])

    def _set(self, table: str, name: str, value: str) -> None:
        self._session.sql(
            f"ALTER TABLE {self._schema.table(table)} SET TBLPROPERTIES ({sql_text(name)} = {sql_text(value)})"
        )


def _check_ids(messages: DataFrame, declared: Declaration) -> None:
    """Raises UnknownSchemaError for ids in bodies that a declaration neither has nor refuses."""
    heads = (
        messages.selectExpr(f"hex(substring(body, 1, {FRAME_BYTES})) AS head")
        .distinct()
        .limit(_MOST_IDS)
        .collect()
    )
    ids = {
        int(row.head[2:], 16)
        if row.head and len(row.head) == 2 * FRAME_BYTES and row.head[:2] == "00"
        else NO_FRAME
        for row in heads
    }
    unknown = ids - {NO_FRAME, *(schema.id for schema in declared.schemas), *dict(declared.refused)}
    if unknown and not declared.refuses_all:
        raise UnknownSchemaError(declared.table, sorted(unknown))


@contextlib.contextmanager
def _said(schema: CatalogSchema) -> Iterator[None]:
    """Spark's errors within are LakeErrors of the lake in a schema."""
    try:
        yield
    except spark_errors() as error:
        kind = CatalogAwayError if is_away(error) else LakeError
        raise kind(f"lake {schema}: {said(error)}") from error
