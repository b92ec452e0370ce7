"""Filters that Spark offers a batch query, as conditions on records. Spark applies all of them again, so that what is
not understood here costs bytes, never rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

from structured_streaming.rows.conditions import Condition, Relation
from structured_streaming.source.batch_options import micros

_RELATIONS: dict[str, Relation] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}
_TEXTS = ("broker", "log_id", "topic")
_NUMBERS = ("queue_id", "queue_offset", "physical_offset")


def conditions(filters: Iterable[Any]) -> Iterator[Condition]:
    """Of pyspark's `Filter`s those that records can be told by."""
    for each in filters:
        relation = _RELATIONS.get(type(each).__name__)
        if relation is None or len(each.attribute) != 1:
            continue
        column = each.attribute[0]
        values = each.value if relation == "in" else (each.value,)
        known = [_known(column, value) for value in values]
        if all(value is not None for value in known):
            yield Condition(column, relation, tuple(known) if relation == "in" else known[0])


def _known(column: str, value: Any) -> Any:
    """The value as `Condition` has it; None for what cannot be compared."""
    if column in _TEXTS and isinstance(value, str):
        return value
    if column in _NUMBERS and isinstance(value, int):
        return value
    if column == "store_timestamp" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return micros(value)
    return None
