"""Where a reput's rows go: a lake in a folder, by commits of our own, or tables that Spark's writer commits to."""

from __future__ import annotations

import hashlib
import math
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from store.counting import counted
from structured_streaming.catalog.lake_tables import (
    FolderTables,
    LakeTables,
    SchemaTables,
    make_tables,
    schema_location,
)
from structured_streaming.catalog.names import catalog_schema
from structured_streaming.catalog.places import STAGING, staging_folder
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.sink import AfterStep, Sink, no_step
from structured_streaming.commit.typed_declared import left_out
from structured_streaming.commit.typed_lake import FILLED_BYTES, FolderTyped, TypedTables
from structured_streaming.commit.typed_refresh import noted
from structured_streaming.commit.typed_tables import Look
from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.lake import checked_place
from structured_streaming.provided_session import beside
from structured_streaming.registry.questions import Question, Questions
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_watch import Behind
from structured_streaming.source.progress_file import write_progress
from structured_streaming.storage.location import lake_folder
from structured_streaming.typed.declaration import FILLING, Declaration, UnknownSchemaError, packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA, SPARK = "delta", "spark"
START_S, ONCE_S = 10.0, 100.0
"""What the start of a query waits for registries; that of a run that ends by itself, which has no later moment for them."""
AGAIN_S = 600.0
"""After which a typed table that could not be filled, for a file that cannot be read, say, is tried again."""
_ASKS = 3
"""Of a registry while a table is filled: its answers lead to further bodies."""


class Destination(Protocol):
    """A lake to fill. Calls raise LakeError."""

    @property
    def by_spark(self) -> bool:
        """Whether the session needs Delta."""

    def check(self) -> None:
        """Whether a lake can be there, as far as that is known before the logs are asked. Changes nothing."""

    def prepare(self) -> None:
        """What can be made of its tables before Spark starts."""

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """A sink for one query, and options of its source; files that only the query needs go to `scratch`."""

    def ends(self) -> Ends:
        """What the lake holds now."""

    def typed_changed(self) -> bool:
        """Whether other typed topics, or versions of their schemas, are declared than a query that was opened has."""

    def typed_behind(self) -> Mapping[str, Behind]:
        """Typed tables by name, as of the last look. Asks nobody."""


