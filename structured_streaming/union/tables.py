"""The lake's tables as temporary views that show one instant: of the lake (`AS OF`), or of the brokers (union).

A union view has the rows of its table below the lake's progress, and those of the log from there to its end. Each
statement has an instant of its own, and all tables in it the same: progress is read first, then the versions of the
tables, which hold all that is below it, then the logs are asked where they end.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from store.log_source import LogState
from structured_streaming.commit.ends import Ends
from structured_streaming.errors import SourceError
from structured_streaming.source.access import access_of
from structured_streaming.source.log_ends import LogEnds
from structured_streaming.source.logs import targets
from structured_streaming.source.name_servers import name_servers
from structured_streaming.tables import DATA_TABLES, REPUT_PROGRESS, TABLES
from structured_streaming.union.columns import columns_read, stand_in
from structured_streaming.union.instants import Instant, instant_of, shown
from structured_streaming.union.lakes import ReadableLake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DATA = frozenset(table.name for table in DATA_TABLES)
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Tail = tuple[str, LogState, int]
"""Target and state of a log, and the offset from which on it is read."""


class UnionTables:
    """Tables of a lake and logs, in a session; `source` has options of the data source.

    `bind` before each statement. `tell` gets a line about brokers of the lake whose logs are not read. Raises
    SourceError.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: ReadableLake,
        source: Mapping[str, str],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        from structured_streaming.source.data_source import LakebrokerDataSource

        session.dataSource.register(LakebrokerDataSource)
        self._session = session
        self._source = dict(source)
        self._tell = tell
        self._told: set[str] = set()
        lowered = {name.lower(): value for name, value in source.items()}
        self._ends = LogEnds(targets(lowered), access_of(lowered), name_servers(lowered), tell)
        self._lake = lake
        self._stand_ins = {name: stand_in(session, table) for name, table in TABLES.items()}
        self._bound: set[str] = set(TABLES)
        self.tail_bytes = 0
        """Of the logs, beyond the lake, at the last `bind`: what a statement needs of them for each of its tables."""
        self._unbind()

    def bind(self, statement: str) -> None:
        """Makes the tables that a statement reads show the instant of now. Raises LakeError, pyspark's for bad SQL."""
        self._unbind()
        self.tail_bytes = 0
        wanted = columns_read(self._session, statement)
        if not wanted:
            return
        instant = self._lake.newest(wanted)
        tails = self._tails(instant)
        self.tail_bytes = sum(state.end - start for _, state, start in tails)
        for name, columns in wanted.items():
            frame = below(self._lake.frame(name, instant.versions[name]), name, instant)
            if name in _DATA and tails:
                frame = frame.unionByName(self._tail(name, columns, tails, frame))
            frame.createOrReplaceTempView(name)
            self._bound.add(name)

    def close(self) -> None:
        """Gives back the connections to the logs."""
        self._ends.close()

    def _unbind(self) -> None:
        for name in self._bound:
            self._stand_ins[name].createOrReplaceTempView(name)
        self._bound = set()

    def _tails(self, instant: Instant) -> list[Tail]:
        """What the logs hold beyond the instant."""
        logs = self._ends.now()
        self._tell_of_others({broker for broker, _ in instant.ends} - logs.keys())
        found = [(target, state, _start(state, instant.ends)) for target, state in logs.values()]
        return [(target, state, start) for target, state, start in found if start < state.end]

    def _tell_of_others(self, brokers: set[str]) -> None:
        for broker in sorted(brokers - self._told):
            self._told.add(broker)
            self._tell(
                f"of broker {broker} there is only what the lake holds: its log is not among those read"
            )

    def _tail(self, name: str, columns: tuple[str, ...], tails: list[Tail], like: DataFrame) -> DataFrame:
        """The rows of a table in the logs; columns that are not wanted are null."""
        from pyspark.sql.functions import col, lit

        kinds: dict[str, list[str]] = {"store": [], "broker": []}
        for target, _, _ in tails:
            kind, _, address = target.partition(":")
            kinds[kind].append(address)
        options = self._source | {
            "namesrv": "",
            "store": ",".join(kinds["store"]),
            "brokers": ",".join(kinds["broker"]),
            "table": name,
            "columns": ",".join(columns),
            "startingOffsets": _offsets({state: start for _, state, start in tails}),
            "endingOffsets": _offsets({state: state.end for _, state, _ in tails}),
            "pushFilters": self._session.conf.get(_PUSHDOWN, "false") or "false",
        }
        rows = self._session.read.format("lakebroker").options(**options).load()
        return rows.select(
            [
                col(field.name) if field.name in columns else lit(None).cast(field.dataType).alias(field.name)
                for field in like.schema
            ]
        )


def register_as_of(lake: ReadableLake, moment: str, tell: Callable[[str], None]) -> None:
    """Tables as a batch left them, by its number or a time, as temporary views. Raises LakeError."""
    instant = instant_of(lake.frame(REPUT_PROGRESS.name), str(lake), moment)
    for name in TABLES:
        frame = None
        if name != REPUT_PROGRESS.name:
            frame = _readable(lake, name, instant.versions.get(name, 0))
        if frame is None:
            frame = lake.frame(name)
            if name in _DATA:
                tell(
                    f"version {instant.versions.get(name, 0)} of {name} is gone; its newest is read up to batch "
                    f"{instant.batch}, without what was deleted since"
                )
        below(frame, name, instant).createOrReplaceTempView(name)
    assert instant.committed is not None
    tell(f"tables as of batch {instant.batch}, committed at {shown(instant.committed)}")


def below(frame: DataFrame, name: str, instant: Instant) -> DataFrame:
    """The rows of a table that an instant has: a crash, or a later batch, left others above."""
    from pyspark.sql.functions import col, lit

    if name not in _DATA:
        return frame if instant.batch is None else frame.where(col("batch") <= instant.batch)
    held: list[Column] = [
        (col("broker") == lit(broker)) & (col("log_id") == lit(log_id)) & (col("physical_offset") < lit(end))
        for (broker, log_id), end in instant.ends.items()
    ]
    return frame.where(functools.reduce(operator.or_, held, lit(False)))


def _readable(lake: ReadableLake, name: str, version: int) -> DataFrame | None:
    """A version of a table; None when its log or its files are gone."""
    from pyspark.errors import AnalysisException

    try:
        frame = lake.frame(name, version)
        return frame if lake.has_files(name, frame) else None
    except AnalysisException:
        return None


def _start(state: LogState, ends: Ends) -> int:
    """Where the lake ends in a log. Raises SourceError when the two do not meet."""
    reached = ends.get((state.broker, state.log_id))
    if reached is None:
        return state.start
    if reached < state.start:
        raise SourceError(
            f"the log of broker {state.broker} begins at {state.start}, the lake holds it up to {reached}: "
            f"{state.start - reached} bytes are in neither; restore the segments, or read the tables alone"
        )
    if reached > state.end:
        raise SourceError(
            f"the lake holds broker {state.broker} up to offset {reached}, its log {state.log_id} ends at "
            f"{state.end}: data were lost, or this is an older copy; restore what is missing, or read the tables "
            "alone"
        )
    return reached


def _offsets(of: Mapping[LogState, int]) -> str:
    return json.dumps(
        {state.broker: {"log_id": state.log_id, "offset": offset} for state, offset in of.items()}
    )
