"""What the rows of `upkeep` add up to: rules of retention, what is gone for them, brokers that are retired, from which versions on
erased messages are out of tables. Imports no Spark.

The rows are a history that is only added to. Of one time and kind they count in the order of their names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from structured_streaming.retention_rules import Bounds, Rules, parsed
from structured_streaming.tables import UPKEEP

RETENTION, EXPIRING, EXPIRED, RETIRED, UNRETIRED = "retention", "expiring", "expired", "retired", "unretired"
ERASED, INDEXED = "erased", "indexed"
"""Kinds."""
_NO_RULES = Rules((), "")


@dataclass(frozen=True, slots=True)
class Upkeep:
    """`promised`: of all rules that ever held, the latest bounds that were stated; what is older may be gone. `expired`: of the last round that ended, and when;
    `expired_batches`: the version of `reput_progress` whose batches it looked at, and under `consume_queue` one of them that left it
    out, where one did; `indexed_batches`: the same of `message_index`, as it was looked at last by who searches there, and when;
    `retired`: brokers, since when. `erased`: versions of tables from which on erased messages are out of them; `settled`: up to where
    in logs, by `broker/log_id`: nothing is left of a record below its log's that a row of `erasures` names which is of a record below
    its own log's, and nothing will come."""

    rules: Rules = _NO_RULES
    promised: tuple[Bounds, ...] = ()
    expired: Bounds | None = None
    expired_at: datetime | None = None
    expired_batches: Mapping[str, int] = field(default_factory=dict)
    indexed_batches: Mapping[str, int] = field(default_factory=dict)
    indexed_at: datetime | None = None
    retired: Mapping[str, datetime] = field(default_factory=dict)
    erased: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, int] = field(default_factory=dict)

    def promises(self, bounds: Bounds) -> bool:
        """Whether these bounds, or later ones of the same rules, were stated already."""
        stated = next((each.by_pattern for each in self.promised if each.rules == bounds.rules), None)
        return stated is not None and all(
            (known := stated.get(pattern)) is not None and bound <= known
            for pattern, bound in bounds.stated()
        )


def upkeep_of(rows: Iterable[Mapping[str, Any]]) -> Upkeep:
    """Of all rows, in any order. Raises RulesError for rules that this version does not know."""
    rules, rules_of, promised = _NO_RULES, functools.cache(parsed), dict[str, Bounds]()
    expired: Bounds | None = None
    expired_at: datetime | None = None
    expired_batches: dict[str, int] = {}
    indexed_batches: dict[str, int] = {}
    indexed_at: datetime | None = None
    retired: dict[str, datetime] = {}
    erased: dict[str, int] = {}
    settled: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row["change_timestamp"], row["kind"], row["broker"] or "")):
        kind, at = row["kind"], row["change_timestamp"]
        if kind == RETENTION:
            rules = rules_of(row["rules"] or "")
        elif kind in (EXPIRING, EXPIRED):
            bounds = Bounds(rules_of(row["rules"] or ""), dict(row["bounds"] or ()))
            before = promised.get(bounds.rules.text)
            promised[bounds.rules.text] = bounds if before is None else before.together(bounds)
            if kind == EXPIRED:
                expired, expired_at = bounds, at
                expired_batches = dict(row["table_versions"] or ())
        elif kind == INDEXED:
            indexed_batches, indexed_at = dict(row["table_versions"] or ()), at
        elif kind == RETIRED:
            retired.setdefault(row["broker"], at)
        elif kind == UNRETIRED:
            retired.pop(row["broker"], None)
        elif kind == ERASED:
            for name, version in dict(row["table_versions"] or ()).items():
                its = settled if "/" in name else erased  # no table's name has one
                its[name] = max(version, its.get(name, -1))
    return Upkeep(
        rules,
        tuple(promised.values()),
        expired,
        expired_at,
        expired_batches,
        indexed_batches,
        indexed_at,
        retired,
        erased,
        settled,
    )


def row(
    kind: str,
    *,
    broker: str | None = None,
    rules: Rules | None = None,
    bounds: Bounds | None = None,
    versions: Mapping[str, int] | None = None,
    at: datetime | None = None,
) -> pa.Table:
    """One of now, or of `at`."""
    rules = bounds.rules if bounds is not None else rules
    return pa.Table.from_pylist(
        [
            {
                "change_timestamp": at or datetime.now(UTC),
                "kind": kind,
                "broker": broker,
                "rules": None if rules is None else rules.text,
                "bounds": None if bounds is None else bounds.stated(),
                "table_versions": None if versions is None else list(versions.items()),
            }
        ],
        UPKEEP.schema,
    )
