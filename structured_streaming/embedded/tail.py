"""What logs hold beyond the lake, in temporary tables of a statement: columns and records that it needs, no more.

Rows come by the log service, chunk by chunk, and go where the engine keeps what does not fit in its memory.

| a broker | then |
|---|---|
| does not answer, or does not tell what of it is erased | the tables' part of it, and a line that says so with its age; with `strict` an error; other brokers' parts are whole |
| whose log and the lake do not meet, or that refuses | an error: something is lost, or wrong |
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Mapping, Sequence, Set

import duckdb
import pyarrow as pa

from structured_streaming.embedded.database import definition
from structured_streaming.embedded.planning import Read
from structured_streaming.embedded.quoting import name
from structured_streaming.embedded.running import Running
from structured_streaming.erased import Erased
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.rows.pieces import Piece
from structured_streaming.rows.selected import Selection, batches
from structured_streaming.source.log_ends import LogEnds
from structured_streaming.source.logs import open_log
from structured_streaming.source.options import SourceOptions
from structured_streaming.tables import DATA_TABLES
from structured_streaming.typed.topic import TypedRows
from structured_streaming.union.instants import Instant, age_of
from structured_streaming.union.tails import Tail, tails_of, without_log

_DATA = frozenset(table.name for table in DATA_TABLES)
_ROWS = "rows of a log"


class Logs:
    """The logs that options of the data source name. `committed` says when the lake's newest batch was. Calls raise SourceError;
    UnreachableError only when `strict`. `repeats`: what is otherwise told once is told of each statement."""

    def __init__(
        self,
        source: Mapping[str, str],
        committed: Callable[[], datetime.datetime | None],
        tell: Callable[[str], None],
        *,
        strict: bool,
        repeats: bool = False,
    ) -> None:
        self._options = SourceOptions(source)
        self._ends = LogEnds(
            self._options.targets, self._options.access, self._options.name_servers, tell, repeats=repeats
        )
        self._committed = committed
        self._tell = tell
        self._strict = strict
        self._repeats = repeats
        self._told: set[str] = set()

    def beyond(self, instant: Instant) -> tuple[list[Tail], Erased]:
        """What they hold beyond an instant of the lake, and which of their records are erased."""
        try:
            asked = self._ends.asked()
        except UnreachableError as error:  # name servers, when they never answered
            self._without(error)
            return [], self._ends.erased()
        for each in asked.away:
            self._without(each)
        logs = {broker: log for broker, log in asked.logs.items() if broker not in instant.retired}
        self._tell_once(asked.logs.keys() - logs.keys(), _retired)
        if not asked.away:
            self._tell_once({broker for broker, _ in instant.ends} - logs.keys(), without_log)
        return tails_of(logs.values(), instant.ends), asked.erased

    def fill(
        self,
        running: Running,
        reads: Mapping[str, Read],
        tails: Sequence[Tail],
        erased: Erased,
        typed: Mapping[str, TypedRows],
    ) -> dict[str, str]:
        """Makes a temporary table for each table of a statement that logs have rows of, but of `erased` records; their names, as SQL
        has them. `typed` makes rows of typed tables."""
        tables = (
            {each: name(f"{each} of logs") for each in reads.keys() & (_DATA | typed.keys())} if tails else {}
        )
        selections = [
            Selection(each, reads[each].columns, reads[each].conditions, typed.get(each)) for each in tables
        ]
        left = list(tails)
        while tables:
            for selection in selections:
                columns = definition(selection.schema)
                running.cursor.execute(f"CREATE OR REPLACE TEMP TABLE {tables[selection.name]} ({columns})")
            try:
                for tail in left:
                    self._read(running, tail, selections, tables, erased)
                break
            except UnreachableError as error:
                self._without(error)
                left.remove(tail)  # all its rows are left out, in every table
        return tables

    def close(self) -> None:
        """Gives back the connections."""
        self._ends.close()

    def _read(
        self,
        running: Running,
        tail: Tail,
        selections: Sequence[Selection],
        tables: Mapping[str, str],
        erased: Erased,
    ) -> None:
        from store.scan import scan

        target, state, start = tail
        wanted = [each for each in selections if _may_hold(each, state.broker, state.log_id)]
        if not wanted:
            return
        levels = state.delay_levels or self._options.delay_levels
        log = open_log(target, self._options.access)
        try:
            cuts = log.split(state.log_id, start, state.end, self._options.partition_bytes)
            left_out = erased.of((state.broker, state.log_id))
            for begin, end in itertools.pairwise(cuts):
                for offset, data in log.read(state.log_id, begin, end):
                    with running.working():
                        with running.elsewhere():
                            found = scan(data, offset, segment_size=state.segment_size)
                        piece = Piece(state.broker, state.log_id, levels, found, left_out)
                        for each in wanted:
                            with running.elsewhere():
                                rows = pa.Table.from_batches(list(batches(piece, each)), each.schema)
                            _insert(running.cursor, tables[each.name], rows)
        finally:
            log.close()

    def _without(self, error: SourceError) -> None:
        if not isinstance(error, UnreachableError):
            raise error
        if self._strict:
            raise UnreachableError(
                f"{error}; start what is down, leave it out of the logs that are read, or ask by `lakebroker sql` and the like without "
                "--strict, which then has what the lake holds of it"
            ) from error
        age = age_of(self._committed())
        self._tell(f"{error}; of it there is only what the lake holds{', ' if age else ''}{age}")

    def _tell_once(self, brokers: Set[str], said: Callable[[str], str]) -> None:
        for broker in sorted(brokers if self._repeats else brokers - self._told):
            self._told.add(broker)
            self._tell(said(broker))


def _retired(broker: str) -> str:
    return (
        f"broker {broker} answers, and is retired: views leave it out, and its log is not read; `lakebroker lake unretire {broker}` "
        "shows it again"
    )


def _may_hold(selection: Selection, broker: str, log_id: str) -> bool:
    of_log = {"broker": broker, "log_id": log_id}
    return all(each.holds(of_log[each.column]) for each in selection.conditions if each.column in of_log)


def _insert(cursor: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    if not rows.num_rows:
        return
    cursor.register(_ROWS, rows)
    cursor.execute(f"INSERT INTO {table} FROM {name(_ROWS)}")
    cursor.unregister(_ROWS)
