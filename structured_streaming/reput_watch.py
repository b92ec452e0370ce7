"""Who is told how the reput fares, besides of its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from structured_streaming.absence import names
from structured_streaming.errors import CatalogAwayError, StoreAwayError, UnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER, STORE, CATALOG = "broker", "store", "catalog"
"""What may be away."""
_KINDS = {BROKER: UnreachableError, STORE: StoreAwayError, CATALOG: CatalogAwayError}


class Behind(NamedTuple):
    """Of a typed table: its topic, empty where it does not say; whether it lacks messages that the lake has, or may."""

    topic: str
    lacks: bool


class Watch:
    """Nobody. Calls come from several threads, must not raise, and hold up the job while they last."""

    def attached(self, session: SparkSession) -> Callable[[], None]:
        """A session that queries are about to run in; returns what ends the watching of it."""
        return _nothing

    def away(self, what: str) -> None:
        """Something was not there when it was needed: `BROKER`, `STORE` or `CATALOG`."""

    def query_failed(self) -> None:
        """A query ended, which starts again or ends the job."""

    def typed(self, behind: Mapping[str, Behind]) -> None:
        """Typed tables by name, at a query's start and at each look at them."""

    def spark_ended(self) -> None:
        """Spark's JVM ended or did not start; it starts again."""


NOBODY = Watch()


def tell_failure(watch: Watch, problem: str) -> None:
    """Of a query that failed with what Spark reports."""
    for what, kind in _KINDS.items():
        if names(problem, kind):
            watch.away(what)
    watch.query_failed()


def _nothing() -> None:
    """Nobody watched."""
