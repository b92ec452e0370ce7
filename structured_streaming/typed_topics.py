"""What `lakebroker typed` does with a lake: topics declared, their schemas followed by others, what they are shown."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from structured_streaming.commit.typed_lake import FILLED_BYTES, FolderTyped, TypedTables
from structured_streaming.commit.typed_refresh import refreshed, with_registered
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.registry.subject import Registered, Registry
from structured_streaming.storage.folder import Folder
from structured_streaming.typed.declaration import (
    ACTIVE,
    FILLING,
    STOPPED,
    Declaration,
    Schema,
    UnknownSchemaError,
    checked,
    table_name,
)
from structured_streaming.typed.topic import TypedTopic


class Asked(NamedTuple):
    """A topic to be typed, by schemas that follow each other: one of a file, or those of a subject of a `registry`. `table` empty:
    named by the topic."""

    topic: str
    format: str
    schemas: Sequence[Schema]
    table: str = ""
    from_beginning: bool = False
    registry: str = ""


def of_registry(
    topic: str,
    url: str,
    message: str = "",
    table: str = "",
    *,
    from_beginning: bool = False,
    access: RegistryAccess = NOTHING,
) -> Asked:
    """By all schemas of the subject at `url` that are of the format of the newest, and whole. Raises LakeError."""
    found = Registry(url, message, access).schemas()
    if not found:
        raise LakeError(f"registry {url} has no schema of this subject")
    form = found[-1].format
    schemas = [each.schema for each in found if each.format == form and not each.problem]
    if not schemas:
        raise LakeError(found[-1].problem)
    return Asked(topic, form, schemas, table, from_beginning, url)


class Added(NamedTuple):
    """What is declared now; `new`: whether this schema was not before; `rows` that the table got of what was there."""

    declared: Declaration
    new: bool
    rows: int = 0


class TypedTopics:
    """Of a lake, whose registries are spoken to by `access`. Calls raise LakeError."""

    def __init__(self, lake: TypedTables, access: RegistryAccess = NOTHING) -> None:
        self._lake = lake
        self._access = access

    def all(self) -> list[Declaration]:
        """By the names of their tables."""
        return self._lake.declarations()

    def add(self, asked: Asked, tell: Callable[[int], None]) -> Added:
        """Declares a topic, or more versions of its schema. `tell` gets how many messages were read, part by part."""
        before = of_topic(self.all(), asked.topic)
        if before is None:
            start = () if asked.from_beginning else tuple(_named(self._lake.ends()))
            declared, new = first(asked, start), True
            lake = self._lake.before(declared.table)
            if lake.named and not asked.from_beginning:
                raise LakeError(
                    f"the lake had a table {declared.table} before, whose rows are gone: give --from-beginning, which fills the new one with "
                    "what the lake has by now; or another name (--table), to begin with what comes from now on"
                )
            declared = dataclasses.replace(declared, since=lake.newest)
            self._lake.declare(declared)
        else:
            declared = self._lake.alter(before.table, lambda now: followed(now, asked))
            new = len(declared.schemas) > len(before.schemas)
        return self._completed(declared, tell)._replace(new=new)

    def fill(self, topic: str, tell: Callable[[int], None], until: float = math.inf) -> Added:
        """Gives the table of a topic that is FILLING what the lake has by now, and to the reput; one that is kept up stays as it
        is. `tell` as of `add`, `until` as of `TypedTables.fill`."""
        declared = named(self.all(), topic)
        if declared.state == STOPPED:
            raise LakeError(
                f"topic {topic} was removed; `lakebroker typed add` with its schema lets it go on, and fills its table"
            )
        return self._completed(declared, tell, until)

    def remove(self, topic: str) -> Declaration:
        """Lets the reput fill it no more; its table stays."""
        stopped = partial(dataclasses.replace, state=STOPPED)
        return self._lake.alter(named(self.all(), topic).table, stopped)

    def lacks(self, declared: Declaration) -> int:
        """Bytes of the logs that are in the lake, and not looked at for the table."""
        return self._lake.lacking(declared).size

    def _completed(
        self, declared: Declaration, tell: Callable[[int], None], until: float = math.inf
    ) -> Added:
        if declared.state != FILLING:
            return Added(declared, False)
        rows = self._filled(declared, tell, until)
        while self._lake.lacks_more(declared, FILLED_BYTES):  # which came meanwhile
            if time.monotonic() > until:
                return Added(declared, False, rows)
            rows += self._filled(declared, tell, until)
        return Added(self._lake.alter(declared.table, _handed_over), False, rows)

    def _filled(self, declared: Declaration, tell: Callable[[int], None], until: float) -> int:
        while True:
            try:
                return self._lake.fill(declared, tell, until)
            except (
                UnknownSchemaError
            ) as error:  # each answer makes ids known, or refused, of which there is an end
                declared = refreshed(self._lake, declared, error.ids, self._access)


def _handed_over(now: Declaration) -> Declaration:
    """To the reput, unless it was removed meanwhile."""
    return dataclasses.replace(now, state=ACTIVE) if now.state == FILLING else now


def topics_of(location: str, access: RegistryAccess = NOTHING) -> TypedTopics:
    """Of a lake in a folder or an object store. Raises LocationError."""
    return topics_in(open_lake(location), access)


def topics_in(lake: Folder, access: RegistryAccess = NOTHING) -> TypedTopics:
    """Of a lake that was opened."""
    return TypedTopics(FolderTyped(lake), access)


def first(asked: Asked, start: tuple[tuple[str, int], ...]) -> Declaration:
    """The declaration of a topic that has none. Raises LakeError."""
    table = asked.table or table_name(asked.topic)
    state = FILLING if asked.from_beginning else ACTIVE
    one = (dataclasses.replace(asked.schemas[0], version=1),)
    declared = Declaration(asked.topic, table, asked.format, one, state, start, asked.registry)
    return with_schemas(checked(declared), asked)


def followed(before: Declaration, asked: Asked) -> Declaration:
    """A declaration with schemas that follow; the same one where it has them already. Raises LakeError."""
    if asked.table and asked.table != before.table:
        raise LakeError(f"topic {asked.topic} is typed already, in table {before.table}; leave out --table")
    if asked.format != before.format:
        raise LakeError(f"topic {asked.topic} is typed as {before.format}, not {asked.format}")
    if asked.registry != before.registry:
        raise LakeError(
            f"topic {asked.topic} is typed by {before.registry or 'files'}; give its schema from there"
        )
    if asked.from_beginning and before.state != FILLING:
        raise LakeError(
            f"topic {asked.topic} is typed already; --from-beginning is for the first schema of a topic"
        )
    state = FILLING if before.state == STOPPED else before.state  # what it lacks since is for the command
    return with_schemas(dataclasses.replace(before, state=state), asked)


def with_schemas(declared: Declaration, asked: Asked) -> Declaration:
    """A declaration with those schemas that it lacks. Raises LakeError; of a registry, a schema that does not fit is refused."""
    if asked.registry:
        found = [Registered(asked.format, schema) for schema in asked.schemas]
        return with_registered(dataclasses.replace(declared, refused=()), found, ())
    for schema in asked.schemas:
        newest = declared.newest
        if (schema.text, schema.message) != (newest.text, newest.message):
            declared = declared.evolved(dataclasses.replace(schema, version=newest.version + 1))
    return declared


def of_topic(all_declared: list[Declaration], topic: str) -> Declaration | None:
    """The declaration of a topic; None without one."""
    return next((declared for declared in all_declared if declared.topic == topic), None)


def named(all_declared: list[Declaration], topic: str) -> Declaration:
    """As `of_topic`. Raises LakeError."""
    found = of_topic(all_declared, topic)
    if found is None:
        raise LakeError(f"topic {topic} is not typed in this lake; `lakebroker typed add` makes it so")
    return found


def columns(format: str, schema: Schema) -> TypedTopic:
    """What a schema alone makes of a topic. Raises SchemaError."""
    return TypedTopic(Declaration("topic", "typed_topic", format, (schema,)))


def _named(ends: dict[tuple[str, str], int]) -> list[tuple[str, int]]:
    return sorted((f"{broker}/{log_id}", end) for (broker, log_id), end in ends.items())
