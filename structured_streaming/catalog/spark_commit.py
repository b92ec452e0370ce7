"""On the driver: staged files become rows of tables that only Spark may commit to, by its own writer; the progress row last.

Spark's writer carries one application transaction (`marks.py`), so a table's version does not tell where it stands in each
log, as it does with `commit/delta_commit.py`. Who starts therefore sets the tables back to the progress, and from then on no
other writer can change them:

| step | why |
|---|---|
| an empty commit to `reput_progress` with a number of the lake's counter that is new, then to every table with the next one | whoever began before has lower numbers: what it commits from now on is passed over, or fails beside ours. The batch that it is at may have the new number in a table, and no higher one |
| the progress is read, and in every table the rows that it does not cover are removed, with the next number | they are of a batch that a crash, or the step above, left unfinished; its bytes are read again |
| each batch takes the next number, in every table that has rows, then in `reput_progress` | a table has a batch once |

After each commit its mark is looked up. Where it is not there, another writer has taken over, and this one ends; likewise
where a commit fails, or a query begins again, and the newest mark of the progress is another writer's. Where a mark states
other rows than the staged files have, the batch ends, and the next start removes it.

Numbers grow by more than one at a start. Tables in folders of a local file system are made durable before the progress is
committed, and that before it is reported; other places are durable when Spark's writer returns.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from structured_streaming.catalog.lake_tables import LakeTables, sql_text
from structured_streaming.catalog.marks import BATCH, CLEARED, KNOWN, RECENT, START, History, Mark
from structured_streaming.catalog.places import check_place, durable_folder
from structured_streaming.catalog.spark_errors import is_away, is_conflict, lake_errors, said, spark_errors
from structured_streaming.catalog.staged_files import StagedFiles
from structured_streaming.commit.batch import LogSpan, files_by_table, progress_rows, report, spans_of
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.report import BatchReport
from structured_streaming.commit.sink import DURABLE, NUMBERED, SET_BACK, STAGED, STARTED, AfterStep, no_step
from structured_streaming.erasures import BY_HAND
from structured_streaming.errors import CatalogAwayError, ForeignWriterError, LakeError
from structured_streaming.provided_session import apart
from structured_streaming.staging.manifest import unknown_schemas
from structured_streaming.staging.table_file import write_file
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import DATA_TABLES, ERASURES, REPUT_PROGRESS
from structured_streaming.typed.topic import typed_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")
COMMITS_AT_ONCE = 4
_STARTS = 40
"""Times that a writer asks for a number, each time for one further on: twice as far as the last."""
_CONFLICTS = 5
"""Times that a start tries what another writer's commit came in between of: a batch under way, maintenance."""
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # old dates stand in staged files as they are meant, whatever a platform has for files of others
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # a staged file that is gone is an error, and so is a snapshot that is not the newest
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.databricks.delta.stalenessLimit": "0",
    # texts in statements are written with backslashes (`sql_text`)
    "spark.sql.parser.escapedStringLiterals": "false",
}
_TRANSACTION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_OTHER = "another reput writes the same lake; stop one of them and start the other again"


