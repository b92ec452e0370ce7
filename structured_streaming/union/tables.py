"""The lake's tables as temporary views that show one instant: of the lake (now, or `AS OF`), or of the brokers (union).

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
from structured_streaming.erased import PLACE, Erased, hides
from structured_streaming.erasures import BY_HAND
from structured_streaming.read_only import Statement
from structured_streaming.scratch import SQL, remove_scratch, scratch_folder
from structured_streaming.source.access import access_of, token_file_for
from structured_streaming.source.log_ends import LogEnds
from structured_streaming.source.logs import targets
from structured_streaming.source.name_servers import name_servers
from structured_streaming.tables import DATA_TABLES, REPUT_PROGRESS, TABLES, UPKEEP
from structured_streaming.typed.declaration import STOPPED, packed
from structured_streaming.typed.topic import typed_topic
from structured_streaming.union.columns import columns_read, stand_in
from structured_streaming.union.instants import Instant, as_of, version_gone
from structured_streaming.union.lakes import ReadableLake
from structured_streaming.union.names import LakeNames
from structured_streaming.union.tails import Tail, not_filled, tails_of, without_log

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DATA = frozenset(table.name for table in DATA_TABLES)
"""And typed tables."""
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class UnionTables:
    """Tables of a lake and logs, in a session; `source` has options of the data source.

    `bind` before each statement. `tell` gets a line about brokers of the lake whose logs are not read. Raises
    SourceError.
    """

    with_logs = True
    """Statements over logs must only read."""

    def __init__(
        self,
        session: SparkSession,
        lake: ReadableLake,
        source: Mapping[str, str],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        from structured_streaming.source.data_source import LakebrokerDataSource, register

        register(session, LakebrokerDataSource)
        self._session = session
        self._scratch: list[str] = []
        self._tell = tell
        self._told: set[str] = set()
        lowered = {name.lower(): value for name, value in source.items()}
        self._source = dict(source) | token_file_for(lowered, self._folder)
        self._ends = LogEnds(targets(lowered), access_of(lowered), name_servers(lowered), tell)
        self._lake = lake
        self._typed = {each.table: each for each in lake.typed()}
        self._tables = TABLES | {name: typed_topic(each).table for name, each in self._typed.items()}
        self._stand_ins: dict[str, DataFrame] = {}
        self._names = LakeNames(
            session, {name: functools.partial(self._stand_in, name) for name in self._tables}, lake.retired()
        )
        self._bound: set[str] = set()
        self.tail_bytes = 0
        """Of the logs, beyond the lake, at the last `bind`: what a statement needs of them for each of its tables."""

    def bind(self, statement: Statement) -> None:
        """Makes the tables that a statement reads show the instant of now. Raises LakeError, pyspark's for bad SQL."""
        self._unbind()
        self.tail_bytes = 0
        self._names.bind(statement)
        wanted = columns_read(statement, self._tables)
        if not wanted:
            return
        instant = self._lake.newest(wanted).without_retired()
        for said in self._lake.emptied(wanted):
            self._tell(said)
        tails, erased = self._tails(instant)
        instant = instant.without(self._lake.unsettled(erased))
        self.tail_bytes = sum(state.end - start for _, state, start in tails)
        for name, columns in wanted.items():
            frame = below(self._lake.frame(name, instant.versions[name]), name, instant)
            if tails and self._has_tail(name, instant):
                frame = frame.unionByName(self._tail(name, columns, tails, frame))
            frame.createOrReplaceTempView(name)
            self._bound.add(name)

    def bind_all(self) -> None:
        """Has every name in the session, tables without rows where no statement has bound them. Raises LakeError."""
        self._names.bind_all()

    def addresses(self) -> dict[str, str]:
        """Where the logs are, by broker: `host:port`, or a folder. Raises SourceError."""
        return {broker: target.partition(":")[2] for broker, (target, _) in self._ends.now().logs.items()}

    def close(self) -> None:
        """Gives back the connections to the logs, and removes what was handed on to the planning of queries."""
        self._ends.close()
        while self._scratch:
            remove_scratch(self._scratch.pop())

    def _folder(self) -> str:
        self._scratch.append(scratch_folder(prefix=SQL))
        return self._scratch[-1]

    def _has_tail(self, name: str, instant: Instant) -> bool:
        """Whether the logs' rows belong to a table. Raises LakeError for a typed one that the reput has not filled yet."""
        declared = self._typed.get(name)
        if declared is None:
            return name in _DATA
        if declared.state == STOPPED:
            return False
        if size := self._lake.lacks(declared, instant.ends):
            raise not_filled(name, size)
        return True

    def _stand_in(self, name: str) -> DataFrame:
        if name not in self._stand_ins:
            self._stand_ins[name] = stand_in(self._session, self._tables[name])
        return self._stand_ins[name]

    def _unbind(self) -> None:
        for name in self._bound:
            self._stand_in(name).createOrReplaceTempView(name)
        self._bound = set()

    def _tails(self, instant: Instant) -> tuple[list[Tail], Erased]:
        """What the logs hold beyond the instant, and which of their records are erased."""
        asked = self._ends.now()
        logs = {broker: log for broker, log in asked.logs.items() if broker not in instant.retired}
        self._tell_of_others({broker for broker, _ in instant.ends} - logs.keys())
        return tails_of(logs.values(), instant.ends), asked.erased

    def _tell_of_others(self, brokers: set[str]) -> None:
        for broker in sorted(brokers - self._told):
            self._told.add(broker)
            self._tell(without_log(broker))

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
            "typed": packed([self._typed[name]]) if name in self._typed else "",
            "pushFilters": self._session.conf.get(_PUSHDOWN, "false") or "false",
        }
        rows = self._session.read.format("lakebroker").options(**options).load()
        return rows.select(
            [
                col(field.name) if field.name in columns else lit(None).cast(field.dataType).alias(field.name)
                for field in like.schema
            ]
        )


