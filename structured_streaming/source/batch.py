"""A batch query of the logs: which ranges it reads, and what of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from store.log.erased import NOTHING
from store.log_source import LogState
from structured_streaming.errors import SourceError
from structured_streaming.source.batch_options import BatchOptions
from structured_streaming.source.log_range import LogRange
from structured_streaming.source.log_watch import START_S, LogWatch
from structured_streaming.source.logs import by_broker, open_log
from structured_streaming.source.membership import Membership
from structured_streaming.source.notes import Notes
from structured_streaming.source.partition import LogPartition
from structured_streaming.source.pushed import conditions
from structured_streaming.source.reading import Reading, rows

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class LogBatchReader(Reading, DataSourceReader):
    """What the options ask for, of the logs as they are at the time of the query."""

    options: BatchOptions

    def __init__(self, options: BatchOptions) -> None:
        super().__init__(options)
        self.selection = options.selection

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"selection": self.selection}

    def partitions(self) -> Sequence[LogPartition]:
        note, access = Notes(self.options.notes), self.options.access
        watch = LogWatch(self.options.targets, access, note, START_S)
        Membership(self.options.name_servers, watch, note, fixed=True).update()
        states = watch.states()
        if missing := watch.missing():
            raise SourceError("; ".join(missing.values()))
        logs = by_broker(states)
        self._check_named(logs)
        found = []
        for target, state in logs.values():
            start, end = self._start(state), self._end(state)
            if start < end and self._holds("broker", state.broker) and self._holds("log_id", state.log_id):
                log = open_log(target, access)
                cuts = log.split(state.log_id, start, end, self.options.partition_bytes)
                erased = log.erased(state.log_id) if state.erased_version else NOTHING
                log.close()
                found += [
                    part for part in self.parts(target, state, cuts, erased=erased) if self._within(part)
                ]
        return found

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of a partition that may be wanted."""
        if not isinstance(partition, LogRange):  # Spark makes one of its own where there is none
            return
        with self.chunks(partition) as chunks:
            yield from rows(partition, chunks, self.selection)

    def _check_named(self, logs: dict[str, Any]) -> None:
        """Raises SourceError for offsets of a broker that is not read."""
        starting = self.options.starting if isinstance(self.options.starting, dict) else {}
        for broker in (*starting, *(self.options.ending or {})):
            if broker not in logs:
                raise SourceError(
                    f"offsets are given for broker {broker!r}, the logs are those of {', '.join(sorted(logs))}"
                )

    def _start(self, state: LogState) -> int:
        """Raises SourceError for a start that is not in the log."""
        if wanted := self.options.log_ids.get(state.broker):
            _check_log(state, wanted)
        if not isinstance(self.options.starting, dict):
            return state.start
        start = self.options.starting.get(state.broker, state.start)
        if not state.start <= start <= state.end:
            raise SourceError(
                f"offset {start} of broker {state.broker} is not in its log, which has {state.start} to {state.end}; "
                "what was before it has expired: read it from the lake"
            )
        return start

    def _end(self, state: LogState) -> int:
        return min(state.end, (self.options.ending or {}).get(state.broker, state.end))

    def _holds(self, column: str, value: str) -> bool:
        return all(each.holds(value) for each in self.selection.conditions if each.column == column)

    def _within(self, part: LogRange) -> bool:
        """Whether the offsets that are wanted may be in a range."""
        for condition in self.selection.conditions:
            if condition.column != "physical_offset":
                continue
            if condition.relation in ("=", "in"):
                given = condition.value if condition.relation == "in" else (condition.value,)
                if not any(part.start <= offset < part.end for offset in given):
                    return False
            elif not (condition.holds(part.start) or condition.holds(part.end - 1)):
                return False
        return True


class FilteringBatchReader(LogBatchReader):
    """The reader where Spark offers its filters: from 4.1 on, with `spark.sql.python.filterPushdown.enabled`.

    A class of its own, for Spark refuses a reader that would take filters where that is not set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        pushed = (*self.selection.conditions, *conditions(filters))
        self.selection = dataclasses.replace(self.selection, conditions=pushed)
        return filters


def _check_log(state: LogState, wanted: str) -> None:
    if state.log_id != wanted:
        raise SourceError(
            f"broker {state.broker} has log {state.log_id}, the offsets given are of log {wanted}; ask again"
        )
