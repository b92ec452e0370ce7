"""SQL over a lake in a folder or an object store, without Spark: `EmbeddedEngine`.

    with EmbeddedEngine.open("./lake") as engine:
        for batch in engine.query("SELECT topic, count(*) FROM messages GROUP BY topic"):
            ...

Each statement shows one instant of the lake: its progress is read first, then the versions of the tables that it names,
which have all that is below the progress; what they have above is left out. A lake that grows, or is maintained meanwhile,
changes nothing in an answer under way. With logs (`source`), what they hold beyond that instant is added. Typed topics that are
declared, altered or removed meanwhile are so for the next statement that may read them (`known.py`); an instant of the past has
the tables that the lake had when the engine was opened.

| what | then |
|---|---|
| another statement than a query, another file, a function with effects | refused before it runs (`planning.py`) |
| a result larger than memory | what does not fit goes to the temporary folder, up to its limit; rows are handed out as they are made |
| a statement that does not end, or whose plan does not | interrupted after its time |
| work that looks for no interrupt | whoever opened the engine is told after some seconds (`stuck`), and ends the process. An object store that hangs while rows are read of it is such work; before that, what it keeps waiting ends no process |
| a value larger than memory | an error, where the process has bounds (`memory.py`) |
| files of a version that were vacuumed meanwhile | the newest version, once; behind the first rows an error |
| a broker that does not answer | `tail.py` |
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import duckdb
import pyarrow as pa

from structured_streaming.embedded.current import Current, Planned
from structured_streaming.embedded.database import connected, definition, lock
from structured_streaming.embedded.failures import FilesGoneError
from structured_streaming.embedded.instants import hidden_records, past_instant, table_view
from structured_streaming.embedded.interface import Parameters, Relation
from structured_streaming.embedded.known import Known, KnownTables, may_ask_typed
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.pinned import AttachedTables, DatasetTables, PinnedTables
from structured_streaming.embedded.planning import Plan, Planner
from structured_streaming.embedded.quoting import name
from structured_streaming.embedded.results import schema_of, taken, without_files
from structured_streaming.embedded.running import Running, Watch
from structured_streaming.erased import NOTHING_ERASED
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.scratch import free_bytes, remove_scratch, scratch_folder
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import LocalFolder
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant, age_of
from structured_streaming.views import VIEWS, leaving_out

if TYPE_CHECKING:
    from structured_streaming.embedded.tail import Logs

__all__ = ["EmbeddedEngine", "Limits", "Relation"]


class EmbeddedEngine:
    """See the module. Statements may run at a time, from several threads, within the limits together."""

    def __init__(
        self,
        lake: FollowedLake,
        limits: Limits,
        logs: Logs | None,
        past: Instant | None,
        databases: _Databases,
        made: contextlib.ExitStack,
        watch: Watch,
        tell: Callable[[str], None],
    ) -> None:
        """See `open`. `made` is closed with the engine."""
        self._lake = lake
        self._limits = limits
        self._logs = logs
        self._past = past
        self._tables_of = databases.tables
        self._pinned = databases.pinned
        self._current = databases.current
        self._made = made
        self._watch = watch
        self._tell = tell
        self._lock = threading.Lock()
        self._by_catalog = threading.Lock()

    @classmethod
    def open(
        cls,
        location: str,
        limits: Limits = Limits(),
        source: Mapping[str, str] | None = None,
        as_of: str = "",
        tell: Callable[[str], None] = lambda line: None,
        *,
        strict: bool = False,
        repeats: bool = False,
        newer: str = "add --brokers, --namesrv or --store to include what is newer",
        stuck: Callable[[Running], None] | None = None,
    ) -> Self:
        """An engine over the lake at `location`.

        With `source`, options of the data source (`brokers`, `namesrv`, `store`, …), each statement has what these logs hold
        beyond the lake too. With `as_of`, a batch's number or a time, tables are as they were then. With `strict`, a log that does
        not answer is an error. `tell` gets lines for people, also while statements run; one says how old tables alone are, and
        `newer` what to do. Some lines are told once; with `repeats`, of each statement. `stuck` ends the process where nothing else
        ends a statement (`running.py`). Raises LakeError.
        """
        with contextlib.ExitStack() as made:
            folder = open_lake(location)
            lake, logs, past = FollowedLake(folder, repeats=repeats), None, None
            known = KnownTables(lake, with_logs=bool(source))
            if source:
                from structured_streaming.embedded import (
                    tail,  # compiled code, and gRPC: not for tables alone
                )

                logs = tail.Logs(source, lake.committed, tell, strict=strict, repeats=repeats)
                made.callback(logs.close)
            if as_of:
                past = past_instant(folder, lake, as_of, tell, known.now().tables)
            databases = _databases(folder, limits, made, known)
            opened = cls(lake, limits, logs, past, databases, made.pop_all(), Watch(stuck), tell)
            if said := opened.age():
                tell(f"{said}; {newer}")
            return opened

    def age(self) -> str:
        """How old tables alone are by now, for people; empty with logs, of an instant of the past, and of a lake without batches."""
        if self._logs is not None or self._past is not None:
            return ""
        with self._lock:
            said = age_of(self._lake.committed())
        return f"tables alone, {said}" if said else ""

    def query(
        self, statement: str, parameters: Parameters = (), watch: Watch | None = None
    ) -> pa.RecordBatchReader:
        """The rows of one statement, taken from the engine as the reader's are: whoever does not want them all closes it.

        `parameters` are values for `?` and `$1`, or by name for `$name`. Times are UTC, in microseconds; sums of integers
        are int64. With a `watch` of the caller's, its `cancel` ends this statement, and the engine's does not. Raises
        LakeError, ReadOnlyError; the reader raises LakeError.
        """
        watch = self._watch if watch is None else watch
        planned = self._looked(statement)
        running = Running(planned.planner.cursor(), self._limits.seconds)
        try:
            return self._asked(statement, parameters, planned, running, watch)
        except FilesGoneError:
            self._pinned.forget()
            with self._lock:
                self._lake.forget()
            planned = self._looked(statement)
            running.on(planned.planner.cursor())
            return self._asked(statement, parameters, planned, running, watch)

    def describe(self, statement: str, watch: Watch | None = None) -> pa.Schema:
        """The schema of its rows; parameters count as NULL. Runs nothing. `watch` as of `query`. Raises LakeError, ReadOnlyError."""
        watch = self._watch if watch is None else watch
        planned = self._looked(statement)
        running = Running(planned.planner.cursor(), self._limits.seconds)
        with contextlib.closing(running.cursor), watch.over(running):
            schema, kinds = planned.planner.described(running, statement)
        return schema_of(schema, kinds)

    def relations(self, watch: Watch | None = None) -> list[Relation]:
        """Tables, then views. They take the engine no work that a `watch` could end. Raises LakeError."""
        tables = [
            Relation(each.name, "table", each.comment, each.schema, each.key)
            for each in self._looked().known.tables.values()
        ]
        return tables + [Relation(each.name, "view", each.comment, each.schema) for each in VIEWS]

    def cancel(self) -> None:
        """Ends the statements under way, with a LakeError; from another thread."""
        self._watch.cancel()

    def close(self) -> None:
        """Ends what is under way, and gives back connections, memory and the temporary folder."""
        self.cancel()
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _looked(self, statement: str | None = None) -> Planned:
        """What a statement is planned with: the tables that the lake has now, where that makes a difference. None: as they are now."""
        if self._past is not None or (statement is not None and not may_ask_typed(statement)):
            return self._current.last
        with self._lock:
            return self._current.now()

    def _asked(
        self, statement: str, parameters: Parameters, planned: Planned, running: Running, watch: Watch
    ) -> pa.RecordBatchReader:
        with contextlib.closing(running.cursor), watch.over(running):
            plan = planned.planner.plan(running, statement, parameters)
        return self._begun(plan, planned, parameters, running, watch)

    def _begun(
        self, plan: Plan, planned: Planned, parameters: Parameters, running: Running, watch: Watch
    ) -> pa.RecordBatchReader:
        cursor = self._tables_of.cursor() if plan.tables else planned.planner.cursor()
        held = contextlib.ExitStack()
        held.callback(cursor.close)
        try:
            running.on(cursor)
            held.enter_context(watch.over(running))
            if plan.tables:
                self._bind(plan, planned.known, running, held)
            given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            rows = taken(running, partial(cursor.execute, plan.text, given), held)
            return without_files(rows) if plan.explains else rows
        except BaseException:
            held.close()
            raise

    def _bind(self, plan: Plan, known: Known, running: Running, held: contextlib.ExitStack) -> None:
        """Gives a statement's cursor the tables and views that it names: those that it reads at one instant, the others
        without rows."""
        with self._lock:
            if self._past is None:
                instant = self._lake.newest(plan.reads)
                for said in self._lake.emptied(plan.reads):
                    self._tell(said)
            else:  # what was erased since is hidden in it, too
                instant = dataclasses.replace(self._past, hidden=self._lake.hidden())
        versions = {table: instant.versions[table] for table in plan.reads}
        tails = dict[str, str]()
        if self._logs is not None:
            with self._lock:
                known.check_filled(self._lake, plan.reads, instant)
            instant = instant.without_retired()
            with running.working(), running.elsewhere():
                beyond, erased = self._logs.beyond(instant) if plan.reads else ([], NOTHING_ERASED)
            with self._lock:
                instant = instant.without(self._lake.unsettled(erased))
            tails = self._logs.fill(running, plan.reads, beyond, erased, known.rows)
        with running.working():
            with running.elsewhere():
                pinned = held.enter_context(self._pinned.held(running.cursor, versions))
            hidden = hidden_records(running.cursor, instant)
            for each in plan.tables - plan.reads.keys():
                running.cursor.execute(
                    f"CREATE TEMP TABLE {name(each)} ({definition(known.tables[each].schema)})"
                )
            for each in plan.reads:
                running.cursor.execute(
                    table_view(known.tables[each], pinned[each], instant, tails.get(each), hidden)
                )
            shown = leaving_out(instant.retired)
            for view in plan.views:
                running.cursor.execute(f"CREATE TEMP VIEW {name(view.name)} AS {view.over(shown)}")
            for each in plan.by_catalog:
                with self._by_catalog:  # which all cursors share; it reads what the cursor has that asks it
                    running.cursor.execute(
                        f"CREATE VIEW IF NOT EXISTS memory.main.{name(each)} AS FROM temp.main.{name(each)}"
                    )


class _Databases(NamedTuple):
    """See `database.py`."""

    tables: duckdb.DuckDBPyConnection
    pinned: PinnedTables
    current: Current


def _databases(
    folder: Folder,
    limits: Limits,
    made: contextlib.ExitStack,
    known: KnownTables,
) -> _Databases:
    """Raises LakeError."""
    temp_folder, temp_bytes = _temporary(limits)
    made.callback(remove_scratch, temp_folder)

    def planner(known: Known) -> Planner:
        plans = connected()
        try:
            lock(plans, limits, temp_folder, temp_bytes, for_plans=True)
            return Planner(plans, known.tables)
        except BaseException:
            plans.close()
            raise

    current = Current(known, planner)
    made.callback(current.close)
    tables = connected(delta=isinstance(folder, LocalFolder))  # what reads objects is no extension
    made.callback(tables.close)
    if isinstance(folder, LocalFolder):
        folders = [folder.uri]  # a typed table may be made at any time
        pinned: PinnedTables = AttachedTables(folder, tables.cursor())
    else:
        folders, pinned = [], DatasetTables(folder)
    lock(tables, limits, temp_folder, temp_bytes, folders=folders)
    return _Databases(tables, pinned, current)


def _temporary(limits: Limits) -> tuple[str, int]:
    """A new folder for what does not fit in memory, and how much may go there. Raises LakeError."""
    try:
        folder = scratch_folder(limits.temp_folder, "lakebroker-sql-")
        free = free_bytes(folder) // 2
    except OSError as error:
        raise LakeError(
            f"temporary folder {limits.temp_folder or 'of the system'}: {error.strerror}; give one to write to (--temp-folder)"
        ) from error
    return folder, free if limits.temp_bytes is None else limits.temp_bytes