class KeptUpTopics:
    """The typed topics of a lake that a query fills. Their registries are asked by `questions`: when a query starts, for `wait_s` all
    together at most, and beside it."""

    def __init__(
        self,
        lake: TypedTables,
        most_bytes: int = FILLED_BYTES,
        *,
        questions: Questions | None = None,
        wait_s: float = START_S,
    ) -> None:
        self._lake = lake
        self._most_bytes = most_bytes
        self._questions = questions or Questions()
        self._wait_s = wait_s
        self._known: list[Declaration] = []
        self._seen = Look([], [], [])
        self._whole: set[str] = set()
        self._again_at = math.inf
        self._unknown: dict[str, set[int]] = {}

    def filled(self) -> tuple[Declaration, ...]:
        """Those that have all that the lake has by now; one that cannot be brought there, or not soon, is told, and left out."""
        with self._questions.turn:
            return self._all_filled()

    def _all_filled(self) -> tuple[Declaration, ...]:
        self._seen = self._lake.look(_warn)
        if list(filter(self._put_off, self._seen.kept_up)):
            self._seen = self._lake.look(lambda told: None)
        self._known = list(self._seen.kept_up)
        self._unknown = {}
        until = time.monotonic() + self._wait_s
        found = [self._filled(declared, until) for declared in list(self._known)]
        whole = tuple(each for each in found if each is not None)
        if self._known != self._seen.kept_up:  # registries answered
            self._seen = self._lake.look(lambda told: None)
        self._whole = {each.table for each in whole}
        failed = {each.table for each in self._known} - self._whole - self._unknown.keys()
        self._again_at = time.monotonic() + AGAIN_S if failed else math.inf
        return whole

    def changed(self, unknown: Mapping[str, set[int]]) -> bool:
        """Whether others are declared by now than when they were filled last, or one that could not be filled then is to be tried again;
        registries are asked for ids that are not known, and what they answered is noted. Waits for none."""
        with self._questions.turn:
            return self._has_changed(unknown)

    def _has_changed(self, unknown: Mapping[str, set[int]]) -> bool:
        self._whole -= unknown.keys()
        for declared in self._known:
            if ids := self._unknown.get(declared.table, set()) | unknown.get(declared.table, set()):
                self._questions.ask(declared, ids)
        for question in self._questions.all_answered():
            self._noted(question)
        self._seen = self._lake.look_again()
        return self._seen.kept_up != self._known or time.monotonic() > self._again_at

    def behind(self) -> dict[str, Behind]:
        """By their names, typed tables but those that the reput is to leave alone, as of the last of these calls."""
        found = {table: Behind("", True) for table in self._seen.unusable}
        found |= {each.table: Behind(each.topic, True) for each in self._seen.filling}
        return found | {each.table: Behind(each.topic, each.table not in self._whole) for each in self._known}

    def declared_otherwise(self, tables: Iterable[str]) -> list[str]:
        """Which of some tables are declared otherwise by now."""
        wanted = [declared for declared in self._known if declared.table in tables]
        there = {declared.table: declared for declared in self._lake.readable()} if wanted else {}
        return [declared.table for declared in wanted if there.get(declared.table) != declared]

    def _put_off(self, declared: Declaration) -> bool:
        """Whether it lacks so much that others would wait for long: then a command fills it."""
        with left_out(declared.table, lambda problem: None):  # which the fill tells
            if self._lake.lacks_more(declared, self._most_bytes):
                self._lake.alter(declared.table, partial(replace, state=FILLING))
                _warn(
                    f"{declared.table} lacks messages that the lake has, and all else would wait while the reput reads more than "
                    f"{self._most_bytes:,} bytes; `lakebroker maintain` fills it, where the lake is in no catalog, or "
                    f"`lakebroker typed fill {declared.topic}`, and it is kept up from then on"
                )
                return True
        return False

    def _filled(self, declared: Declaration, until: float) -> Declaration | None:
        for _ in range(_ASKS):
            try:
                with left_out(declared.table, _warn):
                    if rows := self._lake.fill(declared):
                        _warn(f"{declared.table} got {counted(rows, 'row')} of what the lake had before")
                    return declared
                return None
            except UnknownSchemaError as error:
                after = self._asked(declared, error.ids, until)
            if after is None:
                return None
            self._known = [after if each == declared else each for each in self._known]
            declared = after
        return None

    def _asked(self, declared: Declaration, ids: Iterable[int], until: float) -> Declaration | None:
        """The declaration with what its registry says of ids; None, which is told, where it says nothing by then."""
        self._unknown.setdefault(declared.table, set()).update(ids)
        self._questions.ask(declared, ids, now=True)
        question = self._questions.answered(declared.table, until - time.monotonic())
        if question is None:
            _warn(
                f"{declared.table} waits, all else goes on: registry {declared.registry} has not answered yet"
            )
            return None
        return self._noted(question)

    def _noted(self, question: Question) -> Declaration | None:
        """The declaration with an answer; None, which is told, where that is none."""
        declared = question.declared
        try:
            after = noted(self._lake, declared, question.ids, question.answer.result())
        except LakeError as error:
            self._unknown.setdefault(declared.table, set()).update(question.ids)
            _warn(f"{declared.table} waits, all else goes on: {error}")
            return None
        self._unknown[declared.table] = self._unknown.get(declared.table, set()) - question.ids
        return after