class SparkCommitSink:
    """Commits manifests of files that were staged in `staging` to the tables of a lake; see the module.

    The session that is given is left as it is. `tell_ends` gets what the lake holds, at first and after each batch.
    `writer` names who commits. One that began `before` under that name is refused when another came since.
    `after_step` is called after each step (`sink.py`). `others` are typed tables that are not filled now: they too are set back
    to the progress, or a later fill would not know what they have of it. `declared_otherwise` tells which of some typed tables are
    not declared any more as their files were made by. Raises LakeError.
    """

    def __init__(
        self,
        session: SparkSession,
        tables: LakeTables,
        staging: Folder,
        tell_ends: Callable[[Ends], None],
        writer: str,
        before: bool = False,
        wanted: Wanted = EVERYTHING,
        after_step: AfterStep = no_step,
        others: Iterable[str] = (),
        declared_otherwise: Callable[[Iterable[str]], list[str]] = lambda tables: [],
    ) -> None:
        self._session = apart(session)
        for setting, value in _SETTINGS.items():
            self._session.conf.set(setting, value)
        self._tables = tables
        typed = [typed_topic(declared).table for declared in wanted.typed]
        self._staged = StagedFiles(self._session, staging, typed)
        self._tell_ends = tell_ends
        named = [table.name for table in typed]
        self._wanted_tables = [*(table.name for table in DATA_TABLES if table.name in wanted), *named]
        self._data_tables = [*(table.name for table in DATA_TABLES), *named, *others]
        self._after_step = after_step
        self._declared_otherwise = declared_otherwise
        self._writer = writer
        self._number = 0
        self._versions: dict[str, int] = {}
        self._local: dict[str, Folder] = {}
        self.unknown: dict[str, set[int]] = {}
        """Ids of schemas that messages of typed tables have, which are left out for them."""
        self.ends: Ends = {}
        """What the lake holds."""
        try:
            if before:
                self._check_newest()
            self._begin()
        except spark_errors() as error:
            raise self._error(error) from error
        tell_ends(self.ends)

    def commit(self, manifest: list[dict[str, Any]]) -> BatchReport | None:
        """See `Sink.commit`."""
        started = time.monotonic()
        spans = spans_of(manifest)
        if not spans:
            return None
        self._check(spans)
        self._after_step(STAGED)
        self._number += 1
        self.unknown |= unknown_schemas(manifest)
        self._wanted_tables = [name for name in self._wanted_tables if name not in self.unknown]
        files = {name: rows for name, rows in files_by_table(manifest).items() if name in self._wanted_tables}
        try:
            took = self._commit_tables(files)
            if other := self._declared_otherwise(files):
                raise LakeError(
                    f"another schema was declared of {other[0]} while a batch was committed to it, which is read again by that one"
                )
            self._make_durable(files)
            self._after_step(DURABLE)
            begun = time.monotonic()
            self._commit_progress(spans)
            took[REPUT_PROGRESS.name] = time.monotonic() - begun
        except ForeignWriterError:
            raise
        except lake_errors() as error:
            with contextlib.suppress(*spark_errors()):  # the catalog is away: what failed first says so
                self._check_newest()
            if isinstance(error, LakeError):
                raise
            raise self._error(error) from error
        self.ends |= {(span.broker, span.log_id): span.end for span in spans}
        self._tell_ends(self.ends)
        for name, rows in files.items():
            self._staged.remove(name, rows)
        return report(self._number, spans, manifest, time.monotonic() - started, took)

    def _begin(self) -> None:
        """Shuts other writers out, and removes what they left unfinished."""
        tables = [*self._data_tables, REPUT_PROGRESS.name]
        self._each(tables, self._look)
        self._take_number()
        self._after_step(NUMBERED)
        self._number += 1
        started = self._each(self._data_tables, self._started)
        self._after_step(STARTED)
        self.ends, last = self._progress()
        self._number += 1
        for name in self._data_tables:
            self._without_conflict(functools.partial(self._remove_unfinished, name, started[name], last))
        self._staged.clear()
        self._make_durable(tables)
        self._after_step(SET_BACK)

    def _look(self, name: str) -> None:
        """Where a table is."""
        table = self._tables.detail(self._session, name)
        check_place(self._session, f"{self._tables}.{name}", table)
        folder = durable_folder(table["location"])
        if folder is not None:
            self._local[name] = folder

    def _take_number(self) -> None:
        """The number of this writer's start is the progress table's newest. Raises ForeignWriterError."""
        known = self._history(REPUT_PROGRESS.name, KNOWN)
        _, last = self._progress()
        self._check_progress(known, last)
        least = max([last, *(mark.number for mark in known.marks)])
        for step in range(_STARTS):
            # the three behind the newest may be in other tables: of a writer's start, its removals, its batch
            self._number = least + 3 + 2**step
            try:
                self._start(REPUT_PROGRESS.name)
            except ForeignWriterError:
                if step == _STARTS - 1:
                    raise
            else:
                return

    def _check_progress(self, known: History, last: int) -> None:
        """Raises LakeError where rows of finished batches are gone: what they cover would be removed and read again."""
        finished = max((mark.number for mark in known.marks if mark.kind == BATCH), default=0)
        emptied = "" if finished <= last else f"batch {finished}"
        if not last and not known.marks:
            for table in DATA_TABLES:
                if self._history(table.name).marks:
                    emptied = f"what {table.name} holds"
        if emptied:
            raise LakeError(
                f"table {REPUT_PROGRESS.name} of lake {self._tables} has lost the row of {emptied}: it was dropped, or altered by "
                "hand; restore it (RESTORE TABLE … TO VERSION AS OF), or begin a new lake"
            )

    def _check_newest(self) -> None:
        """Raises ForeignWriterError when another writer came after this one."""
        name = REPUT_PROGRESS.name
        newest = next(iter(self._history(name, KNOWN).marks), None)
        if newest is not None and newest.writer != self._writer:
            raise ForeignWriterError(
                f"table {name} of lake {self._tables} has number {newest.number}: {_OTHER}"
            )

    def _without_conflict(self, do: Callable[[], Result]) -> Result:
        """Again where another writer's commit came in between."""
        left = _CONFLICTS
        while True:
            try:
                return do()
            except lake_errors() as error:
                left -= 1
                if not left or not (isinstance(error, ForeignWriterError) or is_conflict(error)):
                    raise

    def _started(self, name: str) -> History:
        return self._without_conflict(lambda: self._start(name))

    def _start(self, name: str) -> History:
        """An empty commit with the number; what came before it."""
        nothing = self._session.table(self._tables.table(name)).where("false")
        return self._append(name, nothing, Mark(START, self._number, self._writer), 0)

    def _remove_unfinished(self, name: str, known: History, last: int) -> None:
        """Rows that the progress does not cover, which batches behind the `last` left. Raises LakeError where they are others."""
        table = self._tables.table(name)
        if not known.settles():
            known = self._history(name, KNOWN)
        most = known.unfinished(last)
        if most == 0:
            return
        held = " OR ".join(
            f"(broker = {sql_text(broker)} AND log_id = {sql_text(log_id)} AND physical_offset < {end})"
            for (broker, log_id), end in sorted(self.ends.items())
        )
        if name == ERASURES.name:  # some came by no batch
            held = f"broker = {sql_text(BY_HAND[0])}" + (f" OR {held}" if held else "")
        logs = " OR ".join(
            f"(broker = {sql_text(broker)} AND log_id = {sql_text(log_id)})"
            for broker, log_id in sorted(self.ends)
        )
        beyond, foreign = self._session.sql(
            f"SELECT count(*), count_if(NOT ({logs or 'false'})) FROM {table} WHERE NOT ({held or 'false'})"
        ).collect()[0]
        if not beyond:
            return
        if foreign if most is None else beyond > most:
            raise LakeError(
                f"table {name} of lake {self._tables} has {beyond} rows that no row of {REPUT_PROGRESS.name} covers, and "
                f"{'it is not known that' if most is None else f'at most {most} of them are what'} a batch left unfinished: "
                f"restore the rows of {REPUT_PROGRESS.name} that were removed, or remove these; after a crash without "
                "--sink spark run the reput once without it"
            )
        mark = Mark(CLEARED, self._number, self._writer)
        values = zip(
            (*_TRANSACTION, _METADATA), (SPARK_APPLICATION, str(mark.number), mark.text), strict=True
        )
        for option, value in values:
            self._session.conf.set(option, value)
        try:
            self._session.sql(f"DELETE FROM {table} WHERE NOT ({held or 'false'})").collect()
        finally:
            for option in (*_TRANSACTION, _METADATA):
                self._session.conf.unset(option)
        self._note_version(name, mark)

    def _commit_tables(self, files: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
        """Seconds that each took."""
        mark = Mark(BATCH, self._number, self._writer)

        def add(name: str) -> float:
            begun = time.monotonic()
            rows = sum(file["rows"] for file in files[name])
            self._append(name, self._staged.read(name, files[name]), mark, rows)
            took = time.monotonic() - begun
            self._after_step(name)
            return took

        return self._each(files, add)

    def _commit_progress(self, spans: list[LogSpan]) -> None:
        versions = {name: self._versions[name] for name in self._wanted_tables}
        rows = progress_rows(spans, versions, self._number)
        file = write_file(self._staged.folder, REPUT_PROGRESS, rows)._asdict()
        mark = Mark(BATCH, self._number, self._writer)
        name = REPUT_PROGRESS.name
        self._append(name, self._staged.read(name, [file]), mark, rows.num_rows)
        self._make_durable([name])
        self._after_step(name)
        self._staged.remove(name, [file])

    def _append(self, name: str, rows: DataFrame, mark: Mark, count: int) -> History:
        """Notes the version that has the rows. Raises ForeignWriterError when the number was another writer's."""
        table = self._tables.table(name)
        try:
            (
                rows.writeTo(table)
                .option("txnAppId", SPARK_APPLICATION)
                .option("txnVersion", str(mark.number))
                .option("userMetadata", mark.text)
                .append()
            )
        except spark_errors() as error:
            if "ConcurrentTransactionException" not in str(error):
                raise
            raise ForeignWriterError(f"table {name} of lake {self._tables}: {_OTHER}") from error
        newest, found = self._note_version(name, mark)
        if found.rows not in (-1, count):
            raise LakeError(
                f"table {name} of lake {self._tables} got {found.rows} rows of a batch that has {count}; the next start "
                "removes them"
            )
        return newest

    def _note_version(self, name: str, mark: Mark) -> tuple[History, Mark]:
        """The version that a commit made of a table; what the table's history says. Raises ForeignWriterError when the number
        was another writer's."""
        newest = self._history(name)
        found = newest.find(mark.number) or self._history(name, KNOWN).find(mark.number)
        if found is None or found.writer != self._writer:
            raise ForeignWriterError(
                f"table {name} of lake {self._tables} did not take number {mark.number}: {_OTHER}"
            )
        self._versions[name] = found.version
        return newest, found

    def _history(self, name: str, limit: int = RECENT) -> History:
        return self._tables.history(self._session, name, limit)

    def _check(self, spans: list[LogSpan]) -> None:
        for span in spans:
            end = self.ends.get((span.broker, span.log_id), span.start)
            if end != span.start:
                raise LakeError(
                    f"the lake holds {span.application} up to {end}, this batch begins at {span.start}; start the reput "
                    "again"
                )

    def _progress(self) -> tuple[Ends, int]:
        """What the lake holds, and its last batch."""
        progress = self._session.table(self._tables.table(REPUT_PROGRESS.name))
        rows = progress.groupBy("broker", "log_id").agg({"end_offset": "max", "batch": "max"}).collect()
        ends = {(str(row["broker"]), str(row["log_id"])): int(row["max(end_offset)"]) for row in rows}
        return ends, max((int(row["max(batch)"] or 0) for row in rows), default=0)

    def _make_durable(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._local:
                self._local[name].make_all_durable()

    def _each(self, names: Iterable[str], do: Callable[[str], Any]) -> dict[str, Any]:
        """Several at a time; all have ended when it returns or raises."""
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            futures = {name: pool.submit(do, name) for name in names}
        return {name: future.result() for name, future in futures.items()}

    def _error(self, error: Exception) -> LakeError:
        kind = CatalogAwayError if is_away(error) else LakeError
        return kind(f"lake {self._tables}: {said(error)}")
