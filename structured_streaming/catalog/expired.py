"""Retention in a catalog: what `maintenance/retention.py` says, by Spark's own DELETE and MERGE. The reput's appends do not conflict
with these; another maintenance's commits do, and then it is tried again.

Which rows are old is looked for once a day, or when the bounds have moved: Delta's statistics by store time rule files out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from structured_streaming.catalog.lake_tables import sql_text
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_errors import is_conflict, said, spark_errors
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.catalog.upkeep import add_to_catalogs_upkeep, read_catalogs_upkeep
from structured_streaming.held_topics import HeldTopics
from structured_streaming.retention_rules import Bounds
from structured_streaming.tables import CONSUME_QUEUE, MESSAGE_INDEX, MESSAGES, REMOVAL_ORDER, REPUT_PROGRESS
from structured_streaming.typed.declaration import NAME
from structured_streaming.upkeep import EXPIRED, EXPIRING, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 5
_AT_LEAST = timedelta(days=1)
_QUEUE = "broker, log_id, topic, queue_id"
_SIZED = (CONSUME_QUEUE.name, MESSAGES.name)
_OF_TYPED = ("broker", "log_id", "physical_offset", "topic", "store_timestamp")
_TABLE_NAME = "concat('typed_', left(regexp_replace(lower(topic), '[^a-z0-9_]', '_'), 100))"
"""As `typed.declaration.table_name`."""
Counted = dict[str, tuple[int, int, int]]
"""Files, rows and bytes of records, by topic."""


class Turn(NamedTuple):
    """Of a table: what went, or would; what kept it from going."""

    table: str
    counted: Counted
    problems: Sequence[str] = ()


def in_order(session: SparkSession, schema: CatalogSchema) -> list[str]:
    """The tables that messages go from. Raises LakeError, Spark's errors."""
    typed = [name for name in CatalogTyped(session, schema).names() if _may_be_typed(session, schema, name)]
    return [*typed, *(table.name for table in REMOVAL_ORDER)]


def _may_be_typed(session: SparkSession, schema: CatalogSchema, name: str) -> bool:
    try:
        return {*_OF_TYPED} <= {*session.table(schema.table(name)).columns}
    except spark_errors():
        return True  # its turn fails, and says why


def expire_in_catalog(
    session: SparkSession,
    schema: CatalogSchema,
    tables: Sequence[str],
    now: datetime,
    *,
    dry: bool = False,
) -> Iterator[Turn]:
    """What was removed of each of the `tables` (`in_order`), or would be; a table's is done when it is yielded. What fails of a typed
    one holds its topic. Raises LakeError, Spark's errors."""
    upkeep = read_catalogs_upkeep(session, schema)
    bounds = upkeep.rules.bounds(now)
    if bounds.newest is None:
        return
    last = upkeep.expired
    moved = last is None or (last.rules, last.stated()) != (bounds.rules, bounds.stated())
    if not moved and upkeep.expired_at is not None and now - upkeep.expired_at < _AT_LEAST:
        return
    if not (dry or upkeep.promises(bounds)):
        add_to_catalogs_upkeep(session, schema, row(EXPIRING, bounds=bounds, at=now))
    keeps_ends = _left_out(session, schema)
    held, typed = HeldTopics(), CatalogTyped(session, schema)
    for name in tables:
        ends = name == CONSUME_QUEUE.name or (keeps_ends and name in (MESSAGE_INDEX.name, MESSAGES.name))
        going = _going(schema.table(name), name, bounds, ends, held)
        try:
            counted = _counted(session, going, sized=name in _SIZED)
            if counted and not dry:
                _without_conflict(lambda name=name, going=going: _remove(session, schema.table(name), going))  # type: ignore[misc]
        except spark_errors() as error:
            if not NAME.fullmatch(name):
                raise
            place = f"{schema}.{name}"
            problem = f"retention of {place}: {said(error)}"
            yield Turn(name, {}, (problem, held.hold(place, name, typed.topic_of(name))))
        else:
            yield Turn(name, counted)
    if not dry and not held:
        add_to_catalogs_upkeep(session, schema, row(EXPIRED, bounds=bounds, at=now))


def _going(table: str, name: str, bounds: Bounds, keeps_ends: bool, held: HeldTopics) -> str:
    """A query of the rows that go, with the files that have them."""
    assert bounds.newest is not None
    bound = _bound(bounds)
    old = f"store_timestamp < {_micros(bounds.newest)} AND store_timestamp < {bound}"
    old += "".join(f" AND topic <> {sql_text(topic)}" for topic in sorted(held.topics))
    old += "".join(f" AND {_TABLE_NAME} <> {sql_text(table)}" for table in sorted(held.tables))
    if name == MESSAGES.name:
        old += f" AND NOT coalesce(deliver_timestamp >= {bound}, false)"
    rows = f"SELECT *, _metadata.file_path AS file FROM {table} WHERE {old}"
    if not keeps_ends:
        return rows
    ends = f"SELECT {_QUEUE}, max(queue_offset) AS last FROM {table} GROUP BY {_QUEUE}"
    return f"SELECT * FROM ({rows}) JOIN ({ends}) USING ({_QUEUE}) WHERE queue_offset < last"


def _counted(session: SparkSession, going: str, *, sized: bool) -> Counted:
    size = "sum(size)" if sized else "0"
    rows = session.sql(
        f"SELECT topic, count(DISTINCT file), count(*), {size} FROM ({going}) GROUP BY topic"
    ).collect()
    return {str(each[0]): (int(each[1]), int(each[2]), int(each[3] or 0)) for each in rows}


def _remove(session: SparkSession, table: str, going: str) -> None:
    key = " AND ".join(f"t.{name} = s.{name}" for name in ("broker", "log_id", "physical_offset"))
    places = f"SELECT DISTINCT broker, log_id, physical_offset FROM ({going})"
    session.sql(f"MERGE INTO {table} t USING ({places}) s ON {key} WHEN MATCHED THEN DELETE").collect()


def _without_conflict(do: Callable[[], None]) -> None:
    for tried in range(_TRIES):
        try:
            do()
        except spark_errors() as error:
            if tried == _TRIES - 1 or not is_conflict(error):
                raise
        else:
            return


def _left_out(session: SparkSession, schema: CatalogSchema) -> bool:
    """Whether `consume_queue` was left out of a batch."""
    without = f"NOT map_contains_key(table_versions, {sql_text(CONSUME_QUEUE.name)})"
    found: Any = session.sql(
        f"SELECT 1 FROM {schema.table(REPUT_PROGRESS.name)} WHERE table_versions IS NOT NULL AND {without} LIMIT 1"
    ).collect()
    return bool(found)


def _bound(bounds: Bounds) -> str:
    """The bound of a row's topic, in SQL."""
    cases = []
    for rule in bounds.rules.rules:
        bound = bounds.by_pattern.get(rule.pattern)
        whole = rf"\A{rule.expression}\z"
        fits = f"topic RLIKE {sql_text(whole)}"
        cases.append(f"WHEN {fits} THEN {'NULL' if bound is None else _micros(bound)}")
    return f"(CASE {' '.join(cases)} END)"


def _micros(time: datetime) -> str:
    return f"timestamp_micros({int(time.timestamp()) * 1_000_000}L)"