class _Place:
    """Of a lake in a folder or an object store. One that was there and is gone, with its mount, say, is waited for: another in its place
    would begin where the logs do, and brokers would free segments by what it says."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._was_there = False

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        prepare_lake(self._location, anew=not self._was_there)
        self._was_there = True


class FolderDestination:
    """A lake in a folder or an object store."""

    by_spark = False

    def __init__(self, options: ReputOptions, after_step: AfterStep = no_step) -> None:
        self._options = options
        self._place = _Place(options.lake)
        self._after_step = after_step
        self._topics = KeptUpTopics(
            FolderTyped(lake_folder(options.lake)),
            questions=Questions(options.registry),
            wait_s=_wait_s(options),
        )
        self._sink: DeltaCommitSink | None = None

    def check(self) -> None:
        """See `Destination.check`."""
        checked_place(self._options.lake)

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        self._place.prepare()

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """See `Destination.open`."""
        self.prepare()
        typed = self._topics.filled()
        wanted = replace(self._options.wanted, typed=typed)
        self._sink = DeltaCommitSink(self._options.lake, self._after_step, wanted)
        return self._sink, {"typed": packed(typed)}

    def ends(self) -> Ends:
        """See `Destination.ends`."""
        return LakeProgress(self._options.lake).offsets

    def typed_changed(self) -> bool:
        """See `Destination.typed_changed`."""
        unknown = self._sink.unknown if self._sink is not None else {}
        return self._topics.changed(unknown)

    def typed_behind(self) -> Mapping[str, Behind]:
        """See `Destination.typed_behind`."""
        return self._topics.behind()


class SparkDestination:
    """Tables that Spark's writer commits to, in a schema of a catalog or in a folder."""

    by_spark = True

    def __init__(self, options: ReputOptions, after_step: AfterStep = no_step) -> None:
        self._options = options
        self._place = _Place(options.lake)
        self._after_step = after_step
        self._schema = catalog_schema(options.lake)
        self._sink: SparkCommitSink | None = None
        self._writer = uuid.uuid4().hex
        self._questions = Questions(options.registry)
        self._topics: KeptUpTopics | None = None

    def check(self) -> None:
        """See `Destination.check`."""
        if self._schema is None:
            checked_place(self._options.lake)
        if self._options.staging:
            staging_folder(self._options.staging, "", "")

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        if self._schema is None:
            self._place.prepare()

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """See `Destination.open`."""
        self.prepare()
        given = self._options.staging
        if self._schema is None:
            folder = lake_folder(self._options.lake)
            tables: LakeTables = FolderTables(folder)
            staging = staging_folder(given, "", _digest(str(folder))) if given else folder.child(STAGING)
        else:
            own = beside(session)  # what a table is made in notes its version
            make_tables(own, self._schema)
            tables = SchemaTables(self._schema)
            location = schema_location(own, self._schema)
            staging = staging_folder(given, location, f"{self._schema}-{_digest(location)}")
        there: TypedTables = (
            FolderTyped(folder) if self._schema is None else CatalogTyped(session, self._schema)
        )
        self._topics = KeptUpTopics(there, questions=self._questions, wait_s=_wait_s(self._options))
        typed = self._topics.filled()
        others = sorted({each.table for each in there.readable()} - {each.table for each in typed})
        progress = scratch / "progress"
        self._sink = SparkCommitSink(
            session,
            tables,
            staging,
            lambda ends: write_progress(progress, ends),
            self._writer,
            self._sink is not None,
            replace(self._options.wanted, typed=typed),
            self._after_step,
            others,
            self._topics.declared_otherwise,
        )
        named = {"lake": staging.uri, "progressFile": str(progress), "typed": packed(typed)}
        return self._sink, named

    def ends(self) -> Ends:
        """See `Destination.ends`."""
        return dict(self._sink.ends) if self._sink is not None else {}

    def typed_changed(self) -> bool:
        """See `Destination.typed_changed`."""
        if self._topics is None or self._sink is None:
            return False
        return self._topics.changed(self._sink.unknown)

    def typed_behind(self) -> Mapping[str, Behind]:
        """See `Destination.typed_behind`."""
        return {} if self._topics is None else self._topics.behind()


def destination_of(options: ReputOptions) -> Destination:
    """By the location, unless `sink` says otherwise. Raises LocationError."""
    schema = catalog_schema(options.lake)
    if schema is not None and options.sink == DELTA:
        raise LocationError(
            f"--sink delta commits to folders, and {schema} is a schema of a catalog; give the folder of its tables as --lake "
            f"(DESCRIBE SCHEMA {schema} says where), or leave out --sink"
        )
    if options.sink == SPARK or schema is not None:
        return SparkDestination(options)
    return FolderDestination(options)


def _wait_s(options: ReputOptions) -> float:
    return ONCE_S if options.once else START_S


def _warn(text: str) -> None:
    sys.stderr.write(f"lakebroker: {text}\n")


def _digest(text: str) -> str:
    """Tells lakes of one name apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
