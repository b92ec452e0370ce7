"""What operators decide about a lake: rules of retention, brokers that are retired. Kept in the lake (`upkeep`), so that every
maintenance goes by the same, whoever starts it, and a copy has them.

| decided | then |
|---|---|
| rules of retention | the next maintenance removes what is older; rules that were there before count no more |
| a broker is retired | views and unions leave it out; its rows stay in the tables, and retention takes them as any others |
| it is retired no more | it is shown again |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError

from structured_streaming.catalog.lake_views import make_views
from structured_streaming.catalog.names import CatalogSchema, catalog_schema
from structured_streaming.catalog.upkeep import add_to_catalogs_upkeep, read_catalogs_upkeep
from structured_streaming.commit.ends import Ends, ends_in_rows
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.retention_rules import Bounds, Rules, parsed
from structured_streaming.tables import REPUT_PROGRESS
from structured_streaming.upkeep import RETENTION, RETIRED, UNRETIRED, Upkeep, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 10
_IN_SQL = re.compile(r"[^'\\\x00-\x1f\x7f]+")
_UNFIT = "quotes, backslashes and control characters"


class KnownBroker(NamedTuple):
    """A broker that a lake has rows of: its logs, since when it is retired."""

    name: str
    logs: int
    retired: datetime | None


class _Place(Protocol):
    """A lake. Calls raise LakeError."""

    def read(self) -> Upkeep:
        """As it is now."""

    def add(self, rows: pa.Table) -> None:
        """Durable when it returns."""

    def ends(self) -> Ends:
        """Of every log."""

    def show(self) -> None:
        """Has views that are kept somewhere leave out who is retired now."""


class _Folder:
    """A lake in a folder."""

    def __init__(self, location: str) -> None:
        self._lake = open_lake(location)

    def read(self) -> Upkeep:
        """See `_Place.read`."""
        return read_upkeep(self._lake)

    def add(self, rows: pa.Table) -> None:
        """See `_Place.add`."""
        try:
            add_to_upkeep(self._lake, rows)
        except OSError as error:
            raise LakeError(f"lake {self._lake}: {error}") from error

    def ends(self) -> Ends:
        """See `_Place.ends`."""
        folder = self._lake.child(REPUT_PROGRESS.name)
        try:
            return ends_in_rows(folder)
        except (DeltaError, OSError) as error:
            raise LakeError(f"table {folder}: {error}") from error

    def show(self) -> None:
        """See `_Place.show`. Who reads makes the views."""


class _Catalog:
    """A lake in a catalog."""

    def __init__(self, session: SparkSession, schema: CatalogSchema, tell: Callable[[str], None]) -> None:
        from structured_streaming.catalog.lake_tables import check_tables

        check_tables(session, schema)
        self._session, self._schema, self._tell = session, schema, tell

    def read(self) -> Upkeep:
        """See `_Place.read`."""
        return read_catalogs_upkeep(self._session, self._schema)

    def add(self, rows: pa.Table) -> None:
        """See `_Place.add`."""
        add_to_catalogs_upkeep(self._session, self._schema, rows)

    def ends(self) -> Ends:
        """See `_Place.ends`."""
        progress = self._session.table(self._schema.table(REPUT_PROGRESS.name))
        rows = progress.groupBy("broker", "log_id").agg({"end_offset": "max"}).collect()
        return {(str(row[0]), str(row[1])): int(row[2]) for row in rows}

    def show(self) -> None:
        """See `_Place.show`."""
        make_views(self._session, self._schema, self.read().retired, self._tell)


class Decisions:
    """Of the lake at `location`; `session` makes one for a catalog. `tell` gets lines about its views. Calls raise LakeError."""

    def __init__(
        self,
        location: str,
        session: Callable[[], SparkSession],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        schema = catalog_schema(location)
        self._location = location
        self._place: _Place = _Folder(location) if schema is None else _Catalog(session(), schema, tell)

    def retention(self) -> tuple[Rules, Bounds]:
        """The rules in force, and what they would remove now."""
        rules = self._place.read().rules
        return rules, rules.bounds(datetime.now(UTC))

    def set_retention(self, text: str) -> bool:
        """Other rules from now on; False where they are in force already. Raises RulesError."""
        rules = parsed(text)
        if self._place.read().rules == rules:
            return False
        self._place.add(row(RETENTION, rules=rules))
        return True

    def brokers(self) -> list[KnownBroker]:
        """Those that the lake has rows of, or that were retired, by name."""
        retired = self._place.read().retired
        logs: dict[str, int] = dict.fromkeys(retired, 0)
        for broker, _ in self._place.ends():
            logs[broker] = logs.get(broker, 0) + 1
        return [KnownBroker(name, count, retired.get(name)) for name, count in sorted(logs.items())]

    def retire(self, broker: str) -> bool:
        """Has views and unions leave a broker out; False where they do. Raises LakeError for one that the lake has nothing of."""
        retired = self._known(broker).retired
        if not _IN_SQL.fullmatch(broker):
            raise LakeError(
                f"broker {broker[:255]!r} cannot be retired: views name it in SQL, where {_UNFIT} are read otherwise"
            )
        if retired is not None:
            return False
        self._place.add(row(RETIRED, broker=broker))
        self._place.show()
        return True

    def unretire(self, broker: str) -> bool:
        """Has them show it again; False where they do. Raises LakeError for one that the lake has nothing of, and that is not retired."""
        if broker not in self._place.read().retired:
            self._known(broker)
            return False
        self._place.add(row(UNRETIRED, broker=broker))
        self._place.show()
        return True

    def _known(self, broker: str) -> KnownBroker:
        known = {each.name: each for each in self.brokers()}
        if broker not in known:
            names = ", ".join(list(known)[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
            raise LakeError(
                f"the lake {self._location} has nothing of a broker {broker[:255]!r}; it has {names or 'no broker at all'}"
            )
        return known[broker]