def frames(
    lake: ReadableLake, moment: str = "", tell: Callable[[str], None] = lambda line: None
) -> dict[str, Callable[[], DataFrame]]:
    """What makes the frame of each table, typed ones too, as it is; with a `moment`, a batch's number or a time, as that left it.

    `tell` gets a line for a table whose version is gone when its frame is made. Raises LakeError.
    """
    frame: Callable[[str], DataFrame] = lake.frame
    if moment:
        instant = lake.then(moment).without(lake.hidden())
        tell(as_of(instant))
        frame = functools.partial(_frame_then, lake, instant, tell)
    names = [*TABLES, *(declared.table for declared in lake.typed())]
    return {name: functools.partial(frame, name) for name in names}


def _frame_then(lake: ReadableLake, instant: Instant, tell: Callable[[str], None], name: str) -> DataFrame:
    then = None
    if name not in (REPUT_PROGRESS.name, UPKEEP.name):
        then = _readable(lake, name, instant.versions.get(name, 0))
        if then is None:
            tell(version_gone(name, instant))
    return below(lake.frame(name) if then is None else then, name, instant)


def below(frame: DataFrame, name: str, instant: Instant) -> DataFrame:
    """The rows of a table that an instant has."""
    from pyspark.sql.functions import col, lit

    wanted = instant.rows_of(name)
    if wanted.to_batch is not None:
        return frame.where(col("batch") <= wanted.to_batch)
    if wanted.below is None:
        return frame
    held: list[Column] = [
        (col("broker") == lit(broker)) & (col("log_id") == lit(log_id)) & (col("physical_offset") < lit(end))
        for (broker, log_id), end in wanted.below.items()
    ]
    if wanted.by_hand:
        held.append(col("broker") == lit(BY_HAND[0]))
    rows = frame.where(functools.reduce(operator.or_, held, lit(False)))
    if not (hides(name) and len(records := instant.left_out)):
        return rows
    hidden = frame.sparkSession.createDataFrame(records.table())
    return rows.join(hidden, list(PLACE), "left_anti").select(*frame.columns)


def _readable(lake: ReadableLake, name: str, version: int) -> DataFrame | None:
    """A version of a table; None when its log or its files are gone."""
    from pyspark.errors import AnalysisException

    try:
        return lake.frame(name, version) if lake.has_files(name, version) else None
    except AnalysisException:
        return None


def _offsets(of: Mapping[LogState, int]) -> str:
    return json.dumps(
        {state.broker: {"log_id": state.log_id, "offset": offset} for state, offset in of.items()}
    )


SessionTables = LakeNames | UnionTables
"""What statements of a session may name: of a lake alone, or of a lake and logs."""
